//! What is reported of the tables: to `status` and the metrics, in the log, and as Events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::clock;
use crate::agent::ejections::Ejections;
use crate::agent::endpoint_events::EndpointEvents;
use crate::agent::logged_problems::LoggedProblems;
use crate::agent::marks::Unhealthy;
use crate::agent::object_events::ObjectEvents;
use crate::agent::state::Progress;
use crate::observe::metrics::Metrics;
use crate::observe::report::{
    AuditReport, EndpointProblemReport, FillReport, HealthCheckReport, PassReport, ShortageReport, SweepReport,
};
use crate::observe::status::shortage;
use lb_model::{Monotonic, ObjectName, Snapshot};
use lb_plan::apply::Report;
use lb_source::SourceStatus;

/// Who learns of the tables, and what is in the log already.
pub(in crate::agent) struct Reports {
    progress: watch::Sender<Progress>,
    metrics: Metrics,
    object_events: ObjectEvents,
    endpoint_events: EndpointEvents,
    /// Failures and refusals of runs that were logged.
    run_problems: LoggedProblems,
    /// Failures of the sweep that were logged.
    sweep_problems: LoggedProblems,
    /// Health-check node ports that were logged as not open.
    port_problems: LoggedProblems,
    /// Service ports that were logged as short of room.
    shortages: LoggedProblems,
}

/// What the node holds besides what each run says, at a beat.
pub(super) struct Beat {
    pub fill: BTreeMap<String, FillReport>,
    pub held_ports: Vec<String>,
    pub unread_maintenance: Option<String>,
    pub shortages: Vec<ShortageReport>,
    /// Backends past their deadline.
    pub overdue: u64,
}

impl Reports {
    pub fn new(progress: watch::Sender<Progress>, metrics: Metrics, object_events: ObjectEvents) -> Self {
        let (run_problems, sweep_problems, port_problems, shortages) = Default::default();
        let endpoint_events = EndpointEvents::default();
        Self {
            progress,
            metrics,
            object_events,
            endpoint_events,
            run_problems,
            sweep_problems,
            port_problems,
            shortages,
        }
    }

    /// Whether the tables have held a snapshot since the start.
    pub(super) fn is_synced(&self) -> bool {
        self.progress.borrow().tables.synced
    }

    /// The source has something to say of objects and of the API.
    pub(super) fn source(&mut self, status: &SourceStatus) {
        self.object_events.of_source(&status.refusals);
        self.object_events.of_api(status, Instant::now());
    }

    /// A snapshot came that differs in so much.
    pub(super) fn snapshot(&self, snapshot: &Snapshot, changed: PassReport) {
        self.metrics.changed(changed, clock::wall().as_duration().as_secs_f64());
        let is_leaving = snapshot.node.as_ref().is_some_and(|node| node.is_leaving);
        self.progress.send_modify(|progress| progress.node_leaving = is_leaving);
    }

    /// Cluster IPs that the node answers at by itself.
    pub(super) fn local_cluster_ips(&self, local: &BTreeSet<IpAddr>) {
        self.progress.send_if_modified(|progress| {
            let changed = progress.tables.local_cluster_ips != *local;
            if changed {
                tracing::info!(addresses = ?local, "cluster IPs on a link of this node, which answers there by itself");
                progress.tables.local_cluster_ips.clone_from(local);
            }
            changed
        });
    }

    /// What is the matter with endpoints of service ports, and how often something is.
    pub(super) fn endpoint_problems(&mut self, (listed, count): (Vec<EndpointProblemReport>, u64)) {
        self.endpoint_events.set(&listed, Instant::now());
        self.progress.send_modify(|progress| {
            (progress.tables.endpoint_problems, progress.tables.endpoint_problem_count) = (listed, count);
        });
    }

    /// How long a run took, and the map system calls since the start. `whole`: it was the first of a snapshot.
    pub(super) fn run_time(&self, report: &Report, took: Duration, whole: bool, calls: u64) {
        self.metrics.synced(took, whole, report.writes, report.failed_writes);
        self.metrics.called(calls);
    }

