//! Metrics that are read, not counted: what the maps and the agent's report say, as series. Pure.

use super::contents::Contents;
use super::inventory::{Inventory, ServiceView};
use super::report::Report;
use crate::model::Monotonic;

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The name is written without `_total`.
    Counter,
    Gauge,
}

/// A metric with all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub points: Vec<(Labels, f64)>,
}

/// Names and values.
pub type Labels = Vec<(&'static str, String)>;

fn series(name: &'static str, help: &'static str, kind: Kind, points: Vec<(Labels, f64)>) -> Series {
    Series { name, help, kind, points }
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Series {
    series(name, help, Kind::Gauge, vec![(Vec::new(), value)])
}

fn truth(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

/// Of the agent's report.
pub fn of_report(report: &Report) -> Vec<Series> {
    let ages = report.source.age_seconds.iter().map(|(resource, age)| (vec![("resource", resource.clone())], *age));
    let mut all = vec![
        gauge("ballast_healthy", "1 if /healthz says so", truth(report.health.healthz)),
        gauge("ballast_ready", "1 if /readyz says so", truth(report.health.readyz)),
        gauge("ballast_source_synced", "1 once services and slices have both been listed", truth(report.source.synced)),
        gauge(
            "ballast_source_stale",
            "1 if the source cannot prove that it is fresh",
            truth(report.source.stale.is_some()),
        ),
        series(
            "ballast_source_age_seconds",
            "Seconds since the last proof that a resource is known as it is",
            Kind::Gauge,
            ages.collect(),
        ),
        gauge("ballast_source_revision", "Number of the source's last snapshot", precise(report.source.revision)),
        gauge("ballast_tables_revision", "Number of the snapshot in the tables", precise(report.tables.revision)),
        gauge("ballast_tables_synced", "1 once the first snapshot is in the tables", truth(report.tables.synced)),
        gauge(
            "ballast_tables_behind",
            "1 while a change could not be written in full",
            truth(report.tables.last_error.is_some()),
        ),
        gauge(
            "ballast_refused_objects",
            "Objects, or parts of them, that are not served; status names them",
            count(report.source.refusals.len() + report.tables.refusals.len()),
        ),
        gauge(
            "ballast_attach_problems",
            "Places where a program could not be attached",
            count(report.datapath.problems.len()),
        ),
    ];
    let mut roles = std::collections::BTreeMap::<&str, usize>::new();
    for link in &report.datapath.links {
        *roles.entry(&link.role).or_default() += 1;
    }
    let roles = roles.into_iter().map(|(role, links)| (vec![("role", role.to_owned())], count(links)));
    all.push(series("ballast_links", "Interfaces with programs, by role", Kind::Gauge, roles.collect()));
    all
}

/// Of the pinned maps. Work grows with what the tables hold, but for flows, which are not looked at.
pub fn of_tables(contents: &Contents, now: Monotonic) -> Vec<Series> {
    let inventory = Inventory::new(contents, now);
    let totals = inventory.totals();
    let outcomes = contents.outcomes.iter();
    let outcomes = outcomes.map(|(outcome, packets)| (vec![("outcome", outcome.name().to_owned())], precise(*packets)));
    let states = totals.backends.by_state();
    let states = states.map(|(state, backends)| (vec![("state", state.to_owned())], precise(backends)));
    let services = inventory.services();
    let of_services = |value: fn(&ServiceView) -> u64| {
        services.iter().map(|service| (service_labels(service), precise(value(service)))).collect()
    };
    vec![
        series(
            "ballast_outcomes",
            "Packets and socket calls by what became of them",
            Kind::Counter,
            outcomes.collect(),
        ),
        gauge("ballast_services", "Service ports in the tables", precise(totals.services)),
        gauge("ballast_frontends", "Addresses with a port in the tables", precise(totals.frontends)),
        series("ballast_backends", "Backends in the tables, by state", Kind::Gauge, states.to_vec()),
        gauge(
            "ballast_overdue_backends",
            "Backends whose deadline struck, but which are still in the tables",
            precise(totals.overdue),
        ),
        series(
            "ballast_service_selections",
            "Flows that were given a backend of the service",
            Kind::Counter,
            of_services(|service| service.selected),
        ),
        series(
            "ballast_service_refusals",
            "Packets and connects refused because the service has no endpoint",
            Kind::Counter,
            of_services(|service| service.refused),
        ),
        series(
            "ballast_service_backends",
            "Backends of the service that take new flows",
            Kind::Gauge,
            of_services(|service| service.backends.iter().filter(|backend| backend.state == "active").count() as u64),
        ),
    ]
}

fn service_labels(service: &ServiceView) -> Labels {
    vec![
        ("namespace", service.namespace.clone()),
        ("service", service.name.clone()),
        ("port", service.port.to_string()),
        ("protocol", service.protocol.to_owned()),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in floats; exact up to 2^53")]
fn precise(number: u64) -> f64 {
    number as f64
}

fn count(number: usize) -> f64 {
    precise(number as u64)
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{StatKey, stat_kind};
    use lb_common::outcome::Outcome;

    use super::*;
    use crate::observe::inventory::tests::{NOW, contents};

    fn value(all: &[Series], name: &str, label: &str) -> Option<f64> {
        let found = all.iter().find(|series| series.name == name)?;
        found.points.iter().find(|(labels, _)| labels.iter().any(|(_, text)| text == label)).map(|(_, value)| *value)
    }

    #[test]
    fn tables_are_counted_by_service_state_and_outcome() {
        let mut contents = contents();
        contents.outcomes = vec![(Outcome::Selected, 7)];
        let key = |kind, outcome| StatKey { id: 1, kind, outcome: outcome as u8, pad: 0 };
        contents.stats = vec![
            (key(stat_kind::SERVICE, Outcome::Selected), 5),
            (key(stat_kind::SERVICE, Outcome::SocketConnected), 2),
            (key(stat_kind::BACKEND4, Outcome::Selected), 100),
        ];
        let all = of_tables(&contents, NOW);
        assert_eq!(value(&all, "ballast_outcomes", "selected"), Some(7.0));
        assert_eq!(value(&all, "ballast_backends", "draining"), Some(1.0));
        assert_eq!(value(&all, "ballast_service_selections", "web"), Some(7.0));
        assert_eq!(value(&all, "ballast_service_backends", "web"), Some(2.0));
        assert_eq!(value(&all, "ballast_service_backends", "empty"), Some(0.0));
    }

    #[test]
    fn a_stale_source_shows() {
        let mut report = Report::default();
        report.source.stale = Some("no answer".into());
        report.source.age_seconds.insert("services".into(), 61.5);
        let all = of_report(&report);
        assert_eq!(value(&all, "ballast_source_age_seconds", "services"), Some(61.5));
        let stale = all.iter().find(|series| series.name == "ballast_source_stale").expect("exported");
        assert_eq!(stale.points, [(Vec::new(), 1.0)]);
    }
}
