//! Starts the parts in an order in which a failure leaves nothing behind: addresses, source, data path, tables, then the loop.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use lb_common::abi::map_name;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api_address::TERMINATION_LOG;
use super::auditor::Auditor;
use super::descriptors::Share;
use super::health_checks::HealthChecks;
use super::held_ports::HeldPorts;
use super::judge::Judge;
use super::marks::{self, Maintenance};
use super::neighbours::Neighbours;
use super::node_memory::NodeMemory;
use super::object_events::ObjectEvents;
use super::previews::Previews;
use super::scrape::Scrape;
use super::servers::{Listeners, RequestChannels, listen, serve, serve_fleet};
use super::state::{Progress, State};
use super::sweeper::Sweeper;
use super::tables::{Beside, Reports, TableOwner};
use super::task::{Task, spawn};
use super::{adoption, api_address, auditor, checks, clock, facts, ring, run, sockets};
use crate::config::{CgroupRoot, Settings, Source as Origin};
use crate::observe::event_stream::EventStream;
use crate::observe::health::Thresholds;
use crate::observe::metrics::Metrics;
use crate::observe::report::{AdoptionReport, ChecksReport, TablesReport};
use crate::observe::report_socket;
use lb_datapath::sockets::Destroyer;
use lb_datapath::{Datapath, maps_dir};
use lb_plan::apply::{KernelStore, Programmer};
use lb_plan::plan::{DrainLimits, Marks, PlanSettings};
use lb_source::Source;
use lb_source::announce::{self, ObjectEvent};
use lb_source::api_requests::ApiRequests;
use lb_tables::Pinned;

/// How long a probe of a silent watch, and its replacement, may take before what it follows counts as stale anyhow.
const PROBE_PATIENCE: Duration = Duration::from_secs(15);

/// All nodes see a refused object at once: over how many milliseconds they spread their Events about it.
const EVENTS_SPREAD_MS: u64 = 10_000;

/// Starts everything and runs it to its end.
pub(super) async fn start(settings: Settings) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let signals = run::Signals::catch()?;
    let listeners = match listen(&settings) {
        Ok(listeners) => listeners,
        Err(error) => {
            // A port in use is most often another agent's: then the error must name that agent.
            lb_datapath::check_alone()?;
            return Err(error.into());
        }
    };
    let node_memory =
        (settings.source == Origin::Kube).then(|| NodeMemory::open(&settings.run_dir, &settings.node_name));
    let mut source = open_source(&settings, node_memory.as_ref(), &stop).await?;
    let ended = Box::pin(with_source(&settings, &mut source, signals, listeners, node_memory, &stop)).await;
    stop.cancel();
    // Its status has reported how it ended.
    let _ = source.task.await;
    ended
}

