//! Series of the agent's report: health, freshness, tables, audits, links.

use std::collections::BTreeMap;

use super::{Labels, MetricKind, Series, count, gauge, optional, precise, series, truth};
use crate::observe::report::{
    AuditReport, ChecksReport, DatapathReport, Report, ResourceReport, SocketsReport, SourceReport, SweepReport,
    TablesReport,
};

/// Everything that the report has in numbers.
pub fn of_report(report: &Report) -> Vec<Series> {
    let mut all = vec![
        gauge("ballast_healthy", "1 if /healthz says so", truth(report.health.healthz)),
        gauge("ballast_ready", "1 if /readyz says so", truth(report.health.readyz)),
        gauge("ballast_node_leaving", "1 if the node is being deleted", truth(report.node_leaving)),
        gauge(
            "ballast_refused_objects",
            "Objects, or parts of them, that are not served; status names them",
            precise(report.source.refused + report.tables.refused),
        ),
        gauge(
            "ballast_attach_problems",
            "Places where a program could not be attached",
            count(report.datapath.problems.len()),
        ),
    ];
    all.extend(of_outside(&report.datapath));
    all.extend(of_source(&report.source));
    all.extend(of_following(&report.source.resources));
    all.extend(of_tables(&report.tables));
    all.extend(of_sweep(&report.tables.sweep));
    all.extend(report.tables.audit.as_ref().map(of_audit).unwrap_or_default());
    all.extend(of_sockets(&report.sockets));
    all.extend(of_checks(&report.checks));
    let mut roles = BTreeMap::<&str, usize>::new();
    for link in &report.datapath.links {
        *roles.entry(&link.role).or_default() += 1;
    }
    let roles = roles.into_iter().map(|(role, links)| (vec![("role", role.to_owned())], count(links)));
    all.push(series("ballast_links", "Interfaces with programs, by role", MetricKind::Gauge, roles.collect()));
    all
}

/// How external clients are served.
fn of_outside(datapath: &DatapathReport) -> Vec<Series> {
    let mut served = BTreeMap::<&str, usize>::new();
    for by in datapath.links.iter().filter_map(|link| link.served_by.as_deref()) {
        *served.entry(by).or_default() += 1;
    }
    let served = served.into_iter().map(|(by, links)| (vec![("by", by.to_owned())], count(links)));
    vec![
        gauge(
            "ballast_warnings",
            "Settings of the node that keep external clients from being served; status names them",
            count(datapath.warnings.len()),
        ),
        gauge(
            "ballast_external_link_known",
            "0 if no link is known to lead outside, and each that may is taken for one; status says why",
            truth(datapath.no_external_link.is_none()),
        ),
        gauge("ballast_source_ports", "Size of the SNAT port range", f64::from(datapath.source_ports)),
        series(
            "ballast_fast_path",
            "1 if the fast path is open for new flows: between two pods of the node, or between a pod and another node",
            MetricKind::Gauge,
            [("pods", datapath.fast_path.open), ("nodes", datapath.fast_path.open_to_nodes)]
                .map(|(between, open)| (vec![("between", between.to_owned())], truth(open)))
                .into(),
        ),
        series(
            "ballast_external_links",
            "External links, by how they are served: native or generic XDP, or tc",
            MetricKind::Gauge,
            served.collect(),
        ),
    ]
}

fn of_sockets(sockets: &SocketsReport) -> Vec<Series> {
    let destroyed = sockets.destroyed.iter();
    let destroyed = destroyed.map(|(protocol, count)| (vec![("protocol", protocol.clone())], precise(*count)));
    vec![
        series(
            "ballast_sockets_destroyed",
            "Sockets of host processes that were destroyed because their backend is gone",
            MetricKind::Counter,
            destroyed.collect(),
        ),
        series(
            "ballast_socket_failures",
            "Attempts to find or destroy such sockets that failed",
            MetricKind::Counter,
            vec![(Vec::new(), precise(sockets.failures))],
        ),
    ]
}

