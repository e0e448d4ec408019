//! Series of the pinned maps: outcomes, and services where there are not too many.

use lb_common::connect_times::bound_ns;
use lb_common::outcome::Outcome;

use super::{Distribution, Labels, MetricKind, Series, gauge, precise, series, truth};
use crate::observe::connect_time::sum_ns;
use crate::observe::contents::Contents;
use crate::observe::inventory::{FARES, Inventory, ServiceView};
use lb_model::Monotonic;

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
        Series {
            name: "ballast_service_connect_duration_seconds",
            help: "Seconds from the first SYN to a backend of the service to its SYN+ACK",
            kind: MetricKind::Histogram,
            points: Vec::new(),
            histograms: services
                .iter()
                .filter_map(|service| Some((service_labels(service), durations(service)?)))
                .collect(),
        },
    ]
}

/// The connect times of a service; `None`: nothing was measured.
fn durations(service: &ServiceView) -> Option<Distribution> {
    let times = &service.connect_times;
    service.connect_time?;
    let seconds = |ns: u64| precise(ns) / 1e9;
    let bound = |bucket| bound_ns(bucket).map_or(f64::INFINITY, seconds);
    let buckets = times.counts.iter().enumerate().map(|(bucket, count)| (bound(bucket), *count)).collect();
    Some(Distribution { sum: seconds(sum_ns(times)), buckets })
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
    use lb_common::abi::{ConnectKey, Health, StatKey, stat_kind};

    use super::*;
    use crate::observe::connect_time::times;
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
        assert!(durations_of(&all).is_empty(), "nothing was measured");
        assert_eq!(value(&of_states(&[("open", 3)]), "ballast_flows", "open"), Some(3.0));
        assert_eq!(value(&of_outcomes(&[(Outcome::Selected, 7)]), "ballast_outcomes", "selected"), Some(7.0));
    }

    fn durations_of(all: &[Series]) -> &[(Labels, Distribution)] {
        let found = all.iter().find(|series| series.name == "ballast_service_connect_duration_seconds");
        &found.expect("the histogram").histograms
    }

    #[test]
    fn the_connect_times_of_a_service_are_those_of_all_its_backends_that_are_and_were() {
        let mut contents = contents();
        let of = |kind: u8, id, us| (ConnectKey { id, kind: kind.into() }, times(&[(2, us)]));
        contents.connect_times = vec![
            of(stat_kind::BACKEND4, 1, 100),
            of(stat_kind::BACKEND6, 1, 100),
            // One that is gone, and those whose ids were given up.
            of(stat_kind::BACKEND4, 3, 3_000),
            of(stat_kind::SERVICE, 1, 2_000_000),
            // Of no backend.
            of(stat_kind::BACKEND4, 77, 100),
        ];
        let all = of_services(&contents, NOW);
        let [(labels, found)] = durations_of(&all) else { panic!("{:?}", durations_of(&all)) };
        assert!(labels.contains(&("service", "web".into())), "{labels:?}");
        let counted: Vec<_> = found.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [&(0.000_131_072, 4), &(0.004_194_304, 2), &(f64::INFINITY, 2)]);
        assert!((4.0..4.01).contains(&found.sum), "{}", found.sum);
    }
}