async fn with_source(
    settings: &Settings,
    source: &mut Source,
    signals: run::Signals,
    mut listeners: Listeners,
    node_memory: Option<NodeMemory>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let inherited = tables_exist(&settings.bpffs);
    if !inherited {
        first_reading(settings, source).await?;
    }

    let mut datapath = Datapath::open(datapath_settings(settings))?;
    // Before any program is attached.
    let adopter = adoption::begin(&datapath.maps_dir());
    let pinned = Pinned::open(&datapath.maps_dir())?;
    let events = pinned.open_events()?;
    let now = clock::monotonic();
    let sweeper = Sweeper::new(&pinned, settings, now, lot).context(
        "the connections of backends cannot be mapped: it needs Linux 5.5 and the pinned maps of this version",
    )?;
    let programmer = Programmer::restore(KernelStore::new(pinned), plan_settings(settings), now)?;
    let node_leaving = node_memory.as_ref().and_then(NodeMemory::known).is_some_and(|node| node.is_leaving);
    let tables = TablesReport { inherited, ..TablesReport::default() };
    let progress = Progress { beat: now, tables, node_leaving, ..Progress::default() };
    let progress = watch::Sender::new(progress);
    let sockets = sockets::start(settings, &datapath.maps_dir());
    let checked = watch::Sender::new(ChecksReport::default());
    let adopting = watch::Sender::new(AdoptionReport::default());
    let state = State {
        node_name: settings.node_name.as_str().into(),
        started: now,
        thresholds: thresholds(settings),
        proof_limit: 2 * settings.watch_silence + PROBE_PATIENCE,
        source: source.status.clone(),
        datapath: datapath.status(),
        progress: progress.subscribe(),
        sockets: sockets.as_ref().map(Destroyer::totals),
        checks: checked.subscribe(),
        adoption: adopting.subscribe(),
    };
    let adoption = adoption::follow(adopter, progress.subscribe(), datapath.status(), adopting);
    let metrics = metrics(&source.requests, &state, &datapath.maps_dir());
    let (ask, audits) = mpsc::channel(auditor::REQUESTS);
    let (order, orders) = mpsc::channel(marks::ORDERS);
    let stream = EventStream::default();
    let (previews, previewed) = Previews::new(settings);
    let channels = RequestChannels { audits: ask, orders: order, events: stream.clone(), previews };
    let judge = Arc::new(Judge::new(state.clone()));
    let fleet = serve_fleet(settings, &state, &metrics, source.api.clone(), listeners.fleet.take());
    let mut tasks = serve(&state, &judge, &metrics, listeners, &settings.run_dir, channels);
    tasks.extend(fleet);
    // After all that the agent itself cannot do without, and before what takes time.
    let mut health_checks = HealthChecks::inherit(&settings.run_dir, inherited, Share::of_process());
    let (learn, learnt) = mpsc::channel(ring::LEARNT);
    tasks.push(spawn(ring::follow(events, ring::Takers { metrics: metrics.clone(), learnt: learn, stream })));
    tasks.extend(datapath.take_program_log().map(program_log));
    let origin = source.status.borrow().origin.clone();
    let maintenance = Maintenance::open(&settings.run_dir, programmer.programmed());
    // Who was kept out stays so until this agent's own checks say otherwise.
    let restored = marks::restored(programmer.programmed());
    let marks = Marks { maintenance: maintenance.targets().clone(), unhealthy: restored.clone() };
    let (failing, unhealthy) = watch::channel(restored.clone());
    let (checks, wanted) = watch::channel(None);
    tasks.push(spawn(checks::run(checks::Parts {
        limits: settings.check_limits,
        wanted,
        restored,
        seed: RandomState::new().hash_one(0),
        failing,
        report: checked,
        metrics: metrics.clone(),
    })));
    let api_address = api_address::problem(&origin, settings, programmer.programmed(), |name| std::env::var(name).ok());
    tasks.extend(api_address.map(|problem| {
        let (status, progress) = (source.status.clone(), progress.clone());
        spawn(async move { api_address::watch(problem, status, progress, TERMINATION_LOG.as_ref()).await })
    }));
    let facts = facts::facts(&state.datapath.borrow().addresses, &facts::reserved(settings, &origin).await, marks);
    health_checks.follow(move || judge.is_well());
    let object_events = ObjectEvents::new(&settings.node_name, announce(settings, source.api.clone(), &mut tasks));
    let auditor = Auditor::new(settings.audit_interval, Some(datapath.auditor()), Instant::now());
    let neighbours = Neighbours::new(datapath.surroundings(), settings.source == Origin::Kube);
    let held_ports = HeldPorts::new(settings);
    let beside =
        Beside { health_checks, auditor, node_memory, maintenance, sockets, sweeper, checks, neighbours, held_ports };
    let mut tables = TableOwner::new(programmer, facts, Reports::new(progress, metrics, object_events), beside);
    tables.note_moving(state.datapath.borrow().is_moving);

    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = settings.node_name,
        source = %settings.source,
        maps = %datapath.maps_dir().display(),
        "started"
    );
    let (snapshots, status, stop) = (source.snapshots.clone(), source.status.clone(), stop.clone());
    let source = status;
    let asked = run::CommandRequests { audits, orders, previews: previewed };
    let parts = run::Parts { datapath, snapshots, source, tables, asked, unhealthy, learnt, signals, stop };
    let ended = Box::pin(run::run(parts)).await;
    drop((tasks, adoption));
    report_socket::remove(&settings.run_dir);
    ended
}

