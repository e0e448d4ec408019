//! The loop: a snapshot, a deadline, a beat or a signal at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::clock;
use super::state::Progress;
use crate::apply::{KernelStore, Programmer, Report};
use crate::datapath::Datapath;
use crate::model::{Refusal, Snapshot};
use crate::observe::health::BEAT;
use crate::observe::metrics::Metrics;
use crate::plan::NodeFacts;
use crate::source::SourceStatus;

/// The shortest pause between two passes that only time asks for: nothing is due more exactly than this.
const MIN_PAUSE: Duration = Duration::from_millis(20);

/// What the loop turns.
pub(super) struct Parts {
    pub datapath: Datapath,
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub source: watch::Receiver<SourceStatus>,
    pub programmer: Programmer<KernelStore>,
    pub progress: watch::Sender<Progress>,
    pub metrics: Metrics,
    pub signals: Signals,
    pub stop: CancellationToken,
}

/// The signals that end the agent.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on they no longer kill.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Runs until a signal. Leaves everything pinned and attached: traffic flows on.
pub(super) async fn run(parts: Parts) -> anyhow::Result<()> {
    let Parts { mut datapath, mut snapshots, mut source, programmer, progress, metrics, mut signals, stop } = parts;
    let links = stop.clone();
    // The task owns the data path, and with it the lock, until the end.
    let mut following = tokio::spawn(async move { datapath.follow_links(links).await });
    let mut tables = Tables { programmer, progress, metrics, told: Told::default() };
    let mut refused = Told::default();
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
                    tables.sync(&snapshot);
                }
            }
            Ok(()) = source.changed() => {
                let refusals = source.borrow_and_update().refusals.iter().map(refused_text).collect();
                refused.warn(refusals);
            }
            () = sleep(tables.pause()) => tables.tick(),
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

/// The tables and what is told of them.
struct Tables {
    programmer: Programmer<KernelStore>,
    progress: watch::Sender<Progress>,
    metrics: Metrics,
    told: Told,
}

impl Tables {
    /// How long nothing is due: until a deadline, a retry or the next beat.
    fn pause(&self) -> Duration {
        let due = self.programmer.next_tick().map(|at| at.since(clock::monotonic()));
        due.map_or(BEAT, |due| due.clamp(MIN_PAUSE, BEAT))
    }

    fn sync(&mut self, snapshot: &Snapshot) {
        let started = Instant::now();
        // Writing maps blocks, but never for long: each write is one system call.
        let report = self.programmer.sync(snapshot, &NodeFacts::default(), clock::monotonic());
        let (revision, writes) = (report.revision, report.writes);
        if writes > 0 || !self.progress.borrow().tables.synced {
            let (services, backends, draining) = (report.services, report.backends.active, report.backends.draining);
            tracing::info!(revision, services, backends, draining, writes, "in the tables");
        } else {
            tracing::debug!(revision, "nothing to write");
        }
        self.note(&report, started.elapsed());
    }

    fn tick(&mut self) {
        let started = Instant::now();
        let due = self.programmer.next_tick().is_some_and(|at| at <= clock::monotonic());
        if due {
            let report = self.programmer.tick(clock::monotonic());
            if report.writes > 0 {
                let (draining, gone) = (report.backends.draining, report.backends.gone);
                tracing::debug!(draining, gone, writes = report.writes, "deadlines, retries and releases done");
            }
            self.note(&report, started.elapsed());
        } else {
            self.progress.send_modify(|progress| progress.beat = clock::monotonic());
        }
    }

    fn note(&mut self, report: &Report, took: Duration) {
        self.metrics.synced(took, report.writes, report.failures.len());
        self.metrics.called(self.programmer.store().calls());
        let (now, wall) = (clock::monotonic(), clock::wall());
        self.progress.send_modify(|progress| {
            progress.beat = now;
            progress.took(report, now, wall);
        });
        if report.failures.is_empty() {
            self.metrics.in_step(wall.as_duration().as_secs_f64());
        }
        let failures = report.failures.iter().map(|failure| format!("not written, will be tried again: {failure}"));
        self.told.warn(failures.chain(report.refusals.iter().map(refused_text)).collect());
    }
}

fn refused_text(refusal: &Refusal) -> String {
    format!("refused: {refusal}")
}

/// Failures and refusals that the log has seen, so that a retry does not repeat them.
#[derive(Default)]
struct Told(BTreeSet<String>);

impl Told {
    /// Logs what was not there before.
    fn warn(&mut self, now: BTreeSet<String>) {
        for new in now.difference(&self.0) {
            tracing::warn!("{new}");
        }
        self.0 = now;
    }
}
