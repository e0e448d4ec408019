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
    use crate::observe::health::{Probe, Thresholds};
    use crate::observe::report::{AdoptionReport, ChecksReport, Report};
    use lb_model::{Monotonic, Snapshot};
    use lb_objects::manifest;
    use lb_plan::apply::{self, MemoryStore, Programmer};
    use lb_plan::plan::{Capacities, NodeFacts, Part, PlanSettings};
    use lb_source::SourceStatus;

    const THRESHOLDS: Thresholds = Thresholds {
        stuck_after: Duration::from_hours(1),
        behind_after: Duration::from_secs(15),
        first_sync_grace: Duration::ZERO,
        fail_stale: None,
    };

    /// A service with one endpoint.
    fn web() -> Snapshot {
        manifest::snapshot(
            "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.0.0.1]}]
",
        )
    }

    fn at(second: u64) -> Monotonic {
        Monotonic::from_duration(Duration::from_secs(second))
    }

    /// `/healthz`, `/livez` and `/readyz` after a run of the programmer.
    fn probed(progress: &mut Progress, run: &apply::Report, now: Monotonic) -> [bool; 3] {
        progress.took(run, now, Timestamp::UNIX_EPOCH);
        let mut report = Report { tables: progress.report(now), ..Report::default() };
        report.datapath.synced = true;
        let judgement = Judgement::of(&report, Duration::ZERO, &THRESHOLDS);
        [Probe::Healthz, Probe::Livez, Probe::Readyz].map(|probe| judgement.is_good(probe))
    }

    /// The hash maps take nothing of it; `config`, an array, takes everything.
    #[test]
    fn a_subject_that_cannot_be_written_for_longer_than_15_s_makes_the_node_not_ready() {
        let mut programmer =
            Programmer::restore(MemoryStore::roomy(), PlanSettings::default(), at(10)).expect("empty tables");
        programmer.store_mut().broken = [[10, 96, 0, 1].into()].into();
        let (mut progress, facts) = (Progress::default(), NodeFacts::default());
        let run = programmer.sync(&web(), &facts, at(10));
        assert_eq!((run.failing, &run.writable), (2, &Some(Ok(()))), "the service and its address");
        assert_eq!(probed(&mut progress, &run, at(10)), [true; 3]);
        for second in 11..60 {
            let run = programmer.tick(at(second));
            assert_eq!(probed(&mut progress, &run, at(second)), [true, true, second <= 25], "{second} s");
        }
        programmer.store_mut().broken.clear();
        let run = programmer.tick(at(72));
        assert_eq!(probed(&mut progress, &run, at(72)), [true; 3], "the next retry succeeds");
    }

    /// It has a name and a remedy of its own, and no write fails.
    #[test]
    fn a_change_that_a_map_has_no_room_for_fails_no_probe() {
        let small = Capacities::all(9).with(Part::Slots, 0);
        let mut programmer =
            Programmer::restore(MemoryStore::new(small), PlanSettings::default(), at(10)).expect("empty tables");
        let (mut progress, facts) = (Progress::default(), NodeFacts::default());
        let run = programmer.sync(&web(), &facts, at(10));
        assert!(run.refusals[0].reason.contains("map slots is full"), "{run:?}");
        assert_eq!(probed(&mut progress, &run, at(10)), [true; 3]);
        let run = programmer.tick(at(100));
        assert_eq!((run.refusals.len(), probed(&mut progress, &run, at(100))), (1, [true; 3]));
    }

    fn nothing_attached() -> lb_datapath::Status {
        lb_datapath::Status {
            tc: lb_datapath::TcMechanism::Tcx,
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
            no_external_link: None,
            source_ports: 0,
            fast_path: lb_datapath::FastPathStatus::default(),
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
            thresholds: THRESHOLDS,
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