async fn open_source(
    settings: &Settings,
    node_memory: Option<&NodeMemory>,
    stop: &CancellationToken,
) -> anyhow::Result<Source> {
    match &settings.source {
        Origin::File(path) => {
            let (node_name, allowed) = (settings.node_name.clone(), settings.allowed_annotations.clone());
            Ok(lb_source::file::spawn(path.clone(), node_name, allowed, stop.clone()))
        }
        Origin::Kube => {
            let known_node = node_memory.and_then(NodeMemory::known).cloned();
            let kube = lb_source::kube::KubeSettings { known_node, ..kube_settings(settings) };
            Ok(lb_source::kube::spawn(kube, stop.clone()).await?)
        }
    }
}

fn kube_settings(settings: &Settings) -> lb_source::kube::KubeSettings {
    lb_source::kube::KubeSettings {
        kubeconfig: settings.kubeconfig.clone(),
        api_servers: settings.api_server.iter().flat_map(|servers| &servers.0).map(ToString::to_string).collect(),
        tls_server_name: settings.tls_server_name.clone(),
        proxy_name: settings.service_proxy_name.clone(),
        node_name: Some(settings.node_name.clone()),
        known_node: None,
        node_wait: settings.node_wait,
        is_direct: settings.mode.is_ever_direct(),
        allowed: settings.allowed_annotations.clone(),
        silence: settings.watch_silence,
        compare_interval: settings.resync_interval,
        expected_services: services_in_tables(&settings.bpffs),
    }
}

/// A random number.
fn lot() -> u32 {
    // The keys of the standard library's hash are random numbers.
    (RandomState::new().hash_one(0) >> 32) as u32
}

/// How much later than it comes up this node posts an Event: a random time, so that not all nodes post the same one at once.
fn events_later() -> Duration {
    // The keys of the standard library's hash are random numbers.
    Duration::from_millis(RandomState::new().hash_one(0) % EVENTS_SPREAD_MS)
}

/// Events about refused objects go to the API that they come from.
fn announce(
    settings: &Settings,
    api: Option<Client>,
    tasks: &mut Vec<Task>,
) -> Option<watch::Sender<BTreeSet<ObjectEvent>>> {
    let client = api?;
    let (to, object_events) = watch::channel(BTreeSet::new());
    tasks.push(spawn(announce::run(client, settings.node_name.clone(), object_events, events_later(), clock::wall)));
    Some(to)
}

/// Whether an agent has been here: then its tables go on serving whatever is wrong with the source.
fn tables_exist(bpffs: &Path) -> bool {
    maps_dir(bpffs).join(map_name::CONFIG).exists()
}

/// How many services an agent before this one left in the tables. Tables that cannot be read are refused elsewhere, by name.
fn services_in_tables(bpffs: &Path) -> usize {
    // Tables without any service were once in step with an API that had none, or never: either way an empty list is no news.
    if tables_exist(bpffs) { lb_datapath::layout::services(&maps_dir(bpffs)).unwrap_or(0) } else { 0 }
}

/// At the very first start a manifest that cannot be read is a mistake that ends the start. An API may be late.
async fn first_reading(settings: &Settings, source: &mut Source) -> anyhow::Result<()> {
    if settings.source == Origin::Kube {
        return Ok(());
    }
    let read = source.status.wait_for(|status| status.synced || status.last_error.is_some()).await;
    let status = read.context("the source ended before it read anything")?;
    match &status.last_error {
        Some(error) if !status.synced => anyhow::bail!("--source {}: {error}", settings.source),
        _ => Ok(()),
    }
}

