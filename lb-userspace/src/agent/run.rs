//! The loop: a snapshot, a deadline, a beat or a signal at a time.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::auditor::Request;
use super::logged_problems::LoggedProblems;
use super::marks::{self, Unhealthy};
use super::previews;
use super::ring::Learnt;
use super::tables::TableOwner;
use lb_datapath::Datapath;
use lb_model::{Refused, Snapshot};
use lb_source::SourceStatus;

/// The parts that the loop runs.
pub(super) struct Parts {
    pub datapath: Datapath,
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub source: watch::Receiver<SourceStatus>,
    pub tables: TableOwner,
    pub asked: CommandRequests,
    /// Endpoints whose active checks fail.
    pub unhealthy: watch::Receiver<Unhealthy>,
    /// Backends that became ejected, or are no longer.
    pub learnt: mpsc::Receiver<Learnt>,
    pub signals: Signals,
    pub stop: CancellationToken,
}

/// What the command line asks for.
pub(super) struct CommandRequests {
    /// Who wants an audit now.
    pub audits: mpsc::Receiver<Request>,
    /// Orders about maintenance.
    pub orders: mpsc::Receiver<marks::Request>,
    /// What a change would do.
    pub previews: mpsc::Receiver<previews::Request>,
}

/// The signals that end the agent, and the one that would without being caught.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on they no longer kill.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one that ends the agent.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => tracing::info!(
                    "SIGHUP is ignored: the source is followed without it, and options take effect at the next start"
                ),
            }
        }
    }
}

/// Runs until a signal. Leaves everything pinned and attached: traffic flows on.
pub(super) async fn run(parts: Parts) -> anyhow::Result<()> {
    let Parts { mut datapath, mut snapshots, mut source, mut tables, mut signals, stop, .. } = parts;
    let CommandRequests { mut audits, mut orders, mut previews } = parts.asked;
    let (mut unhealthy, mut learnt) = (parts.unhealthy, parts.learnt);
    let mut node: watch::Receiver<lb_datapath::Status> = datapath.status();
    let links = stop.clone();
    // The task owns the data path, and with it the lock, until the end.
    let mut following = tokio::spawn(async move { datapath.follow_links(links).await });
    let (mut refused, mut refusals) = (LoggedProblems::default(), Refused::default());
    source.mark_changed();
    let ended = loop {
        tokio::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping; programs, maps and connections stay");
                break Ok(());
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    break Err(anyhow::anyhow!("the source ended: start the agent again"));
                }
                // Taken out before the tables are written: a newer one may come meanwhile.
                let snapshot = snapshots.borrow_and_update().clone();
                if let Some(snapshot) = snapshot {
                    tables.take(snapshot);
                }
            }
            Ok(()) = source.changed() => {
                let status = source.borrow_and_update().clone();
                tables.note_source(&status);
                if status.refusals != refusals {
                    refused.warn(status.refusals.iter().map(|refusal| format!("refused: {refusal}")).collect());
                    refusals = status.refusals;
                }
            }
            Ok(()) = node.changed() => {
                let status = node.borrow_and_update().clone();
                tables.note_moving(status.is_moving);
                tables.readdress(&status.addresses, &status.absent);
            }
            Some(request) = audits.recv() => tables.request_audit(request),
            Some(request) = orders.recv() => tables.maintain(request),
            Some(request) = previews.recv() => tables.preview(request),
            Ok(()) = unhealthy.changed() => {
                let endpoints = unhealthy.borrow_and_update().clone();
                tables.set_unhealthy(endpoints);
            }
            Some(learnt) = learnt.recv() => tables.learn(learnt),
            () = sleep_until(tables.due()) => tables.tick(),
            ended = &mut following => {
                break match ended {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(error.into()),
                    Err(panic) => Err(panic.into()),
                };
            }
        }
    };
    stop.cancel();
    if !following.is_finished() {
        // Its result was about the interfaces; the end is about the signal.
        let _ = following.await;
    }
    ended
}
