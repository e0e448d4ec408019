//! Adoption of another proxy's connections in the running agent: when each step is due. A thread asks conntrack, and waits for nothing else.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::watch;

use super::clock;
use super::state::Progress;
use crate::observe::report::AdoptionReport;
use lb_model::Monotonic;
use lb_takeover::adopt::{AdoptError, Adopter};
use lb_takeover::conntrack::ConntrackError;

/// How often the thread looks whether programs and services are there.
const LOOK: Duration = Duration::from_millis(100);
/// From then on, connections of the other proxy that are under way are given so long to become known to conntrack.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause between two comparisons with conntrack.
const PAUSE: Duration = Duration::from_secs(5);
/// A comparison that takes long is followed by a pause so many times as long.
const PAUSE_FACTOR: u32 = 20;

/// What the thread works with.
struct Worker {
    adopter: Adopter,
    progress: watch::Receiver<Progress>,
    datapath: watch::Receiver<lb_datapath::Status>,
    report: watch::Sender<AdoptionReport>,
    /// Hangs up when the agent ends.
    stop: Receiver<()>,
}

/// The handle of the thread, which ends when this is dropped.
pub(super) struct Adoption {
    _stop: SyncSender<()>,
}

/// The first step, before any program is attached: adopts what conntrack has now, if the adoption window is open. `None`: nothing can be adopted.
pub(super) fn begin(maps_dir: &Path) -> Option<Adopter> {
    let begun = Adopter::open(maps_dir).and_then(|mut adopter| {
        if is_open(&adopter) {
            let count = adopter.adopt(now_s())?;
            tracing::info!(connections = count, "adopted the connections of another proxy");
        }
        Ok(adopter)
    });
    match begun {
        Ok(adopter) => Some(adopter),
        Err(AdoptError::Conntrack(ConntrackError::Missing)) => {
            tracing::debug!("this kernel tracks no connections that could be adopted");
            None
        }
        Err(error) => {
            tracing::warn!(
                "connections of another proxy are not adopted; unknown segments pass in the adoption window: {error}"
            );
            None
        }
    }
}

/// Starts the thread for what follows. `None`: there is nothing to follow, or there is no thread for it, which is logged.
pub(super) fn follow(
    adopter: Option<Adopter>,
    progress: watch::Receiver<Progress>,
    datapath: watch::Receiver<lb_datapath::Status>,
    report: watch::Sender<AdoptionReport>,
) -> Option<Adoption> {
    let (hold, stop) = sync_channel(1);
    let mut worker = Worker { adopter: adopter?, progress, datapath, report, stop };
    let started = std::thread::Builder::new().name("adoption".to_owned()).spawn(move || worker.run());
    match started {
        Ok(_) => Some(Adoption { _stop: hold }),
        Err(error) => {
            tracing::warn!("adopted connections are not followed: no thread: {error}");
            None
        }
    }
}

fn is_open(adopter: &Adopter) -> bool {
    adopter.window_until_s() > now_s()
}

fn now_s() -> u32 {
    u32::try_from(clock::monotonic().since(Monotonic::default()).as_secs()).unwrap_or(u32::MAX)
}

impl Worker {
    fn run(&mut self) {
        if is_open(&self.adopter) {
            if !self.wait_for_services() {
                return;
            }
            self.end_window();
        } else if !self.wait_until_moved() {
            return;
        } else if let Err(error) = self.adopter.restore() {
            tracing::warn!("adopted connections are not followed: {error}");
            return self.report_problem(Some(&error));
        }
        let adopted = self.adopter.count();
        while self.adopter.count() > 0 {
            let begun = clock::monotonic();
            let is_synced = self.progress.borrow().tables.synced;
            let followed = self.adopter.follow(now_s(), is_synced);
            self.report_problem(followed.as_ref().err());
            let took = clock::monotonic().since(begun);
            if self.adopter.count() > 0 && self.is_over_after(PAUSE.max(took * PAUSE_FACTOR)) {
                return;
            }
        }
        if adopted > 0 {
            self.adopter.finish();
            tracing::info!("the last adopted connection has ended");
        }
        self.report_problem(None);
    }

    /// Until the programs are attached and the services are in the tables, or the window ends. `false`: the agent ends.
    fn wait_for_services(&self) -> bool {
        loop {
            let is_serving = self.datapath.borrow().synced && self.progress.borrow().tables.synced;
            if is_serving || !is_open(&self.adopter) {
                return !self.is_over_after(SETTLE);
            }
            if self.is_over_after(LOOK) {
                return false;
            }
        }
    }

    /// Until the connections of another set of tables have moved to this one. `false`: the agent ends.
    fn wait_until_moved(&self) -> bool {
        while self.datapath.borrow().is_moving {
            if self.is_over_after(LOOK) {
                return false;
            }
        }
        true
    }

    /// The second list. If conntrack cannot be asked, the window ends by itself.
    fn end_window(&mut self) {
        let before = self.adopter.count();
        let adopted = self.adopter.adopt(now_s()).and_then(|_| {
            self.adopter.adopt_ipvs(now_s())?;
            self.adopter.close_window()?;
            Ok(self.adopter.count() - before)
        });
        match &adopted {
            Ok(new) => tracing::info!(
                connections = self.adopter.count(),
                new,
                "adopted the connections of another proxy; unknown segments are refused from here on"
            ),
            Err(error) => tracing::warn!("unknown segments pass until the adoption window ends: {error}"),
        }
        self.report_problem(adopted.as_ref().err());
    }

    fn report_problem(&self, error: Option<&AdoptError>) {
        let problem = error.map(ToString::to_string).or_else(|| self.adopter.problem());
        self.report.send_if_modified(|report| {
            let new = AdoptionReport { problem };
            let is_new = *report != new;
            if is_new && let Some(problem) = &new.problem {
                tracing::warn!("adopted connections: {problem}");
            }
            *report = new;
            is_new
        });
    }

    /// Waits. `true`: the agent ends.
    fn is_over_after(&self, pause: Duration) -> bool {
        self.stop.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
    }
}
