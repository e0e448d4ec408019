//! Every metric is in the book, and what names metrics names those that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use lb_common::outcome::Outcome;
use regex::Regex;
use serde_json::Value;

use super::*;
use crate::observe::contents::Contents;
use crate::observe::metrics::Metrics;
use crate::observe::report::{AuditReport, Report};
use crate::observe::series;
use lb_model::Monotonic;
use lb_source::api_requests::ApiRequests;

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

/// What kubernetes-mixin's dashboard of kube-proxy asks for, by type, but for `up` and `go_goroutines`.
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

#[test]
fn the_reference_has_the_alerts_for_the_operator() {
    let rules = deployed("rules.yaml");
    let text = rules.find("groups:").map(|at| &rules[at..]).expect("groups");
    let mut file = "# Generated from rules.yaml by `cargo xtask reference`. For the Prometheus Operator.\n\
        apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: ballast\n  namespace: kube-system\nspec:\n"
        .to_owned();
    for line in text.lines() {
        writeln!(file, "  {line}").expect("a string takes all");
    }
    lb_pages::is_current_file("deploy/monitoring/prometheusrule.yaml", &file);
    let parsed: Value = serde_saphyr::from_str(&file).expect("an object");
    assert_eq!(parsed["spec"], serde_saphyr::from_str::<Value>(&rules).expect("rules"));
}

#[test]
fn alerts_name_metrics_and_outcomes_that_there_are() {
    for (name, expression) in alerts() {
        knows(&all(), &name, &expression);
    }
}

#[test]
fn every_alert_has_a_test_and_a_remedy_in_the_book() {
    let (tests, book) = (deployed("rules-test.yaml"), read("docs/src/operations.md"));
    for name in alerts().keys() {
        assert!(tests.contains(&format!("        alertname: {name}\n")), "rules-test.yaml shows no {name} that fires");
        assert!(book.contains(&format!("\n| `{name}` |")), "operations.md has no row of {name}");
    }
}

#[test]
fn the_dashboard_names_metrics_and_outcomes_that_there_are() {
    let dashboard: Value = serde_json::from_str(&deployed("dashboard.json")).expect("JSON");
    let all = all();
    let mut asked = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: another panel has its id");
        for target in panel["targets"].as_array().into_iter().flatten() {
            asked.extend(knows(&all, title, target["expr"].as_str().expect("an expression")));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let Some(query) = variable["definition"].as_str() else { continue };
        let (metric, _label) = query
            .strip_prefix("label_values(")
            .and_then(|query| query.strip_suffix(')')?.rsplit_once(", "))
            .expect("label_values(METRIC, LABEL)");
        asked.extend(knows(&all, query, metric));
    }
    assert!(asked.len() > 30, "{asked:?}");
}

#[test]
fn names_of_metrics_are_told_from_functions_labels_and_durations() {
    let expression = "histogram_quantile(0.99, sum by (le, node) (rate(a_bucket{x=\"b{c}\", y=~'d'}[5m]))) > 1e3 and on (instance) e \
        or (f unless f offset 10m) / ignoring (g) group_left (h) i";
    assert_eq!(names(expression), ["a_bucket", "e", "f", "f", "i"]);
}

/// Fails if the expression asks for a metric that there is not, or matches an outcome that there is not.
fn knows(all: &BTreeMap<String, Description>, place: &str, expression: &str) -> Vec<String> {
    let names = names(expression);
    assert!(!names.is_empty(), "{place}: {expression} names no metric");
    for name in &names {
        let is_part_of_histogram = ["_bucket", "_sum", "_count"].into_iter().any(|end| {
            name.strip_suffix(end).and_then(|base| all.get(base)).is_some_and(|metric| metric.kind == "histogram")
        });
        // Prometheus itself makes `up`.
        assert!(is_part_of_histogram || all.contains_key(name) || name == "up", "{place}: there is no {name}");
    }
    let matched = Regex::new("outcome=~?\"([^\"]*)\"").expect("valid");
    for outcome in
        matched.captures_iter(expression).flat_map(|found| found[1].split('|').map(str::to_owned).collect::<Vec<_>>())
    {
        let pattern = Regex::new(&format!("^(?:{outcome})$")).expect("valid");
        assert!(
            Outcome::ALL.iter().any(|known| pattern.is_match(known.name())),
            "{place}: there is no outcome {outcome}"
        );
    }
    names
}

/// The metrics in an expression of PromQL.
fn names(expression: &str) -> Vec<String> {
    let without = |text: &str, pattern: &str| Regex::new(pattern).expect("valid").replace_all(text, " ").into_owned();
    let plain = without(expression, r#""[^"]*"|'[^']*'"#);
    let plain = without(&plain, r"\{[^}]*\}|\[[^\]]*\]");
    let plain = without(&plain, r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)");
    let plain = without(&plain, r"\b[0-9][0-9a-z.]*|\b[a-z_0-9]+\s*\(");
    let plain = without(&plain, r"\b(sum|min|max|avg|count|topk|and|or|unless|offset|bool)\b");
    let names = Regex::new(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b").expect("valid");
    names.find_iter(&plain).map(|name| name.as_str().to_owned()).collect()
}

/// Their expressions by name.
fn alerts() -> BTreeMap<String, String> {
    let rules: Value = serde_saphyr::from_str(&deployed("rules.yaml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules"));
    let text = |rule: &Value, field: &str| rule[field].as_str().expect("a text").to_owned();
    rules.map(|rule| (text(rule, "alert"), text(rule, "expr"))).collect()
}

fn deployed(file: &str) -> String {
    read(&format!("deploy/monitoring/{file}"))
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
