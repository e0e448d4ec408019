//! What the parts of the running agent know, put together into one report whenever somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::accepted::Programmed;
use super::{clock, sockets};
use crate::observe::health::{Judgement, Thresholds};
use crate::observe::report::{
    AdoptionReport, BackendTotals, ChecksReport, DatapathReport, KernelReport, Report, ResourceReport, SourceReport,
    TablesReport,
};
use lb_datapath::sockets::Totals;
use lb_model::Monotonic;
use lb_plan::apply;
use lb_plan::plan::DrainEnds;
use lb_source::{PATIENT, SourceStatus};

/// What the runtime did last.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// When the runtime turned last.
    pub beat: Monotonic,
    pub tables: TablesReport,
    /// When the tables were last in step with the source.
    pub in_step: Option<(Monotonic, Timestamp)>,
    /// Since when one and the same change could not be written: the one that has failed longest.
    pub behind_since: Option<Monotonic>,
    /// Since when the tables cannot be written at all.
    pub unwritable_since: Option<Monotonic>,
    /// When the drain that goes on longest began.
    pub oldest_drain: Option<Monotonic>,
    /// When the last audit ended.
    pub audited: Option<Monotonic>,
    /// When the last round of the sweep ended.
    pub swept: Option<Monotonic>,
    pub node_leaving: bool,
    /// What is wrong with the API server's address; `None`: nothing is known to be.
    pub api_address: Option<String>,
    /// The objects in the tables.
    pub programmed: Programmed,
}

impl Progress {
    /// Takes in a pass over the tables.
    pub fn took(&mut self, report: &apply::Report, now: Monotonic, wall: Timestamp) {
        let failed = report.failing > 0;
        self.tables.writes += report.writes as u64;
        self.tables.revision = report.revision;
        self.tables.refusals = report.refusals.iter().map(ToString::to_string).collect();
        self.tables.refused = report.refusals.total() as u64;
        self.tables.failing = report.failing as u64;
        self.tables.last_error = summary(&report.failures, report.failing);
        if let Some(writable) = &report.writable {
            self.tables.unwritable = writable.clone().err();
            self.unwritable_since = writable.is_err().then(|| self.unwritable_since.unwrap_or(now));
        }
        self.tables.services = report.services as u64;
        self.tables.backends = totals(&report.backends);
        self.behind_since = report.failing_since;
        self.oldest_drain = report.oldest_drain.map(|age| now.before(age));
        self.tables.drains.ends = ends(report.drain_ends);
        if report.revision != 0 && self.unwritable_since.is_none() && report.waiting == 0 {
            // Whatever became of single subjects, which are tried again.
            self.tables.synced = true;
        }
        if report.revision != 0 && !failed && report.waiting == 0 {
            self.in_step = Some((now, wall));
        }
    }

    /// The report of a moment.
    pub(super) fn report(&self, now: Monotonic) -> TablesReport {
        let age = |since: Monotonic| now.since(since).as_secs_f64();
        let mut tables = self.tables.clone();
        tables.age_seconds = self.in_step.map(|(at, _)| age(at));
        tables.behind_seconds = self.behind_since.map(age);
        tables.lag_seconds = self.programmed.lag_seconds(now);
        tables.unwritable_seconds = self.unwritable_since.map(age);
        tables.drains.oldest_seconds = self.oldest_drain.map(age);
        tables.sweep.age_seconds = self.swept.map(age);
        if let (Some(audit), Some(at)) = (&mut tables.audit, self.audited) {
            audit.age_seconds = age(at);
        }
        tables
    }
}

fn totals(counts: &apply::BackendCounts) -> BackendTotals {
    BackendTotals {
        active: counts.active as u64,
        unready: counts.unready as u64,
        terminating: counts.terminating as u64,
        draining: counts.draining as u64,
        maintenance: counts.maintenance as u64,
        gone: counts.gone as u64,
    }
}

fn ends(ends: DrainEnds) -> BTreeMap<String, u64> {
    let DrainEnds { empty, deadline, returned, replaced } = ends;
    let ends = [("empty", empty), ("deadline", deadline), ("returned", returned), ("replaced", replaced)];
    ends.map(|(end, count)| (end.to_owned(), count)).into()
}

