//! What the parts of the running agent know, put together into one report whenever somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::clock;
use crate::apply;
use crate::datapath;
use crate::model::Monotonic;
use crate::observe::health;
use crate::observe::http::Look;
use crate::observe::report::{DatapathReport, KernelReport, Report, SourceReport, TablesReport};
use crate::source::SourceStatus;

/// What the runtime did last.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// When the runtime turned last.
    pub beat: Monotonic,
    pub tables: TablesReport,
    /// When the tables were last in step with the source.
    pub in_step: Option<(Monotonic, Timestamp)>,
}

impl Progress {
    /// Takes in a pass over the tables.
    pub fn took(&mut self, report: &apply::Report, now: Monotonic, wall: Timestamp) {
        let failed = !report.failures.is_empty();
        self.tables.writes += report.writes as u64;
        self.tables.revision = report.revision;
        self.tables.refusals = report.refusals.iter().map(ToString::to_string).collect();
        self.tables.last_error = failed.then(|| summary(&report.failures));
        if report.revision != 0 && !failed {
            self.tables.synced = true;
            self.in_step = Some((now, wall));
        }
    }
}

/// The first of many, and how many more there are.
fn summary(failures: &[String]) -> String {
    match failures {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

/// Where the parts of a report come from.
#[derive(Clone, Debug)]
pub struct State {
    pub node_name: Arc<str>,
    pub source: watch::Receiver<SourceStatus>,
    pub datapath: watch::Receiver<datapath::Status>,
    pub programs: Arc<[datapath::ProgramSize]>,
    pub progress: watch::Receiver<Progress>,
}

impl State {
    /// The report of this moment.
    pub fn report(&self) -> Report {
        let progress = self.progress.borrow().clone();
        let datapath = self.datapath.borrow().clone();
        let mut tables = progress.tables;
        tables.age_seconds = progress.in_step.map(|(at, _)| clock::monotonic().since(at).as_secs_f64());
        let mut report = Report {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: self.node_name.to_string(),
            kernel: kernel(&datapath),
            source: source(&self.source.borrow(), Instant::now()),
            tables,
            datapath: DatapathReport::new(&datapath, &self.programs),
            ..Report::default()
        };
        report.health = health::judge(&report);
        report
    }

    /// What the health server judges by.
    pub fn look(&self) -> Look {
        let (beat, in_step) = {
            let progress = self.progress.borrow();
            (progress.beat, progress.in_step)
        };
        Look {
            report: Arc::new(self.report()),
            since_beat: clock::monotonic().since(beat),
            now: clock::wall(),
            last_in_step: in_step.map(|(_, wall)| wall),
        }
    }
}

fn kernel(datapath: &datapath::Status) -> KernelReport {
    let hows = datapath.links.iter().flat_map(|link| &link.programs).map(|attachment| attachment.how);
    let native_xdp = hows.into_iter().any(|how| how == datapath::How::Native);
    let features = [
        ("tcx", datapath.tc == datapath::TcMechanism::Tcx),
        ("xdp-native", native_xdp),
        ("cgroup-sockets", datapath.cgroup.is_some()),
    ];
    KernelReport {
        release: datapath::kernel_release(),
        features: features.map(|(name, used)| (name.to_owned(), used)).into(),
    }
}

fn source(status: &SourceStatus, now: Instant) -> SourceReport {
    let ages = status.last_proof.iter();
    let ages: BTreeMap<_, _> =
        ages.map(|(name, at)| ((*name).to_owned(), now.saturating_duration_since(*at).as_secs_f64())).collect();
    SourceReport {
        kind: status.kind.to_owned(),
        origin: status.origin.clone(),
        synced: status.synced,
        stale: status.last_error.clone(),
        revision: status.revision,
        age_seconds: ages,
        last_error: status.last_error.clone(),
        refusals: status.refusals.iter().map(ToString::to_string).collect(),
        notes: status.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pass(revision: u64, failures: &[&str]) -> apply::Report {
        let failures = failures.iter().map(|failure| (*failure).to_owned()).collect();
        apply::Report { revision, writes: 3, failures, ..apply::Report::default() }
    }

    #[test]
    fn the_first_clean_pass_makes_the_tables_synced() {
        let (now, wall) = (Monotonic::from_duration(Duration::from_secs(1)), Timestamp::UNIX_EPOCH);
        let mut progress = Progress::default();
        progress.took(&pass(0, &[]), now, wall);
        assert!(!progress.tables.synced, "no snapshot was there yet");
        progress.took(&pass(1, &["a", "b", "c"]), now, wall);
        assert!(!progress.tables.synced);
        assert_eq!(progress.tables.last_error.as_deref(), Some("a (and 2 more)"));
        progress.took(&pass(1, &[]), now, wall);
        assert!(progress.tables.synced && progress.tables.last_error.is_none());
        progress.took(&pass(2, &["full"]), now, wall);
        assert!(progress.tables.synced, "what was synced once holds");
        assert_eq!((progress.tables.writes, progress.tables.last_error.as_deref()), (12, Some("full")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_with_an_error_is_stale_and_ages() {
        let proven = Instant::now();
        tokio::time::advance(Duration::from_secs(61)).await;
        let status = SourceStatus {
            kind: "kube",
            synced: true,
            last_proof: [("services", proven)].into(),
            last_error: Some("connection refused".into()),
            ..SourceStatus::default()
        };
        let report = source(&status, Instant::now());
        assert_eq!(report.stale.as_deref(), Some("connection refused"));
        assert_eq!(report.age_seconds.get("services"), Some(&61.0));
    }
}
