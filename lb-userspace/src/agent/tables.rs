//! The tables, kept at the last snapshot and the node's own facts, and the report of each pass.

mod marked;
mod previewed;
mod reports;
mod unwritten;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::auditor::{Auditor, Request};
use super::changes::{difference, fill, happened, whole};
use super::checks::{self, Wanted};
use super::clock;
use super::ejections::Ejections;
use super::facts;
use super::health_checks::HealthChecks;
use super::held_ports::HeldPorts;
use super::marks::Maintenance;
use super::neighbours::Neighbours;
use super::node_memory::NodeMemory;
use super::shortages::Shortages;
use super::sweeper::Sweeper;
use super::written::Written;
use crate::observe::health::BEAT;
use crate::observe::report::{EndpointProblemReport, HealthCheckReport};
use lb_datapath::sockets::Destroyer;
use lb_model::{Monotonic, ObjectName, Snapshot};
use lb_plan::apply::{KernelStore, Programmer, Report};
use lb_plan::plan::NodeFacts;
use lb_source::SourceStatus;
use reports::Beat;
pub(super) use reports::Reports;
use unwritten::Unwritten;

/// The shortest pause between two passes that only time asks for: nothing is due more exactly than this.
const MIN_PAUSE: Duration = Duration::from_millis(20);

/// Plans, writes and sweeps the tables, and reports on them.
pub(super) struct TableOwner {
    programmer: Programmer<KernelStore>,
    facts: NodeFacts,
    /// What was planned last.
    snapshot: Option<Arc<Snapshot>>,
    unwritten: Unwritten,
    written: Written,
    ejections: Ejections,
    shortages: Shortages,
    reports: Reports,
    beside: Beside,
    /// When the report's slow parts are next brought up to date.
    next_beat: Instant,
    last_tick: Instant,
    /// Whether connections are in other tables, too.
    is_moving: bool,
}

/// What runs beside the tables.
pub(super) struct Beside {
    pub health_checks: HealthChecks,
    pub auditor: Auditor,
    /// `None`: the source has no Node to remember.
    pub node_memory: Option<NodeMemory>,
    pub maintenance: Maintenance,
    pub sockets: Option<Destroyer>,
    pub sweeper: Sweeper,
    /// What is to be checked, once it is planned.
    pub checks: watch::Sender<Option<Wanted>>,
    /// Tells the data path of the cluster's networks.
    pub neighbours: Neighbours,
    pub held_ports: HeldPorts,
}

impl TableOwner {
    pub fn new(programmer: Programmer<KernelStore>, facts: NodeFacts, reports: Reports, beside: Beside) -> Self {
        beside.neighbours.update_published(programmer.programmed(), &facts.addresses);
        Self {
            programmer,
            facts,
            snapshot: None,
            unwritten: Unwritten::new(clock::wall()),
            written: Written::default(),
            ejections: Ejections::default(),
            shortages: Shortages::default(),
            reports,
            beside,
            next_beat: Instant::now(),
            last_tick: Instant::now(),
            is_moving: false,
        }
    }

    /// When something is due: a deadline, a retry or the next beat. News that come meanwhile do not put it off.
    pub fn due(&self) -> Instant {
        let now = Instant::now();
        let sweep = (!self.is_moving).then(|| self.beside.sweeper.due());
        let timed = self.programmer.next_tick().into_iter().chain(sweep);
        let timed = timed.min().map(|at| now + at.since(clock::monotonic()).min(BEAT));
        let beside = self.beside.auditor.due(now).into_iter().chain(self.beside.maintenance.due());
        let pause = if self.written.waits() { Duration::ZERO } else { MIN_PAUSE };
        timed.into_iter().chain(beside).fold(self.next_beat, Instant::min).max(self.last_tick + pause)
    }

    /// A new snapshot came.
    pub fn take(&mut self, snapshot: Arc<Snapshot>) {
        let changed = self.snapshot.as_ref().map_or_else(|| whole(&snapshot), |before| difference(before, &snapshot));
        self.reports.snapshot(&snapshot, changed);
        let times = self.snapshot.iter().flat_map(|before| happened(before, &snapshot));
        self.unwritten.add(changed, times);
        if let (Some(memory), Some(node)) = (&mut self.beside.node_memory, &snapshot.node) {
            memory.keep(node);
        }
        self.snapshot = Some(snapshot);
        self.sync();
    }

    /// The source has something to say of objects and of the API.
    pub fn note_source(&mut self, status: &SourceStatus) {
        self.reports.source(status);
    }

    /// The node's addresses changed.
    pub fn readdress(&mut self, addresses: &BTreeSet<IpAddr>, absent: &BTreeSet<IpAddr>) {
        let mtu = facts::mtu();
        if self.facts.addresses != *addresses || self.facts.absent != *absent || self.facts.mtu != mtu {
            tracing::info!(addresses = ?addresses, ?mtu, "the node's addresses, and what its widest links take");
            self.facts.mtu = mtu;
            self.facts.addresses.clone_from(addresses);
            self.facts.absent.clone_from(absent);
            self.facts.networks = facts::networks();
            self.sync();
        }
    }