fn of_source(source: &SourceReport) -> Vec<Series> {
    let ages = source.age_seconds.iter().map(|(resource, age)| (vec![("resource", resource.clone())], *age));
    vec![
        gauge("ballast_source_synced", "1 once services and slices have both been listed", truth(source.synced)),
        gauge("ballast_source_stale", "1 if the source cannot prove that it is fresh", truth(source.stale.is_some())),
        gauge(
            "ballast_source_wedged",
            "1 while a watch is dead though the API answers other requests",
            truth(source.wedged_seconds.is_some()),
        ),
        optional(
            "ballast_source_api_reachable",
            "1 if the API answers requests on new connections",
            source.api_reachable.map(truth),
        ),
        series(
            "ballast_source_age_seconds",
            "Seconds since the last proof that a resource is known as it is",
            MetricKind::Gauge,
            ages.collect(),
        ),
        gauge("ballast_source_revision", "Number of the source's last snapshot", precise(source.revision)),
    ]
}

fn of_following(resources: &BTreeMap<String, ResourceReport>) -> Vec<Series> {
    // (label, value) of one counter, for each resource.
    let counters = |label: &'static str, of: fn(&ResourceReport) -> &BTreeMap<String, u64>| {
        let points = resources.iter().flat_map(|(resource, report)| {
            of(report)
                .iter()
                .map(|(value, total)| (vec![("resource", resource.clone()), (label, value.clone())], precise(*total)))
        });
        points.collect::<Vec<(Labels, f64)>>()
    };
    let plain = |of: fn(&ResourceReport) -> u64| {
        resources.iter().map(|(resource, report)| (vec![("resource", resource.clone())], precise(of(report)))).collect()
    };
    vec![
        series("ballast_source_objects", "Objects held", MetricKind::Gauge, plain(|resource| resource.objects)),
        series(
            "ballast_source_watch_restarts",
            "Watches that were replaced before their time",
            MetricKind::Counter,
            counters("reason", |resource| &resource.watch_restarts),
        ),
        series(
            "ballast_source_relists",
            "Complete lists that were asked for",
            MetricKind::Counter,
            counters("reason", |resource| &resource.relists),
        ),
        series(
            "ballast_source_probes",
            "Probes of a silent watch",
            MetricKind::Counter,
            counters("result", |resource| &resource.probes),
        ),
        series(
            "ballast_source_errors",
            "Answers of the API that were errors, by HTTP status",
            MetricKind::Counter,
            counters("code", |resource| &resource.errors),
        ),
        series(
            "ballast_source_compares",
            "Comparisons of what is held with a complete list",
            MetricKind::Counter,
            plain(|resource| resource.compares),
        ),
        series(
            "ballast_source_differences",
            "Objects that a comparison found to differ, and repaired",
            MetricKind::Counter,
            counters("kind", |resource| &resource.differences),
        ),
    ]
}

