//! The tables, kept at the last snapshot and the node's own facts, and the report of each pass.

mod marked;
mod previewed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
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
use super::logged_problems::LoggedProblems;
use super::marks::Maintenance;
use super::neighbours::Neighbours;
use super::node_memory::NodeMemory;
use super::object_events::ObjectEvents;
use super::state::Progress;
use super::sweeper::Sweeper;
use super::written::Written;
use crate::apply::{KernelStore, Programmer, Report};
use crate::model::{Monotonic, Snapshot};
use crate::observe::health::BEAT;
use crate::observe::metrics::Metrics;
use crate::observe::report::{HealthCheckReport, PassReport};
use crate::plan::NodeFacts;
use crate::sockets::Destroyer;

/// The shortest pause between two passes that only time asks for: nothing is due more exactly than this.
const MIN_PAUSE: Duration = Duration::from_millis(20);

/// How many changes of endpoints are timed at once: more happen only while nothing can be written.
const PROGRAMMING_MAX: usize = 4096;

/// The tables and the report of them.
pub(super) struct Tables {
    pub programmer: Programmer<KernelStore>,
    pub progress: watch::Sender<Progress>,
    pub metrics: Metrics,
    pub logged_problems: LoggedProblems,
    /// Failures of the sweep that were logged.
    swept: LoggedProblems,
    pub facts: NodeFacts,
    pub health_checks: HealthChecks,
    auditor: Auditor,
    pub object_events: ObjectEvents,
    /// `None`: the source has no Node to remember.
    node_memory: Option<NodeMemory>,
    maintenance: Maintenance,
    sockets: Option<Destroyer>,
    sweeper: Sweeper,
    checks: watch::Sender<Option<Wanted>>,
    neighbours: Neighbours,
    held_ports: HeldPorts,
    ejections: Ejections,
    /// Backends became ejected, or are no longer, since the last report.
    avoided_differ: bool,
    /// What was planned last.
    snapshot: Option<Arc<Snapshot>>,
    /// Changes that are not written in full.
    pending: PassReport,
    /// When the changes of endpoints happened that are not written in full; at most [`PROGRAMMING_MAX`].
    programming: Vec<Timestamp>,
    /// What happened before is no matter of this agent's speed.
    started: Timestamp,
    /// When the report's slow parts are next brought up to date.
    next_beat: Instant,
    last_tick: Instant,
    written: Written,
    /// Whether connections are in other tables, too.
    is_moving: bool,
}

/// What runs beside the tables.
pub(super) struct Beside {
    pub health_checks: HealthChecks,
    pub auditor: Auditor,
    pub object_events: ObjectEvents,
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

impl Tables {
    pub fn new(
        programmer: Programmer<KernelStore>,
        progress: watch::Sender<Progress>,
        metrics: Metrics,
        facts: NodeFacts,
        beside: Beside,
    ) -> Self {
        let Beside { health_checks, auditor, object_events, node_memory, maintenance, sockets, .. } = beside;
        let Beside { sweeper, checks, neighbours, held_ports, .. } = beside;
        neighbours.update_published(programmer.programmed(), &facts.addresses);
        Self {
            programmer,
            progress,
            metrics,
            logged_problems: LoggedProblems::default(),
            swept: LoggedProblems::default(),
            facts,
            health_checks,
            auditor,
            object_events,
            node_memory,
            maintenance,
            sockets,
            sweeper,
            checks,
            neighbours,
            held_ports,
            ejections: Ejections::default(),
            avoided_differ: false,
            snapshot: None,
            pending: PassReport::default(),
            programming: Vec::new(),
            started: clock::wall(),
            next_beat: Instant::now(),
            last_tick: Instant::now(),
            written: Written::default(),
            is_moving: false,
        }
    }

    /// When something is due: a deadline, a retry or the next beat. News that come meanwhile do not put it off.
    pub fn due(&self) -> Instant {
        let now = Instant::now();
        let timed = self.programmer.next_tick().into_iter().chain((!self.is_moving).then(|| self.sweeper.due()));
        let timed = timed.min().map(|at| now + at.since(clock::monotonic()).min(BEAT));
        let audit = self.auditor.due(now);
        let pause = if self.written.waits() { Duration::ZERO } else { MIN_PAUSE };
        timed.into_iter().chain(audit).fold(self.next_beat, Instant::min).max(self.last_tick + pause)
    }

