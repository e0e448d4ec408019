//! The reference pages of the book that need a running agent or its programs: metrics, and layouts of the maps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use aya_obj::generated::bpf_map_type;
use lb_tests::agent::{Manifest, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::test_run;
use lb_tests::topology::NodeOptions;
use lb_userspace::datapath::layout::{Description, Record};

/// A metric as `/metrics` describes it.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
}

#[test]
fn every_metric_is_in_the_book() {
    let fixture = Fixture::new("reference", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &["--audit-interval=1s"]);
    eventually("an audit", SOON, || agent.metric("ballast_audits_total", "").filter(|runs| *runs >= 1.0));
    eventually("how full the maps are", SOON, || agent.metric("ballast_map_entries", "map=\"services4\""));
    let metrics = metrics(&agent.metrics().unwrap());
    assert!(metrics.contains_key("ballast_healthy"), "none was read");
    let mut page = "# Metrics\n\nAll metrics of `/metrics`. [Operations](../operations.md#metrics) says what to do with them. A histogram's series end in \
        `_bucket`, `_sum` and\n`_count`.\n\n| metric | type | meaning |\n|---|---|---|\n"
        .to_owned();
    for (name, metric) in metrics {
        writeln!(page, "| `{name}` | {} | {} |", metric.kind, metric.help.replace('|', "\\|")).unwrap();
    }
    lb_pages::is_current("metrics.md", &page);
}

/// Metrics by name, from the text that Prometheus gets.
fn metrics(text: &str) -> BTreeMap<String, Metric> {
    let mut all = BTreeMap::<String, Metric>::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().help = help.trim_end_matches('.').into();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().kind = kind.into();
        }
    }
    all
}

#[test]
fn every_map_is_in_the_book() {
    let object = fs::read(test_run::object().unwrap()).unwrap();
    let described = Description::of_object(&object, |_| None).unwrap();
    let mut page = format!(
        "# Layouts of the maps\n\nLayout version {}. [The maps](../maps.md) says what the fields mean, and which commands read them. `u32@8` is a number \
         of four bytes at offset 8, in\nthe order of the machine; `u8[16]@8` are sixteen bytes. Sizes are the defaults of `--map-sizes`.\n",
        described.abi
    );
    for (name, map) in &described.maps {
        let kind = format!("{:?}", bpf_map_type::try_from(map.kind).ok().unwrap());
        let kind = kind.trim_start_matches("BPF_MAP_TYPE_").to_lowercase().replace('_', " ");
        write!(page, "\n## {name}\n\n{kind}, {} entries.\n\n| | field | place |\n|---|---|---|\n", map.max_entries)
            .unwrap();
        for (part, record) in [("key", &map.key), ("value", &map.value)] {
            write_fields(&mut page, part, record);
        }
    }
    lb_pages::is_current("map-layouts.md", &page);
}

/// The fields of a key or a value, in the order of their places.
fn write_fields(page: &mut String, part: &str, record: &Record) {
    let mut fields: Vec<_> = record.fields.iter().collect();
    fields.sort_by_key(|(_, field)| field.offset);
    for (name, field) in fields {
        let name = if name == Record::WHOLE { "–".to_owned() } else { format!("`{name}`") };
        writeln!(page, "| {part} | {name} | `{field}` |").unwrap();
    }
}
