//! The tables, kept at the last snapshot and the node's own facts, and everything that is told of each pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::auditor::{Auditor, Request};
use super::clock;
use super::health_checks::HealthChecks;
use super::state::Progress;
use super::told::Told;
use crate::apply::{KernelStore, Programmer, Report};
use crate::model::{Monotonic, Snapshot};
use crate::observe::health::BEAT;
use crate::observe::metrics::Metrics;
use crate::observe::report::{FillReport, HealthCheckReport, PassReport};
use crate::plan::{Book, NodeFacts};

/// The shortest pause between two passes that only time asks for: nothing is due more exactly than this.
const MIN_PAUSE: Duration = Duration::from_millis(20);

/// The tables and what is told of them.
pub(super) struct Tables {
    pub programmer: Programmer<KernelStore>,
    pub progress: watch::Sender<Progress>,
    pub metrics: Metrics,
    pub told: Told,
    pub facts: NodeFacts,
    pub health_checks: HealthChecks,
    auditor: Auditor,
    /// What was planned last.
    snapshot: Option<Arc<Snapshot>>,
    /// Changes that are not written in full.
    pending: PassReport,
    /// When the report's slow parts are next brought up to date.
    next_beat: Instant,
    last_tick: Instant,
}

impl Tables {
    pub fn new(
        programmer: Programmer<KernelStore>,
        progress: watch::Sender<Progress>,
        metrics: Metrics,
        facts: NodeFacts,
        health_checks: HealthChecks,
        auditor: Auditor,
    ) -> Self {
        Self {
            programmer,
            progress,
            metrics,
            told: Told::default(),
            facts,
            health_checks,
            auditor,
            snapshot: None,
            pending: PassReport::default(),
            next_beat: Instant::now(),
            last_tick: Instant::now(),
        }
    }

    /// When something is due: a deadline, a retry or the next beat. News that come meanwhile do not put it off.
    pub fn due(&self) -> Instant {
        let now = Instant::now();
        let timed = self.programmer.next_tick().map(|at| now + at.since(clock::monotonic()).min(BEAT));
        let audit = self.auditor.due(now);
        timed.into_iter().chain(audit).fold(self.next_beat, Instant::min).max(self.last_tick + MIN_PAUSE)
    }

    /// A new snapshot came.
    pub fn take(&mut self, snapshot: Arc<Snapshot>) {
        let changed = self.snapshot.as_ref().map_or_else(|| whole(&snapshot), |before| difference(before, &snapshot));
        self.metrics.changed(changed, clock::wall().as_duration().as_secs_f64());
        self.pending.services += changed.services;
        self.pending.slices += changed.slices;
        let leaving = snapshot.node.as_ref().is_some_and(|node| node.is_leaving);
        self.progress.send_modify(|progress| progress.node_leaving = leaving);
        self.snapshot = Some(snapshot);
        self.sync();
    }

    /// The node's addresses changed.
    pub fn readdress(&mut self, addresses: &BTreeSet<IpAddr>) {
        if self.facts.addresses != *addresses {
            tracing::info!(addresses = ?addresses, "the node's addresses");
            self.facts.addresses.clone_from(addresses);
            self.sync();
        }
    }

    fn sync(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        let started = Instant::now();
        let first = !self.progress.borrow().tables.synced;
        // Writing maps blocks, but never for long: changes go in batches.
        let report = self.programmer.sync(&snapshot, &self.facts, clock::monotonic());
        let (revision, writes) = (report.revision, report.writes);
        if writes > 0 || first {
            let (services, backends, draining) = (report.services, report.backends.active, report.backends.draining);
            tracing::info!(revision, services, backends, draining, writes, "in the tables");
        } else {
            tracing::debug!(revision, "nothing to write");
        }
        self.note(&report, started.elapsed(), first);
        self.open_health_checks();
    }

    /// What time asks for.
    pub fn tick(&mut self) {
        let started = Instant::now();
        self.last_tick = started;
        let due = self.programmer.next_tick().is_some_and(|at| at <= clock::monotonic());
        if due {
            let report = self.programmer.tick(clock::monotonic());
            if report.writes > 0 {
                let (draining, gone) = (report.backends.draining, report.backends.gone);
                tracing::debug!(draining, gone, writes = report.writes, "deadlines, retries and releases done");
            }
            self.note(&report, started.elapsed(), false);
        }
        if self.next_beat <= started {
            self.next_beat = started + BEAT;
            self.open_health_checks();
            let (fill, overdue) = (fill(self.programmer.book()), self.overdue());
            self.progress.send_modify(|progress| {
                progress.tables.fill = fill;
                progress.tables.drains.overdue = overdue;
            });
        }
        self.audit(started);
        self.progress.send_modify(|progress| progress.beat = clock::monotonic());
    }

    /// Somebody wants an audit now.
    pub fn request_audit(&mut self, request: Request) {
        self.auditor.request(request);
    }