/// The first of many, and how many more there are.
fn summary(failures: &[String], count: usize) -> Option<String> {
    let first = failures.first()?;
    Some(if count > 1 { format!("{first} (and {} more)", count - 1) } else { first.clone() })
}

/// Where the parts of a report come from.
#[derive(Clone, Debug)]
pub struct State {
    pub node_name: Arc<str>,
    pub started: Monotonic,
    pub thresholds: Thresholds,
    /// A resource of the API without a proof for longer than this is stale, whatever else is said.
    pub proof_limit: Duration,
    pub source: watch::Receiver<SourceStatus>,
    pub datapath: watch::Receiver<lb_datapath::Status>,
    pub progress: watch::Receiver<Progress>,
    /// `None`: no sockets are translated.
    pub sockets: Option<Totals>,
    pub checks: watch::Receiver<ChecksReport>,
    pub adoption: watch::Receiver<AdoptionReport>,
}

impl State {
    /// The report of this moment.
    pub fn report(&self) -> Report {
        let now = clock::monotonic();
        let progress = self.progress.borrow().clone();
        let datapath = self.datapath.borrow().clone();
        let mut report = Report {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: self.node_name.to_string(),
            node_leaving: progress.node_leaving,
            uptime_seconds: now.since(self.started).as_secs_f64(),
            kernel: kernel(&datapath),
            source: SourceReport {
                api_address_problem: progress.api_address.clone(),
                ..source(&self.source.borrow(), self.proof_limit, Instant::now())
            },
            tables: progress.report(now),
            datapath: DatapathReport::new(&datapath),
            sockets: self.sockets.as_ref().map(|totals| sockets::report(totals.read())).unwrap_or_default(),
            checks: self.checks.borrow().clone(),
            adoption: self.adoption.borrow().clone(),
            ..Report::default()
        };
        report.health = self.judgement(&report, progress.beat).report();
        report
    }

    /// What is wrong at this moment.
    pub fn judge(&self) -> Judgement {
        let report = self.report();
        self.judgement(&report, self.progress.borrow().beat)
    }

    fn judgement(&self, report: &Report, beat: Monotonic) -> Judgement {
        Judgement::of(report, clock::monotonic().since(beat), &self.thresholds)
    }

    /// When the tables were last in step with the source.
    pub fn last_in_step(&self) -> Option<Timestamp> {
        self.progress.borrow().in_step.map(|(_, wall)| wall)
    }

    /// Whether any part has news since [`Self::mark_seen`].
    pub fn has_changed(&self) -> bool {
        // A part that is gone has none.
        let news = [
            self.source.has_changed(),
            self.datapath.has_changed(),
            self.progress.has_changed(),
            self.checks.has_changed(),
        ];
        news.into_iter().any(|changed| changed.unwrap_or(false))
    }

    pub fn mark_seen(&mut self) {
        self.source.mark_unchanged();
        self.datapath.mark_unchanged();
        self.progress.mark_unchanged();
        self.checks.mark_unchanged();
    }
}

fn kernel(datapath: &lb_datapath::Status) -> KernelReport {
    let hows = datapath.links.iter().flat_map(|link| &link.programs).map(|attachment| attachment.how);
    let native_xdp = hows.into_iter().any(|how| how == lb_datapath::How::Native);
    let features = [
        ("tcx", datapath.tc == lb_datapath::TcMechanism::Tcx),
        ("xdp-native", native_xdp),
        ("cgroup-sockets", datapath.cgroup.is_some()),
    ];
    KernelReport {
        release: lb_datapath::kernel_release(),
        features: features.map(|(name, used)| (name.to_owned(), used)).into(),
        lacks: datapath.missing_features.iter().map(ToString::to_string).collect(),
    }
}

fn source(status: &SourceStatus, proof_limit: Duration, now: Instant) -> SourceReport {
    let seconds = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
    let ages: BTreeMap<_, _> = status.last_proof.iter().map(|(name, at)| ((*name).to_owned(), seconds(*at))).collect();
    SourceReport {
        kind: status.kind.to_owned(),
        origin: status.origin.clone(),
        synced: status.synced,
        stale: stale(status, proof_limit, now),
        revision: status.revision,
        age_seconds: ages,
        api_reachable: status.api.map(|reach| reach.reachable),
        api_seconds: status.api.map(|reach| seconds(reach.since)),
        wedged_seconds: status.wedged_since().map(seconds),
        resources: status
            .resources
            .iter()
            .map(|(name, resource)| ((*name).to_owned(), ResourceReport::new(resource, now)))
            .collect(),
        last_error: status.last_error.clone(),
        missing_node: status.missing_node.clone(),
        refusals: status.refusals.iter().map(ToString::to_string).collect(),
        refused: status.refusals.total() as u64,
        notes: status.notes.clone(),
        ..SourceReport::default()
    }
}