    /// Whether connections are in other tables, too: then nothing is swept, as what these hold is not seen.
    pub fn note_moving(&mut self, is_moving: bool) {
        self.is_moving = is_moving;
    }

    fn sync(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        let started = Instant::now();
        // The tables do not hold the first snapshot yet.
        let first = !self.reports.is_synced();
        // Writing maps blocks, but never for long: changes go in batches, and a run handles a bounded part of them.
        let report = self.programmer.sync(&snapshot, &self.facts, clock::monotonic());
        self.written.log(&report, first);
        self.reports.local_cluster_ips(self.programmer.local_cluster_ips());
        if let Some(troubled) = self.programmer.new_problems() {
            self.reports.endpoint_problems(EndpointProblemReport::list(troubled));
        }
        self.beside.neighbours.update_nodes(&snapshot);
        self.note(&report, started.elapsed(), first);
        self.open_health_checks();
        self.want_checks();
    }

    /// Says which endpoints are to be checked.
    fn want_checks(&self) {
        let wanted = checks::wanted(self.programmer.checked(), self.programmer.desired());
        self.beside.checks.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&wanted);
            *known = Some(wanted);
            changed
        });
    }

    /// What time asks for.
    pub fn tick(&mut self) {
        let started = Instant::now();
        self.last_tick = started;
        let due = self.programmer.next_tick().is_some_and(|at| at <= clock::monotonic());
        if due {
            let first = !self.reports.is_synced();
            let report = self.programmer.tick(clock::monotonic());
            if self.written.waits() || report.waiting > 0 {
                self.written.log(&report, first);
            } else if report.writes > 0 {
                let (draining, gone) = (report.backends.draining, report.backends.gone);
                tracing::debug!(draining, gone, writes = report.writes, "deadlines, retries and releases done");
            }
            self.note(&report, started.elapsed(), first);
        }
        self.beside.maintenance.answer(&self.programmer, started);
        if self.next_beat <= started {
            self.next_beat = started + BEAT;
            self.beat(started);
        }
        if let Some(found) = self.beside.auditor.step(&mut self.programmer, started) {
            self.reports.audit(found, self.programmer.store().calls());
        }
        self.sweep();
        self.reports.beat();
    }

    /// Parts of the report that are renewed less often than the tables change.
    fn beat(&mut self, now: Instant) {
        if self.beside.maintenance.read_again() {
            self.take_maintenance();
        }
        self.open_health_checks();
        self.update_published();
        let sweeper = &self.beside.sweeper;
        let is_ejected = |id, generation| sweeper.is_ejected(id, generation);
        self.ejections.review(self.programmer.programmed(), is_ejected, now);
        if self.ejections.take_news() {
            self.report_avoided();
        }
        self.reports.slow_parts(Beat {
            fill: fill(self.programmer.programmed()),
            overdue: self.overdue(),
            held_ports: self.beside.held_ports.update(self.programmer.desired()),
            unread_maintenance: self.beside.maintenance.problem(),
            shortages: self.shortages.of_late(now),
        });
    }

    /// A part of the sweep, if one is due.
    fn sweep(&mut self) {
        if self.is_moving {
            return;
        }
        let now = clock::monotonic();
        if let Some(report) = self.beside.sweeper.step(&mut self.programmer, now) {
            self.reports.sweep(report, now);
        }
    }

    /// Somebody wants an audit now.
    pub fn request_audit(&mut self, request: Request) {
        self.beside.auditor.request(request);
    }

    /// Backends past their deadline: the next pass takes them out, if it can.
    fn overdue(&self) -> u64 {
        let now = clock::monotonic();
        let deadlines = self.programmer.programmed().backends().deadlines().iter();
        deadlines.take_while(|(tenths, _)| Monotonic::from_tenths(*tenths) <= now).count() as u64
    }

    fn update_published(&self) {
        self.beside.neighbours.update_published(self.programmer.programmed(), &self.facts.addresses);
    }

    fn note(&mut self, report: &Report, took: Duration, whole: bool) {
        if whole {
            self.update_published();
        }
        self.beside.maintenance.answer(&self.programmer, Instant::now());
        if let Some(sockets) = self.beside.sockets.as_ref().filter(|_| report.writes > 0 || whole) {
            sockets.check_soon();
        }
        self.reports.run_time(report, took, whole, self.programmer.store().calls());
        let timed = self.unwritten.take_timed(report);
        let (missing, pending) = (self.programmer.unprogrammed(), self.unwritten.counts());
        self.reports.run(report, self.snapshot.as_deref(), &missing, timed, pending);
    }

    /// Opens the listeners of health checks that are wanted now, or could not be opened before.
    fn open_health_checks(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        // What cannot be read was there before.
        let age =
            |name: &ObjectName| snapshot.services.get(name).and_then(|service| service.created_s).unwrap_or(i64::MIN);
        let health_checks = &mut self.beside.health_checks;
        let wanted = self.programmer.desired().health_checks.clone();
        let wanted = &health_checks.with_held(wanted, |service| self.programmer.holds(service));
        health_checks.set(wanted, age);
        let problems = health_checks.problems();
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
        self.reports.health_checks(shown, problems);
    }
}
