//! The reference pages of the book against a running agent and its programs: metrics, and layouts of the maps.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use aya_obj::generated::bpf_map_type;
use lb_common::maps::Table;
use lb_datapath::layout::{Description, MapDescription, Record};
use lb_tests::agent::{Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::test_run;
use lb_tests::topology::NodeOptions;

/// The page itself is generated without an agent.
#[test]
fn every_metric_of_an_agent_is_in_the_book() {
    let fixture = Fixture::new("reference", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &["--audit-interval=1s"]);
    eventually("an audit", SOON, || agent.metric("ballast_audits_total", "").filter(|runs| *runs >= 1.0));
    eventually("how full the maps are", SOON, || agent.metric("ballast_map_entries", "map=\"services4\""));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = rows(&agent.metrics().unwrap());
    assert!(rows.len() > 80, "{rows:?}");
    for row in rows {
        assert!(page.lines().any(|line| line == row), "the reference has no {row}");
    }
}

/// The rows of the page, from the text that Prometheus gets.
fn rows(text: &str) -> Vec<String> {
    let mut rows = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else { continue };
        let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")?.strip_prefix(name)).unwrap();
        rows.push(format!("| `{name}` |{kind} | {} |", help.trim_end_matches('.').replace('|', "\\|")));
    }
    rows
}

/// What becomes of a map at a change of layout, and of its size.
fn at_a_change(map: &Table) -> String {
    let fate = map.nature.at_a_change();
    if map.is_resizable {
        format!(": {fate}. At a change of its size alone: it begins at zero")
    } else {
        format!(" or size: {fate}")
    }
}

#[test]
fn every_map_is_in_the_book() {
    let object = fs::read(test_run::object().unwrap()).unwrap();
    let described = Description::of_object(&object, |_| None).unwrap();
    let mut page = format!(
        "# Layouts of the maps\n\nLayout version {}. [The maps](../maps.md) says what the fields mean, and which commands read them. `u32@8` is a number \
         of four bytes at offset 8, in\nthe order of the machine; `u8[16]@8` are sixteen bytes. Sizes are the defaults of [`--map-sizes`](options.md#map-sizes). Memory is what the\nkernel takes for entries, and for the buckets of a hash.\n",
        described.abi
    );
    for (name, map) in &described.maps {
        let kind = format!("{:?}", bpf_map_type::try_from(map.kind).ok().unwrap());
        let kind = kind.trim_start_matches("BPF_MAP_TYPE_").to_lowercase().replace('_', " ");
        let memory = memory(map).unwrap_or_default();
        let declared = lb_common::maps::table(name).unwrap();
        let audit = if declared.is_audited { " The audit checks it." } else { "" };
        write!(
            page,
            "\n## {name}\n\n{}\n\n{kind}, {} entries{memory}. At a change of layout{}.{audit}\n\n| | field | place |\n|---|---|---|\n",
            declared.doc.trim(),
            map.max_entries,
            at_a_change(declared)
        )
        .unwrap();
        for (part, record) in [("key", &map.key), ("value", &map.value)] {
            write_fields(&mut page, part, record);
        }
    }
    lb_pages::is_current("map-layouts.md", &page);
}

/// What the kernel keeps of a hash's element beside key and value, and of a bucket (`struct htab_elem`, `struct bucket`).
const HASH_ELEMENT: u64 = 48;
const BUCKET: u64 = 16;
/// The kernel makes elements as they are written (`BPF_F_NO_PREALLOC`).
const ON_DEMAND: u32 = 1;

/// How many bytes an entry takes, and all of them. `None`: it depends on the number of CPUs, or on what is in the map.
fn memory(map: &MapDescription) -> Option<String> {
    let (key, value) = (u64::from(map.key.size).next_multiple_of(8), u64::from(map.value.size).next_multiple_of(8));
    let entries = u64::from(map.max_entries);
    let (entry, all) = match bpf_map_type::try_from(map.kind).ok()? {
        bpf_map_type::BPF_MAP_TYPE_ARRAY => (value, entries * value),
        bpf_map_type::BPF_MAP_TYPE_HASH | bpf_map_type::BPF_MAP_TYPE_LRU_HASH => {
            let entry = HASH_ELEMENT + key + value;
            (entry, entries * entry + entries.next_power_of_two() * BUCKET)
        }
        _ => return None,
    };
    let when = if map.flags & ON_DEMAND == 0 { "from the start" } else { "when full" };
    Some(format!(" of {entry} bytes, {} KiB {when}", all.div_ceil(1 << 10)))
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

/// What a running agent and its commands print is as the generated schemas say.
#[test]
fn every_json_is_as_its_schema_says() {
    let fixture = Fixture::new("schemas", Pods::Routed, 2, NodeOptions::default());
    let web = fixture.web();
    let agent = fixture.agent(&Manifest::of([web.clone()]), &["--audit-interval=1s", "--flow-counters=on"]);
    eventually("an audit", SOON, || agent.metric("ballast_audits_total", "").filter(|runs| *runs >= 1.0));
    let to = web.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("who").unwrap();
    let change = tempfile::NamedTempFile::new().unwrap();
    let added = "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: test}, spec: {clusterIP: 10.96.7.7, ports: [{port: 80}]}}";
    fs::write(change.path(), added).unwrap();
    let (source, destination) = (fixture.client.addresses().like(to.ip()).to_string(), to.to_string());
    for (schema, arguments) in [
        ("get-services", &["get", "services"][..]),
        ("get-services-rate", &["get", "services", "--rate"]),
        ("get-backends", &["get", "backends"]),
        ("get-drains", &["get", "drains"]),
        ("get-connections", &["get", "connections", "--sockets"]),
        ("status", &["status"]),
        ("explain", &["explain", &source, &destination]),
        ("plan", &["plan", "-f", change.path().to_str().unwrap()]),
        ("audit", &["audit", "--dry-run"]),
        ("doctor", &["doctor"]),
        ("maintenance", &["maintenance", "10.99.0.1", "on"]),
    ] {
        let output = agent.cli(&[arguments, &["-o", "json"]].concat()).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{schema}: {error}: {errors}"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/src/reference/schemas/{schema}.json"));
        let text = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        lb_pages::schema::check(&text, &json).unwrap_or_else(|error| panic!("{schema}: {error}"));
    }
}
