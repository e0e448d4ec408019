//! The judgement that probes are answered by: made when something changed, and shared by all probes until then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::clock;
use super::state::State;
use crate::observe::health::Judgement;
use crate::observe::http::HealthView;

/// A judgement lasts no longer: it names ages.
const LASTS: Duration = Duration::from_secs(1);
/// Nor is it made more often, however much changes.
const PAUSE: Duration = Duration::from_millis(20);

/// Judges by the state of the agent's parts.
pub(super) struct Judge {
    last: Mutex<Judged>,
}

struct Judged {
    state: State,
    /// When the judgement was made.
    at: Option<Instant>,
    judgement: Arc<Judgement>,
    last_in_step: Option<Timestamp>,
}

impl Judge {
    pub fn new(state: State) -> Self {
        Self { last: Mutex::new(Judged { state, at: None, judgement: Arc::default(), last_in_step: None }) }
    }

    /// What the health server answers by.
    pub fn view(&self) -> HealthView {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.refresh(Instant::now());
        HealthView { judgement: last.judgement.clone(), now: clock::wall(), last_in_step: last.last_in_step }
    }

    /// What health-check node ports say of the node.
    pub fn is_well(&self) -> bool {
        self.view().judgement.is_well()
    }
}

impl Judged {
    fn refresh(&mut self, now: Instant) {
        let age = self.at.map(|at| now.saturating_duration_since(at));
        let is_due = age.is_none_or(|age| age >= LASTS || (age >= PAUSE && self.state.has_changed()));
        if is_due {
            self.state.mark_seen();
            (self.judgement, self.last_in_step) = (Arc::new(self.state.judge()), self.state.last_in_step());
            self.at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::sync::watch;

    use super::super::state::Progress;
    use super::*;
    use crate::datapath;
    use crate::observe::health::{Probe, Thresholds};
    use crate::observe::report::{AdoptionReport, ChecksReport};
    use crate::source::SourceStatus;

    fn nothing_attached() -> datapath::Status {
        datapath::Status {
            tc: datapath::TcMechanism::Tcx,
            missing_features: Vec::new(),
            socket_lb: "off",
            cgroup: None,
            addresses: BTreeSet::new(),
            absent: BTreeSet::new(),
            synced: false,
            is_moving: false,
            links: Vec::new(),
            problems: Vec::new(),
            node_problems: Vec::new(),
            warnings: Vec::new(),
            source_ports: 0,
            fast_path: datapath::FastPathStatus::default(),
            programs: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_judgement_is_shared_until_something_changes() {
        let source = watch::Sender::new(SourceStatus::default());
        let (datapath, checks) = (watch::Sender::new(nothing_attached()), watch::Sender::new(ChecksReport::default()));
        let mut progress = Progress { beat: clock::monotonic(), ..Progress::default() };
        progress.tables.synced = true;
        let progress = watch::Sender::new(progress);
        let judge = Judge::new(State {
            node_name: "n1".into(),
            started: clock::monotonic(),
            thresholds: Thresholds {
                stuck_after: Duration::from_hours(1),
                behind_after: Duration::from_secs(15),
                first_sync_grace: Duration::ZERO,
                fail_stale: None,
            },
            proof_limit: Duration::from_mins(1),
            source: source.subscribe(),
            datapath: datapath.subscribe(),
            progress: progress.subscribe(),
            sockets: None,
            checks: checks.subscribe(),
            adoption: watch::Sender::new(AdoptionReport::default()).subscribe(),
        });
        let first = judge.view().judgement;
        assert!(Arc::ptr_eq(&first, &judge.view().judgement), "nothing changed");
        source.send_modify(|status| status.last_error = Some("connection refused".into()));
        assert!(Arc::ptr_eq(&first, &judge.view().judgement), "it is too young");
        tokio::time::advance(PAUSE).await;
        let second = judge.view().judgement;
        assert!(!Arc::ptr_eq(&first, &second) && !second.is_good(Probe::Readyz));
        tokio::time::advance(PAUSE).await;
        assert!(Arc::ptr_eq(&second, &judge.view().judgement));
        datapath.send_modify(|status| status.synced = true);
        assert!(judge.is_well());
        tokio::time::advance(LASTS).await;
        assert!(!Arc::ptr_eq(&second, &judge.view().judgement), "its ages are too old");
    }
}
