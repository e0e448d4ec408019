//! Every metric is in the book, and what names metrics names those that there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::*;
use crate::model::Monotonic;
use crate::observe::api_requests::ApiRequests;
use crate::observe::contents::Contents;
use crate::observe::metrics::Metrics;
use crate::observe::report::{AuditReport, Report};
use crate::observe::series;

/// All metrics that `/metrics` can have, by name.
fn all() -> BTreeMap<String, Description> {
    let mut report = Report::default();
    report.tables.audit = Some(AuditReport::default());
    let mut read = series::of_report(&report);
    read.extend(series::of_process(None));
    read.extend(series::of_states(&[]));
    read.extend(series::of_omitted(false));
    read.extend(series::of_outcomes(&[]));
    read.extend(series::of_services(&Contents::default(), Monotonic::default()));
    let counted = Metrics::new(&ApiRequests::default(), Vec::new);
    let described = read.iter().map(Series::description).chain(counted.descriptions().iter().cloned());
    let mut all = BTreeMap::new();
    for description in described {
        let name = description.name.clone();
        assert!(all.insert(name.clone(), description).is_none(), "{name} is there twice");
    }
    all
}

#[test]
fn the_reference_has_every_metric() {
    let mut page = "# Metrics\n\nAll metrics of `/metrics`. [Operations](../operations.md#metrics) says what to do with them. A histogram's series end in \
        `_bucket`, `_sum` and\n`_count`.\n\n| metric | type | meaning |\n|---|---|---|\n"
        .to_owned();
    for Description { name, kind, help } in all().into_values() {
        writeln!(page, "| `{name}` | {kind} | {} |", help.replace('|', "\\|")).expect("a string takes all");
    }
    lb_pages::is_current("metrics.md", &page);
}

/// What kubernetes-mixin's dashboard of kube-proxy and its alerts on clients ask for, by type, but for `up` and `go_goroutines`.
const MIXIN: [(&str, &str); 6] = [
    ("kubeproxy_network_programming_duration_seconds", "histogram"),
    ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram"),
    ("process_cpu_seconds_total", "counter"),
    ("process_resident_memory_bytes", "gauge"),
    ("rest_client_request_duration_seconds", "histogram"),
    ("rest_client_requests_total", "counter"),
];

#[test]
fn kubernetes_mixin_finds_its_metrics() {
    let all = all();
    for (name, kind) in MIXIN {
        assert_eq!(all.get(name).map(|metric| metric.kind.as_str()), Some(kind), "{name}");
    }
}