fn datapath_settings(settings: &Settings) -> lb_datapath::DatapathSettings {
    lb_datapath::DatapathSettings {
        bpffs: settings.bpffs.clone(),
        cgroup_root: match &settings.cgroup_root {
            CgroupRoot::Auto => None,
            CgroupRoot::At(path) => Some(path.clone()),
        },
        run_dir: settings.run_dir.clone(),
        socket_lb: settings.socket_lb,
        loopback_node_ports: settings.nodeport_addresses.loopback(),
        protect_node_ports: settings.protect_node_ports == crate::config::Switch::On,
        tc_attach: settings.tc_attach,
        xdp_mode: settings.xdp_mode,
        fast_path: settings.fast_path,
        pod_interfaces: settings.pod_interfaces.clone(),
        external_interfaces: settings.external_interfaces.clone(),
        cluster_cidrs: settings.cluster_cidr.clone(),
        service_cidrs: settings.service_cidr.clone(),
        snat_addresses: settings.snat_addresses.clone(),
        snat_ports: settings.snat_ports,
        dsr_peers: settings.dsr_peers.clone(),
        sizes: settings.map_sizes,
        timeouts: settings.flow_timeouts.0,
        adoption_until_s: clock::monotonic().second_after(settings.adoption_window),
        flow_counters: settings.flow_counters,
        connect_times: settings.connect_times,
        program_log_level: settings.program_log_level.as_number(),
        programs: settings.programs.clone(),
        ..lb_datapath::DatapathSettings::default()
    }
}

fn plan_settings(settings: &Settings) -> PlanSettings {
    PlanSettings {
        node_name: Some(settings.node_name.clone()),
        nodeport_addresses: settings.nodeport_addresses.clone(),
        external_ips: settings.external_ips,
        service_proxy_name: settings.service_proxy_name.clone(),
        scheduler: settings.scheduler,
        mode: settings.mode,
        has_peers: !settings.dsr_peers.is_empty(),
        retry: settings.retry,
        check_networks: match &settings.active_checks {
            crate::config::ActiveChecks::Off => None,
            crate::config::ActiveChecks::Pods(networks) => {
                Some(settings.cluster_cidr.iter().chain(networks).copied().collect())
            }
        },
        slot_shares: settings.slot_shares,
        drain_limits: DrainLimits { period: settings.drain_period, max: settings.drain_max },
        terminating_max: settings.terminating_max,
        ..PlanSettings::default()
    }
}

fn thresholds(settings: &Settings) -> Thresholds {
    Thresholds {
        stuck_after: settings.stuck_after,
        behind_after: settings.behind_after,
        first_sync_grace: settings.first_sync_grace,
        fail_stale: settings.healthz_fail_stale,
    }
}

fn metrics(requests: &ApiRequests, state: &State, maps_dir: &Path) -> Metrics {
    let (state, scrape) = (state.clone(), Scrape::new(maps_dir.to_owned()));
    Metrics::new(requests, move || scrape.series(&state.report()))
}

fn program_log(log: lb_datapath::ProgramLog) -> Task {
    spawn(async move {
        if let Err(error) = log.run().await {
            tracing::warn!("the programs' log ended: {error}");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;

    fn settings(path: &Path) -> Settings {
        let source = Some(Origin::File(path.to_owned()));
        Options { source, ..Options::default() }.settle(Some("n1")).expect("complete")
    }

    async fn read(path: &Path) -> anyhow::Result<()> {
        let (settings, stop) = (settings(path), CancellationToken::new());
        let mut source = open_source(&settings, None, &stop).await.expect("a file");
        let read = first_reading(&settings, &mut source).await;
        stop.cancel();
        read
    }

    #[tokio::test]
    async fn a_missing_manifest_is_told_at_the_first_start() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = read(&dir.path().join("no.yaml")).await.expect_err("missing").to_string();
        assert!(error.contains("--source file=") && error.contains("no.yaml"), "{error}");
    }

    #[tokio::test]
    async fn a_broken_manifest_is_told_with_its_place() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("m.yaml");
        std::fs::write(&path, "kind: Service\n  name: [\n").expect("writable");
        let error = read(&path).await.expect_err("broken").to_string();
        assert!(error.contains("m.yaml:2:"), "{error}");
    }

    #[tokio::test]
    async fn an_empty_manifest_is_the_truth() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("m.yaml");
        std::fs::write(&path, "# nothing yet\n").expect("writable");
        read(&path).await.expect("valid");
    }
}
