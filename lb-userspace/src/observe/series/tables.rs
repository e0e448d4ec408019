//! Series of the pinned maps: outcomes, and services where there are not too many.

use lb_common::outcome::Outcome;

use super::{Labels, MetricKind, Series, gauge, precise, series, truth};
use crate::model::Monotonic;
use crate::observe::contents::Contents;
use crate::observe::inventory::{FARES, Inventory, ServiceView};

/// Packets and socket calls, by what became of them.
pub fn of_outcomes(outcomes: &[(Outcome, u64)]) -> Vec<Series> {
    let points =
        outcomes.iter().map(|(outcome, packets)| (vec![("outcome", outcome.name().to_owned())], precise(*packets)));
    vec![series(
        "ballast_outcomes",
        "Packets and socket calls by what became of them",
        MetricKind::Counter,
        points.collect(),
    )]
}

/// Whether there are too many services for series of their own.
pub fn of_omitted(omitted: bool) -> Vec<Series> {
    let help = "1 if there are too many services for series of their own";
    vec![gauge("ballast_service_series_omitted", help, truth(omitted))]
}

/// Some series for each service port. Work grows with what the tables hold, but for flows, which are not looked at.
pub fn of_services(contents: &Contents, now: Monotonic) -> Vec<Series> {
    let services = Inventory::new(contents, now).services();
    let points = |value: fn(&ServiceView) -> u64| {
        services.iter().map(|service| (service_labels(service), precise(value(service)))).collect()
    };
    vec![
        series(
            "ballast_service_selections",
            "Flows that were given a backend of the service",
            MetricKind::Counter,
            points(|service| service.selected),
        ),
        series(
            "ballast_service_refusals",
            "Packets and connects refused because the service has no endpoint",
            MetricKind::Counter,
            points(|service| service.refused),
        ),
        series(
            "ballast_service_backends",
            "Backends of the service that take new flows",
            MetricKind::Gauge,
            points(|service| service.backends.iter().filter(|backend| backend.state == "active").count() as u64),
        ),
        series(
            "ballast_service_ejected",
            "Backends of the service that are ejected",
            MetricKind::Gauge,
            points(|service| service.backends.iter().filter(|backend| backend.ejected).count() as u64),
        ),
        series(
            "ballast_service_detours",
            "What was done about backends of the service that do not answer, by outcome",
            MetricKind::Counter,
            services.iter().flat_map(detours).collect(),
        ),
    ]
}

/// Those that ever happened: most services have none.
fn detours(service: &ServiceView) -> impl Iterator<Item = (Labels, f64)> {
    let total = |index: usize| service.backends.iter().map(|backend| backend.fares[index]).sum::<u64>();
    let counted = FARES.into_iter().enumerate().map(move |(index, outcome)| (outcome, total(index)));
    counted.filter(|(_, count)| *count > 0).map(|(outcome, count)| {
        let mut labels = service_labels(service);
        labels.push(("outcome", outcome.name().to_owned()));
        (labels, precise(count))
    })
}

/// Connections by their state.
pub fn of_states(states: &[(&'static str, u64)]) -> Vec<Series> {
    let points = states.iter().map(|(state, flows)| (vec![("state", (*state).to_owned())], precise(*flows)));
    let help = "Connections in the tables by state, those that have expired and are not swept yet included";
    vec![series("ballast_flows", help, MetricKind::Gauge, points.collect())]
}

fn service_labels(service: &ServiceView) -> Labels {
    vec![
        ("namespace", service.namespace.clone()),
        ("service", service.name.clone()),
        ("port", service.port.to_string()),
        ("protocol", service.protocol.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{Health, StatKey, stat_kind};

    use super::*;
    use crate::observe::inventory::tests::{NOW, contents};
    use crate::observe::series::value;

    #[test]
    fn tables_are_counted_by_service_and_outcome() {
        let mut contents = contents();
        let key = |kind, outcome| StatKey { id: 1, kind, outcome: outcome as u8, pad: 0 };
        contents.stats = vec![
            (key(stat_kind::SERVICE, Outcome::Selected), 5),
            (key(stat_kind::SERVICE, Outcome::SocketConnected), 2),
            (key(stat_kind::BACKEND4, Outcome::Selected), 100),
            (key(stat_kind::BACKEND4, Outcome::Retried), 4),
        ];
        contents.v4.health = vec![Health::default(), Health { generation: 0x10001, ejected_s: 7, ..Health::default() }];
        let all = of_services(&contents, NOW);
        assert_eq!(value(&all, "ballast_service_selections", "web"), Some(7.0));
        assert_eq!(value(&all, "ballast_service_backends", "web"), Some(2.0));
        assert_eq!(value(&all, "ballast_service_backends", "empty"), Some(0.0));
        assert_eq!(value(&all, "ballast_service_ejected", "web"), Some(1.0));
        assert_eq!(value(&all, "ballast_service_detours", "retried"), Some(4.0));
        assert_eq!(value(&all, "ballast_service_detours", "suppressed_refusal"), None);
        assert_eq!(value(&of_states(&[("open", 3)]), "ballast_flows", "open"), Some(3.0));
        assert_eq!(value(&of_outcomes(&[(Outcome::Selected, 7)]), "ballast_outcomes", "selected"), Some(7.0));
    }
}