    /// What a run did. `missing`: services that are not in the tables as the snapshot wants them; `timed`: when changes happened that are written.
    pub(super) fn run(
        &mut self,
        report: &Report,
        snapshot: Option<&Snapshot>,
        missing: &BTreeSet<ObjectName>,
        timed: Vec<Timestamp>,
        pending: PassReport,
    ) {
        let (now, wall) = (clock::monotonic(), clock::wall());
        for at in timed {
            self.metrics.programmed(wall.duration_since(at).as_secs_f64().max(0.0));
        }
        let (waits, fails) = (report.waiting > 0, report.failing > 0);
        if !waits && !fails {
            self.metrics.in_step(wall.as_duration().as_secs_f64());
        }
        self.progress.send_modify(|progress| {
            if let Some(snapshot) = snapshot {
                progress.programmed.took(&snapshot.accepted, missing, (waits, fails), now);
            }
            progress.beat = now;
            progress.took(report, now, wall);
            progress.tables.pending = pending;
        });
        self.object_events.of_tables(&report.refusals);
        let failures = report.failures.iter().map(|failure| format!("not written, will be tried again: {failure}"));
        let refusals = report.refusals.iter().map(|refusal| format!("refused: {refusal}"));
        self.run_problems.warn(failures.chain(refusals).collect());
    }

    /// What changes more slowly than the tables.
    pub(super) fn slow_parts(&mut self, beat: Beat) {
        self.object_events.of_endpoints(self.endpoint_events.lasting(Instant::now()));
        self.shortages.warn(beat.shortages.iter().map(shortage).collect());
        self.progress.send_modify(|progress| {
            progress.tables.unread_maintenance = beat.unread_maintenance;
            progress.tables.shortages = beat.shortages;
            progress.tables.fill = beat.fill;
            progress.tables.held_ports = beat.held_ports;
            progress.tables.drains.overdue = beat.overdue;
        });
    }

    /// The loop goes on.
    pub(super) fn beat(&self) {
        self.progress.send_modify(|progress| progress.beat = clock::monotonic());
    }

    /// A round of the sweep ended, or cannot go on.
    pub(super) fn sweep(&mut self, report: &SweepReport, now: Monotonic) {
        let failures = report.last_error.iter().map(|error| format!("the sweep cannot go on: {error}"));
        self.sweep_problems.warn(failures.chain(report.greedy_clients.iter().cloned()).collect());
        self.progress.send_modify(|progress| {
            progress.swept = Some(now);
            progress.tables.sweep.clone_from(report);
        });
    }

    /// An audit is over.
    pub(super) fn audit(&self, found: AuditReport, calls: u64) {
        for finding in &found.findings {
            tracing::warn!("the tables differed from the plan: {finding}");
        }
        if let Some(error) = &found.last_error {
            tracing::warn!("the audit could not be carried out in full: {error}");
        }
        self.metrics.called(calls);
        self.progress.send_modify(|progress| {
            progress.audited = Some(clock::monotonic());
            progress.tables.audit = Some(found);
        });
    }

    /// Backends that new flows avoid.
    pub(super) fn avoided(&mut self, ejections: &Ejections, unhealthy: &Unhealthy) {
        let count = ejections.known().count() as u64;
        self.progress.send_modify(|progress| progress.tables.ejections = count);
        self.object_events.of_avoided(ejections.known(), unhealthy);
    }

    /// The ports of the Services' health checks; `problems`: why some cannot be opened.
    pub(super) fn health_checks(&mut self, shown: BTreeMap<u16, HealthCheckReport>, problems: &BTreeMap<u16, String>) {
        if self.progress.borrow().tables.health_checks == shown {
            return;
        }
        self.port_problems.warn(problems.values().cloned().collect());
        let of_services = shown.values().filter_map(|check| Some((check.service.as_str(), check.problem.as_deref()?)));
        self.object_events.of_health_checks(of_services);
        self.progress.send_modify(|progress| progress.tables.health_checks = shown);
    }
}
