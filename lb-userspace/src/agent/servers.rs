//! The agent's servers: health, metrics, and the socket of the command line.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

use super::judge::Judge;
use super::previews::Previews;
use super::state::State;
use super::task::{Task, spawn};
use super::{auditor, clock, marks};
use crate::config::Settings;
use crate::fleet::answer::{NodeStatus, Versions};
use crate::fleet::command::Commands;
use crate::fleet::listener::{self, Answers, View};
use crate::fleet::review::Reviewer;
use crate::fleet::tls::CertificateFiles;
use crate::observe::event_stream::EventStream;
use crate::observe::maintenance::Order;
use crate::observe::metrics::Metrics;
use crate::observe::report_socket::Question;
use crate::observe::server::{self, Admission, CONNECTIONS_MAX, Patience};
use crate::observe::{http, report_socket};

/// How often a socket that could not be opened is tried again.
const SOCKET_RETRY: Duration = Duration::from_secs(5);

/// The servers' listeners: bound before anything is attached.
pub(super) struct Listeners {
    health: TcpListener,
    metrics: TcpListener,
    /// `None`: it is off.
    pub fleet: Option<TcpListener>,
}

/// Binds all.
pub(super) fn listen(settings: &Settings) -> Result<Listeners, http::ListenError> {
    Ok(Listeners {
        health: http::listen("health-bind", settings.health_bind)?,
        metrics: http::listen("metrics-bind", settings.metrics_bind)?,
        fleet: settings.fleet.as_ref().map(|fleet| http::listen("fleet-bind", fleet.bind)).transpose()?,
    })
}

/// Channels to the loop: audits, and orders of maintenance; and the events of the programs.
#[derive(Clone)]
pub(super) struct RequestChannels {
    pub audits: auditor::Requests,
    pub orders: marks::Requests,
    pub events: EventStream,
    pub previews: Previews,
}

/// Serves everything, each in a task of its own.
pub(super) fn serve(
    state: &State,
    judge: &Arc<Judge>,
    metrics: &Metrics,
    listeners: Listeners,
    run_dir: &Path,
    channels: RequestChannels,
) -> Vec<Task> {
    let run_dir = run_dir.to_owned();
    let (judge, reported) = (judge.clone(), state.clone());
    let (probed, scraped) = (metrics.clone(), metrics.clone());
    let health = http::health_router(move || judge.view(), move |probe, code| probed.probed(probe, code));
    let scrape = http::metrics_router(move || scraped.encode());
    let events = channels.events.clone();
    let answer = move |question| answer(question, reported.clone(), channels.clone());
    vec![
        spawn(server::serve(listeners.health, health, Admission::new(CONNECTIONS_MAX), Patience::default())),
        spawn(server::serve(listeners.metrics, scrape, Admission::new(CONNECTIONS_MAX), Patience::default())),
        spawn(async move {
            let reports = open_socket(&run_dir).await;
            report_socket::serve(reports, events, answer).await;
        }),
    ]
}

/// Serves the fleet, where that is on. `api`: reviews the tokens.
pub(super) fn serve_fleet(
    settings: &Settings,
    state: &State,
    metrics: &Metrics,
    api: Option<Client>,
    socket: Option<TcpListener>,
) -> Option<Task> {
    let (fleet, api, socket) = (settings.fleet.as_ref()?, api?, socket?);
    let program = std::env::current_exe().inspect_err(|error| tracing::warn!("--fleet-bind: no commands: {error}"));
    let folder = |flag: &str, path: &Path| [flag.to_owned(), path.display().to_string()];
    let folders = [folder("--bpffs", &settings.bpffs), folder("--run-dir", &settings.run_dir)].concat();
    let metrics_address = vec!["--metrics".to_owned(), settings.metrics_bind.to_string()];
    let commands = Commands::new(program.unwrap_or_default(), folders, metrics_address);
    let state = state.clone();
    let answers = Answers::new(move || view(&state), Reviewer::new(api), commands, metrics.fleet().clone());
    let files = CertificateFiles { certificate: fleet.certificate.clone(), key: fleet.key.clone() };
    tracing::info!(address = %fleet.bind, "the fleet is answered");
    Some(spawn(listener::serve_files(socket, answers, files)))
}

/// What the listener of the fleet answers from.
fn view(state: &State) -> View {
    let (report, now) = (state.report(), clock::monotonic());
    let programmed = state.progress.borrow().programmed.clone();
    let known = |resource: &str| state.source.borrow().resources.get(resource).map_or(0, |resource| resource.version);
    let (accepted, digest) = programmed.objects();
    let status = NodeStatus {
        version: report.version,
        node_name: report.node_name,
        synced: report.tables.synced && report.source.synced,
        freshness_seconds: report.source.oldest_age_seconds(),
        stale: report.source.stale,
        lag_seconds: programmed.lag_seconds(now),
        digest: digest.text(),
        buckets: digest.buckets(),
        recent: programmed.recent(now),
        programmed: Versions { services: accepted.services_version, endpoint_slices: accepted.slices_version },
        known: Versions { services: known("services"), endpoint_slices: known("endpointslices") },
    };
    View { status, accepted: accepted.clone() }
}

/// The socket of the command line. A run folder that cannot be used keeps the command line away, and nothing else.
async fn open_socket(run_dir: &Path) -> UnixListener {
    let mut logged = None;
    loop {
        match report_socket::listen(run_dir) {
            Ok(listener) => return listener,
            Err(error) => {
                let error = error.to_string();
                if logged.as_ref() != Some(&error) {
                    let run_dir = run_dir.display();
                    tracing::warn!(
                        "cannot listen in {run_dir}, so `ballast status` reaches no agent; make room, or choose another --run-dir: {error}"
                    );
                    logged = Some(error);
                }
                tokio::time::sleep(SOCKET_RETRY).await;
            }
        }
    }
}

/// What the command line asked over the socket, as JSON.
async fn answer(question: Question, state: State, channels: RequestChannels) -> Vec<u8> {
    let dry_run = match question {
        Question::Report => return serde_json::to_vec(&state.report()).unwrap_or_default(),
        Question::Audit => false,
        Question::AuditDryRun => true,
        Question::Maintenance(order) => return maintain(order, channels.orders).await,
        Question::Plan(change) => {
            let report = channels.previews.report(change, state.report().source.stale).await;
            return serde_json::to_vec(&report).unwrap_or_default();
        }
    };
    let (reply, found) = oneshot::channel();
    if channels.audits.send(auditor::Request { dry_run, reply }).await.is_err() {
        return Vec::new();
    }
    found.await.map_or_else(|_| Vec::new(), |found| serde_json::to_vec(&found).unwrap_or_default())
}

async fn maintain(order: Order, orders: marks::Requests) -> Vec<u8> {
    let (reply, done) = oneshot::channel();
    if orders.send(marks::Request { order, reply }).await.is_err() {
        return Vec::new();
    }
    done.await.map_or_else(|_| Vec::new(), |answer| serde_json::to_vec(&answer).unwrap_or_default())
}