    /// A step of the audit that runs, or is due.
    fn audit(&mut self, now: Instant) {
        let Some(found) = self.auditor.step(&mut self.programmer, now) else { return };
        for finding in &found.findings {
            tracing::warn!("the tables differed from the plan: {finding}");
        }
        if let Some(error) = &found.last_error {
            tracing::warn!("the audit could not be carried out in full: {error}");
        }
        self.metrics.called(self.programmer.store().calls());
        self.progress.send_modify(|progress| {
            progress.audited = Some(clock::monotonic());
            progress.tables.audit = Some(found);
        });
    }

    /// Backends past their deadline: the next pass takes them out, if it can.
    fn overdue(&self) -> u64 {
        let now = clock::monotonic();
        let deadlines = self.programmer.book().deadlines.iter();
        deadlines.take_while(|(tenths, _)| Monotonic::from_tenths(*tenths) <= now).count() as u64
    }

    fn note(&mut self, report: &Report, took: Duration, whole: bool) {
        let failed = !report.failures.is_empty();
        self.metrics.synced(took, whole, report.writes, report.failures.len());
        self.metrics.called(self.programmer.store().calls());
        let (now, wall) = (clock::monotonic(), clock::wall());
        if !failed {
            self.pending = PassReport::default();
            self.metrics.in_step(wall.as_duration().as_secs_f64());
        }
        let pending = self.pending;
        self.progress.send_modify(|progress| {
            progress.beat = now;
            progress.took(report, now, wall);
            progress.tables.pending = pending;
        });
        let failures = report.failures.iter().map(|failure| format!("not written, will be tried again: {failure}"));
        self.told.warn(failures.chain(report.refusals.iter().map(|refusal| format!("refused: {refusal}"))).collect());
    }

    /// Also what could not be opened before.
    fn open_health_checks(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        let wanted = &self.programmer.desired().health_checks;
        self.health_checks.set(wanted);
        let problems = self.health_checks.problems();
        let shown: BTreeMap<u16, HealthCheckReport> = wanted
            .iter()
            .map(|(port, check)| {
                let report = HealthCheckReport {
                    service: check.service.to_string(),
                    local_endpoints: check.local_ready as u64,
                    problem: problems.get(port).cloned(),
                };
                (*port, report)
            })
            .collect();
        if self.progress.borrow().tables.health_checks != shown {
            for problem in problems.values() {
                tracing::warn!("{problem}");
            }
            self.progress.send_modify(|progress| progress.tables.health_checks = shown);
        }
    }
}

fn whole(snapshot: &Snapshot) -> PassReport {
    PassReport { services: snapshot.services.len() as u64, slices: snapshot.slices.len() as u64 }
}

/// Costs what differs.
fn difference(before: &Snapshot, after: &Snapshot) -> PassReport {
    PassReport {
        services: before.services.diff(&after.services).count() as u64,
        slices: before.slices.diff(&after.slices).count() as u64,
    }
}

/// How full the tables are, by what was written to them.
fn fill(book: &Book) -> BTreeMap<String, FillReport> {
    use crate::model::Family::{V4, V6};
    use lb_common::abi::map_name as name;
    let capacities = &book.capacities;
    let backends = |family| book.backends.keys().filter(|id| id.family == family).count() as u64;
    let slots: usize = book.ranges.values().map(Vec::len).sum();
    let tables = [
        (name::SERVICES4, u64::from(book.frontend_count(V4)), capacities.frontends4),
        (name::SERVICES6, u64::from(book.frontend_count(V6)), capacities.frontends6),
        (name::BACKENDS4, backends(V4), capacities.backends4),
        (name::BACKENDS6, backends(V6), capacities.backends6),
        (name::SLOTS, slots as u64, capacities.slots),
        (name::NAMES, book.services.values().filter(|service| service.name.is_some()).count() as u64, capacities.names),
        (name::SOURCES4, u64::from(book.source_count(V4)), capacities.sources4),
        (name::SOURCES6, u64::from(book.source_count(V6)), capacities.sources6),
        (name::VIPS4, u64::from(book.vip_count(V4)), capacities.vips4),
        (name::VIPS6, u64::from(book.vip_count(V6)), capacities.vips6),
    ];
    let report = |(name, entries, capacity): (&str, u64, u32)| {
        (name.to_owned(), FillReport { entries, capacity: capacity.into() })
    };
    tables.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Capacities;

    #[test]
    fn empty_tables_are_empty_and_every_one_is_told() {
        let fill = fill(&Book::new(Capacities::all(7)));
        assert_eq!(fill.len(), 10);
        assert!(fill.values().all(|fill| *fill == FillReport { entries: 0, capacity: 7 }));
    }

    #[test]
    fn a_snapshot_differs_by_what_changed() {
        assert_eq!(difference(&Snapshot::default(), &Snapshot::default()), PassReport::default());
    }
}