fn of_tables(tables: &TablesReport) -> Vec<Series> {
    let states =
        tables.backends.by_state().map(|(state, backends)| (vec![("state", state.to_owned())], precise(backends)));
    let fill = |of: fn(&crate::observe::report::FillReport) -> u64| {
        tables.fill.iter().map(|(map, fill)| (vec![("map", map.clone())], precise(of(fill)))).collect()
    };
    vec![
        gauge("ballast_tables_revision", "Number of the snapshot in the tables", precise(tables.revision)),
        gauge("ballast_tables_synced", "1 once the first snapshot is in the tables", truth(tables.synced)),
        gauge(
            "ballast_tables_behind",
            "1 while a change could not be written in full",
            truth(tables.last_error.is_some()),
        ),
        gauge(
            "ballast_tables_behind_seconds",
            "How long a change could not be written; 0: all are",
            tables.behind_seconds.unwrap_or(0.0),
        ),
        gauge(
            "ballast_tables_lag_seconds",
            "How long the tables have lacked something of the accepted objects, failed or not yet written; 0: nothing",
            tables.lag_seconds,
        ),
        gauge(
            "ballast_unwritten_subjects",
            "Services, addresses and ids whose write failed; each is tried again by itself",
            precise(tables.failing),
        ),
        gauge(
            "ballast_tables_unwritable_seconds",
            "How long no table could be written; 0: they can be",
            tables.unwritable_seconds.unwrap_or(0.0),
        ),
        gauge(
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "Changes of services that are not in the tables yet",
            precise(tables.pending.services),
        ),
        gauge(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "Changes of endpoint slices that are not in the tables yet",
            precise(tables.pending.slices),
        ),
        gauge("ballast_services", "Service ports in the tables", precise(tables.services)),
        series("ballast_backends", "Backends in the tables, by state", MetricKind::Gauge, states.to_vec()),
        gauge("ballast_ejected_backends", "Backends that are ejected: new flows avoid them", precise(tables.ejections)),
        gauge(
            "ballast_oldest_drain_seconds",
            "How long the drain that goes on longest has gone on; 0: nothing drains",
            tables.drains.oldest_seconds.unwrap_or(0.0),
        ),
        gauge(
            "ballast_overdue_backends",
            "Backends whose eviction deadline has passed, but which are still in the tables",
            precise(tables.drains.overdue),
        ),
        series(
            "ballast_drains_ended",
            "Drains that ended, by how: empty, deadline, returned, replaced",
            MetricKind::Counter,
            tables.drains.ends.iter().map(|(end, count)| (vec![("end", end.clone())], precise(*count))).collect(),
        ),
        series("ballast_map_entries", "Entries of a map", MetricKind::Gauge, fill(|fill| fill.entries)),
        series(
            "ballast_map_capacity",
            "Entries that a map has room for",
            MetricKind::Gauge,
            fill(|fill| fill.capacity),
        ),
        gauge(
            "ballast_health_check_ports",
            "Health-check node ports that are wanted",
            count(tables.health_checks.len()),
        ),
        gauge(
            "ballast_health_check_problems",
            "Health-check node ports that could not be opened",
            count(tables.health_checks.values().filter(|check| check.problem.is_some()).count()),
        ),
        gauge("ballast_held_ports", "Sockets of this node that hold a node port", count(tables.held_ports.len())),
    ]
}

fn of_checks(checks: &ChecksReport) -> Vec<Series> {
    vec![
        gauge("ballast_check_endpoints", "Endpoints that are checked actively", precise(checks.endpoints)),
        gauge("ballast_check_failing", "Those of them that are unhealthy: their checks fail", precise(checks.failing)),
        gauge("ballast_checks_under_way", "Active checks that have begun and not ended", precise(checks.under_way)),
        gauge(
            "ballast_check_late_seconds",
            "How long the most overdue check has waited, in seconds",
            checks.late_seconds,
        ),
    ]
}

fn of_audit(audit: &AuditReport) -> Vec<Series> {
    let counters = |of: &BTreeMap<String, BTreeMap<String, u64>>| {
        let points = of.iter().flat_map(|(table, kinds)| {
            kinds.iter().map(|(kind, total)| (vec![("table", table.clone()), ("kind", kind.clone())], precise(*total)))
        });
        points.collect::<Vec<(Labels, f64)>>()
    };
    vec![
        gauge("ballast_audit_age_seconds", "Seconds since the last audit of the tables ended", audit.age_seconds),
        gauge("ballast_audit_duration_seconds", "How long the last audit took", audit.took_seconds),
        gauge("ballast_audit_findings", "What the last audit found to differ from the plan", precise(audit.found)),
        gauge(
            "ballast_audit_failed",
            "1 if the last audit could not be carried out in full",
            truth(audit.last_error.is_some()),
        ),
        series("ballast_audits", "Audits of the tables", MetricKind::Counter, vec![(Vec::new(), precise(audit.runs))]),
        series("ballast_drift", "Entries that differed from the plan", MetricKind::Counter, counters(&audit.drift)),
        series("ballast_repairs", "Entries that an audit repaired", MetricKind::Counter, counters(&audit.repaired)),
    ]
}