    /// A new snapshot came.
    pub fn take(&mut self, snapshot: Arc<Snapshot>) {
        let changed = self.snapshot.as_ref().map_or_else(|| whole(&snapshot), |before| difference(before, &snapshot));
        self.metrics.changed(changed, clock::wall().as_duration().as_secs_f64());
        self.pending.services += changed.services;
        self.pending.slices += changed.slices;
        if let Some(before) = &self.snapshot {
            let times = happened(before, &snapshot).filter(|at| *at >= self.started);
            self.programming.extend(times.take(PROGRAMMING_MAX - self.programming.len()));
        }
        if let (Some(memory), Some(node)) = (&mut self.node_memory, &snapshot.node) {
            memory.keep(node);
        }
        let leaving = snapshot.node.as_ref().is_some_and(|node| node.is_leaving);
        self.progress.send_modify(|progress| progress.node_leaving = leaving);
        self.snapshot = Some(snapshot);
        self.sync();
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

    /// Whether the tables do not hold the first snapshot yet.
    fn is_first(&self) -> bool {
        !self.progress.borrow().tables.synced
    }

    fn sync(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        let started = Instant::now();
        let first = self.is_first();
        // Writing maps blocks, but never for long: changes go in batches, and a run handles a bounded part of them.
        let report = self.programmer.sync(&snapshot, &self.facts, clock::monotonic());
        self.written.log(&report, first);
        self.report_local_cluster_ips();
        self.neighbours.update_nodes(&snapshot);
        self.note(&report, started.elapsed(), first);
        self.open_health_checks();
        self.want_checks();
    }

    /// Says which cluster IPs the node answers at by itself.
    fn report_local_cluster_ips(&self) {
        let local = self.programmer.local_cluster_ips();
        self.progress.send_if_modified(|progress| {
            let changed = progress.tables.local_cluster_ips != *local;
            if changed {
                tracing::info!(addresses = ?local, "cluster IPs on a link of this node, which answers there by itself");
                progress.tables.local_cluster_ips.clone_from(local);
            }
            changed
        });
    }

    /// Says which endpoints are to be checked.
    fn want_checks(&self) {
        let wanted = checks::wanted(self.programmer.checked(), self.programmer.desired());
        self.checks.send_if_modified(|known| {
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
            let first = self.is_first();
            let report = self.programmer.tick(clock::monotonic());
            if self.written.waits() || report.waiting > 0 {
                self.written.log(&report, first);
            } else if report.writes > 0 {
                let (draining, gone) = (report.backends.draining, report.backends.gone);
                tracing::debug!(draining, gone, writes = report.writes, "deadlines, retries and releases done");
            }
            self.note(&report, started.elapsed(), first);
        }
        if self.next_beat <= started {
            self.next_beat = started + BEAT;
            if self.maintenance.read_again() {
                self.take_maintenance();
            }
            self.open_health_checks();
            self.neighbours.update_published(self.programmer.programmed(), &self.facts.addresses);
            let (programmed, sweeper) = (self.programmer.programmed(), &self.sweeper);
            self.avoided_differ |=
                self.ejections.review(programmed, |id, generation| sweeper.is_ejected(id, generation), started);
            if std::mem::take(&mut self.avoided_differ) {
                self.tell_avoided();
            }
            let (fill, overdue) = (fill(self.programmer.programmed()), self.overdue());
            let held_ports = self.held_ports.update(self.programmer.desired());
            let unread_maintenance = self.maintenance.problem();
            self.progress.send_modify(|progress| {
                progress.tables.unread_maintenance = unread_maintenance;
                progress.tables.fill = fill;
                progress.tables.held_ports = held_ports;
                progress.tables.drains.overdue = overdue;
            });
        }
        self.audit(started);
        self.sweep();
        self.progress.send_modify(|progress| progress.beat = clock::monotonic());
    }

    /// A part of the sweep, if one is due.
    fn sweep(&mut self) {
        if self.is_moving {
            return;
        }
        let now = clock::monotonic();
        let Some(report) = self.sweeper.step(&mut self.programmer, now) else { return };
        let failures = report.last_error.iter().map(|error| format!("the sweep cannot go on: {error}"));
        self.swept.warn(failures.chain(report.greedy_clients.iter().cloned()).collect());
        self.progress.send_modify(|progress| {
            progress.swept = Some(now);
            progress.tables.sweep.clone_from(report);
        });
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
        let deadlines = self.programmer.programmed().backends().deadlines().iter();
        deadlines.take_while(|(tenths, _)| Monotonic::from_tenths(*tenths) <= now).count() as u64
    }

    fn note(&mut self, report: &Report, took: Duration, whole: bool) {
        if whole {
            self.neighbours.update_published(self.programmer.programmed(), &self.facts.addresses);
        }
        if report.waiting == 0 {
            self.maintenance.answer(self.programmer.programmed());
        }
        if let Some(sockets) = self.sockets.as_ref().filter(|_| report.writes > 0 || whole) {
            sockets.check_soon();
        }
        self.metrics.synced(took, whole, report.writes, report.failed_writes);
        self.metrics.called(self.programmer.store().calls());
        let (now, wall) = (clock::monotonic(), clock::wall());
        if report.failed_writes == 0 && report.waiting == 0 {
            // What failed in an earlier pass is timed no longer: it may never be written.
            for at in self.programming.drain(..) {
                self.metrics.programmed(wall.duration_since(at).as_secs_f64().max(0.0));
            }
        }
        if report.failing == 0 && report.waiting == 0 {
            self.pending = PassReport::default();
            self.metrics.in_step(wall.as_duration().as_secs_f64());
        }
        let pending = self.pending;
        let (missing, state) = (self.programmer.unprogrammed(), (report.waiting > 0, report.failing > 0));
        self.progress.send_modify(|progress| {
            if let Some(snapshot) = &self.snapshot {
                progress.programmed.took(&snapshot.accepted, &missing, state, now);
            }
            progress.beat = now;
            progress.took(report, now, wall);
            progress.tables.pending = pending;
        });
        self.object_events.of_tables(&report.refusals);
        let failures = report.failures.iter().map(|failure| format!("not written, will be tried again: {failure}"));
        self.logged_problems
            .warn(failures.chain(report.refusals.iter().map(|refusal| format!("refused: {refusal}"))).collect());
    }

    /// Also what could not be opened before.
    fn open_health_checks(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        let wanted = self.programmer.desired().health_checks.clone();
        let wanted = &self.health_checks.with_held(wanted, |service| self.programmer.holds(service));
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
            let logged_problems =
                shown.values().filter_map(|check| Some((check.service.as_str(), check.problem.as_deref()?)));
            self.object_events.of_health_checks(logged_problems);
            self.progress.send_modify(|progress| progress.tables.health_checks = shown);
        }
    }
}