/// Why the source cannot be taken as fresh. What is known for certain comes first; last, that nothing at all was proven for long.
fn stale(status: &SourceStatus, proof_limit: Duration, now: Instant) -> Option<String> {
    let wedged = status.resources.iter().find_map(|(name, resource)| {
        let seconds = now.saturating_duration_since(resource.wedged_since?).as_secs();
        Some(format!("the watch of {name} is dead for {seconds} s, though the API answers other requests"))
    });
    let lost = status.api.filter(|reach| !reach.reachable).map(|reach| {
        let seconds = now.saturating_duration_since(reach.since).as_secs();
        format!("the API does not answer for {seconds} s")
    });
    let reason = match (lost, &status.last_error) {
        (Some(lost), Some(error)) => Some(format!("{lost}: {error}")),
        (lost, error) => lost.or_else(|| error.clone()),
    };
    // Of what no endpoint waits for, only an error that does not go by itself counts.
    let denied = || {
        status.resources.iter().find_map(|(name, resource)| {
            let failing = resource.failing.filter(|failing| failing.error.is_denied())?;
            let seconds = now.saturating_duration_since(failing.since).as_secs();
            let (code, error) = (failing.error.as_str(), resource.last_error.as_deref().unwrap_or_default());
            Some(format!("the API answers {code} for {name} for {seconds} s: {error}"))
        })
    };
    let unproven = || {
        // A file is true as long as it can be read, however old it is.
        let watched = status.resources.keys().filter(|name| !PATIENT.contains(name));
        let mut old = watched.filter_map(|name| {
            let age = now.saturating_duration_since(*status.last_proof.get(name)?);
            (age > proof_limit).then(|| format!("{name} are not proven for {} s", age.as_secs()))
        });
        old.next()
    };
    wedged.or(reason).or_else(denied).or_else(unproven)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_source::{ApiError, Failing, Reach, ResourceStatus, SERVICE_CIDRS};

    fn pass(revision: u64, failures: &[&str]) -> apply::Report {
        let (failing, failures) = (failures.len(), failures.iter().map(|failure| (*failure).to_owned()).collect());
        apply::Report { revision, writes: 3, failures, failing, writable: Some(Ok(())), ..apply::Report::default() }
    }

    /// A pass in which nothing could be written.
    fn failed(revision: u64) -> apply::Report {
        apply::Report { writes: 0, writable: Some(Err("EPERM".to_owned())), ..pass(revision, &["EPERM"]) }
    }

    #[test]
    fn the_first_pass_over_tables_that_can_be_written_makes_them_synced() {
        let (now, wall) = (Monotonic::from_duration(Duration::from_secs(1)), Timestamp::UNIX_EPOCH);
        let mut progress = Progress::default();
        progress.took(&pass(0, &[]), now, wall);
        assert!(!progress.tables.synced, "no snapshot was there yet");
        progress.took(&failed(1), now, wall);
        assert!(!progress.tables.synced);
        progress.took(&apply::Report { waiting: 1, ..pass(1, &[]) }, now, wall);
        assert!(!progress.tables.synced && progress.in_step.is_none(), "the rest comes with the next pass");
        progress.took(&pass(1, &["a", "b", "c"]), now, wall);
        assert!(progress.tables.synced, "all others are served");
        assert_eq!(progress.tables.last_error.as_deref(), Some("a (and 2 more)"));
        progress.took(&pass(1, &[]), now, wall);
        assert!(progress.tables.synced && progress.tables.last_error.is_none());
        progress.took(&pass(2, &["full"]), now, wall);
        assert!(progress.tables.synced, "what was synced once holds");
        assert_eq!((progress.tables.writes, progress.tables.last_error.as_deref()), (15, Some("full")));
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
        let report = source(&status, Duration::from_secs(75), Instant::now());
        assert_eq!(report.stale.as_deref(), Some("connection refused"));
        assert_eq!(report.age_seconds.get("services"), Some(&61.0));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_and_wedged_are_told_apart_and_silence_of_any_kind_is_stale_in_the_end() {
        let then = Instant::now();
        let resource = |wedged_since| ResourceStatus { wedged_since, ..ResourceStatus::default() };
        let status = |wedged: Option<Instant>, reachable| SourceStatus {
            kind: "kube",
            synced: true,
            last_proof: [("services", then)].into(),
            resources: [("services", resource(wedged))].into(),
            api: Some(Reach { reachable, since: then }),
            ..SourceStatus::default()
        };
        tokio::time::advance(Duration::from_secs(10)).await;
        let (now, limit) = (Instant::now(), Duration::from_secs(75));
        assert_eq!(source(&status(None, true), limit, now).stale, None);
        let lost = source(&status(None, false), limit, now);
        assert!(
            lost.stale.is_some_and(|reason| reason.contains("does not answer for 10 s"))
                && lost.wedged_seconds.is_none()
        );
        let wedged = source(&status(Some(then), true), limit, now);
        assert!(wedged.stale.is_some_and(|reason| reason.contains("watch of services is dead")));
        assert_eq!(wedged.wedged_seconds, Some(10.0));
        tokio::time::advance(Duration::from_secs(66)).await;
        let silent = source(&status(None, true), limit, Instant::now());
        assert!(silent.stale.is_some_and(|reason| reason.contains("services are not proven for 76 s")));
    }

    #[tokio::test(start_paused = true)]
    async fn denied_rights_make_the_source_stale_whatever_they_are_for() {
        let since = Instant::now();
        let stale = |error| {
            let failing = Some(Failing { error, since });
            let resource = ResourceStatus { failing, last_error: Some("no".into()), ..ResourceStatus::default() };
            let resources = [(SERVICE_CIDRS, resource)].into();
            let status = SourceStatus { kind: "kube", synced: true, resources, ..SourceStatus::default() };
            source(&status, Duration::from_secs(75), Instant::now()).stale
        };
        tokio::time::advance(Duration::from_secs(3)).await;
        let denied = stale(ApiError::Forbidden);
        assert_eq!(denied.as_deref(), Some("the API answers 403 for servicecidrs for 3 s: no"));
        assert!(stale(ApiError::Unauthorized).is_some());
        assert_eq!((stale(ApiError::Busy), stale(ApiError::Server)), (None, None), "it goes by itself");
    }

    #[test]
    fn being_behind_is_timed_from_the_first_failure_to_the_first_clean_pass() {
        let at = |seconds| Monotonic::from_duration(Duration::from_secs(seconds));
        let fails = apply::Report { failing_since: Some(at(10)), ..pass(1, &["EPERM"]) };
        let mut progress = Progress::default();
        progress.took(&fails, at(10), Timestamp::UNIX_EPOCH);
        progress.took(&fails, at(20), Timestamp::UNIX_EPOCH);
        assert_eq!(progress.report(at(30)).behind_seconds, Some(20.0));
        progress.took(&pass(1, &[]), at(31), Timestamp::UNIX_EPOCH);
        assert_eq!(progress.report(at(40)).behind_seconds, None);
        assert_eq!(progress.report(at(40)).age_seconds, Some(9.0));
    }
    /// A pass without a result of its own changes nothing: retries of one subject are seconds apart.
    #[test]
    fn tables_that_cannot_be_written_are_timed_until_a_write_succeeds() {
        let at = |seconds| Monotonic::from_duration(Duration::from_secs(seconds));
        let mut progress = Progress::default();
        let failing_since = Some(at(10));
        progress.took(&failed(1), at(10), Timestamp::UNIX_EPOCH);
        progress.took(&apply::Report { writable: None, ..failed(1) }, at(15), Timestamp::UNIX_EPOCH);
        progress.took(&failed(1), at(20), Timestamp::UNIX_EPOCH);
        let report = progress.report(at(30));
        assert_eq!((report.unwritable_seconds, report.unwritable.as_deref()), (Some(20.0), Some("EPERM")));
        let one = apply::Report { failing_since, ..pass(1, &["one subject"]) };
        progress.took(&one, at(31), Timestamp::UNIX_EPOCH);
        let report = progress.report(at(40));
        assert_eq!((report.unwritable_seconds, report.behind_seconds), (None, Some(30.0)));
    }
}