fn of_sweep(sweep: &SweepReport) -> Vec<Series> {
    let swept = sweep.swept.iter().map(|(map, total)| (vec![("map", map.clone())], precise(*total)));
    let counter = |name, help, total| series(name, help, MetricKind::Counter, vec![(Vec::new(), precise(total))]);
    vec![
        optional(
            "ballast_sweep_age_seconds",
            "Seconds since the last round over the programs' tables ended",
            sweep.age_seconds,
        ),
        gauge("ballast_sweep_duration_seconds", "How long the last round took", sweep.took_seconds),
        gauge("ballast_sweep_failed", "1 if the last round could not go on", truth(sweep.last_error.is_some())),
        counter("ballast_sweeps", "Rounds over the programs' tables", sweep.rounds),
        counter("ballast_sweep_looked", "Entries that rounds looked at", sweep.looked),
        series(
            "ballast_swept",
            "Entries taken out of the programs' tables because they were over, by map",
            MetricKind::Counter,
            swept.collect(),
        ),
        counter(
            "ballast_cut_flows",
            "TCP flows cut off because the frontend that they came by was gone for the longest drain",
            sweep.cut,
        ),
        counter(
            "ballast_resets_sent",
            "RSTs sent to the ends of connections whose backend or frontend is gone",
            sweep.resets,
        ),
        gauge(
            "ballast_masqueraded_flows",
            "Answered flows whose backend sees an address of this node in the client's place",
            precise(sweep.masqueraded),
        ),
        series(
            "ballast_largest_client_connections",
            "Established connections of the client that has most, by family; `ballast status` names it",
            MetricKind::Gauge,
            sweep
                .largest_clients
                .iter()
                .map(|(family, it)| (vec![("family", family.clone())], precise(it.connections)))
                .collect(),
        ),
        counter(
            "ballast_recounted_client_shares",
            "Connections by which the programs' counts of clients were corrected",
            sweep.recounted_shares,
        ),
        counter(
            "ballast_recounted_connections",
            "Connections by which the programs' counts of their backends were corrected",
            sweep.recounted,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::FillReport;
    use crate::observe::series::value;

    fn plain(all: &[Series], name: &str) -> Option<f64> {
        all.iter().find(|series| series.name == name)?.points.first().map(|(_, value)| *value)
    }

    #[test]
    fn a_stale_source_shows_and_so_does_a_dead_watch() {
        let mut report = Report::default();
        report.source.stale = Some("no answer".into());
        report.source.api_reachable = Some(false);
        report.source.age_seconds.insert("services".into(), 61.5);
        let resource = ResourceReport { relists: [("gone".into(), 2)].into(), ..ResourceReport::default() };
        report.source.resources.insert("services".into(), resource);
        let all = of_report(&report);
        assert_eq!(value(&all, "ballast_source_age_seconds", "services"), Some(61.5));
        assert_eq!(value(&all, "ballast_source_relists", "gone"), Some(2.0));
        assert_eq!(plain(&all, "ballast_source_stale"), Some(1.0));
        assert_eq!(plain(&all, "ballast_source_wedged"), Some(0.0));
        assert_eq!(plain(&all, "ballast_source_api_reachable"), Some(0.0));
    }

    #[test]
    fn what_is_not_known_has_no_value() {
        let all = of_report(&Report::default());
        assert_eq!(plain(&all, "ballast_source_api_reachable"), None, "a file is asked of no API");
        assert!(all.iter().all(|series| series.name != "ballast_audits"), "audits are off");
    }

    #[test]
    fn tables_show_how_full_they_are_and_what_audits_found() {
        let mut report = Report::default();
        report.tables.fill.insert("services4".into(), FillReport { entries: 3, capacity: 8 });
        let drift: BTreeMap<_, _> = [("services4".to_owned(), [("edited".to_owned(), 2)].into())].into();
        report.tables.audit = Some(AuditReport { runs: 4, drift, ..AuditReport::default() });
        let all = of_report(&report);
        assert_eq!(value(&all, "ballast_map_entries", "services4"), Some(3.0));
        assert_eq!(value(&all, "ballast_map_capacity", "services4"), Some(8.0));
        assert_eq!(value(&all, "ballast_drift", "edited"), Some(2.0));
        assert_eq!(plain(&all, "ballast_audits"), Some(4.0));
    }
}
