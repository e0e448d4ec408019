//! Changes of the tables and attachments with bpftool are found, named and repaired, by the agent's own audits and by `ballast audit`, while
//! connections go on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lb_common::abi::map_name;
use lb_tests::agent::{Agent, External, Manifest, Protocol, SOON, Service};
use lb_tests::external_client::{self, ExternalClient};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::Value;

/// Small arrays: bpftool shows them whole.
const SIZES: &str = "--map-sizes=backends=64,slots=256";

/// Each table with a byte of its values that an edit changes, and what the edit is found as.
const TABLES: [(&str, usize, &str); 14] = [
    (map_name::NAMES, 0, "edited"),
    (map_name::BACKENDS4, 6, "edited"),
    (map_name::BACKENDS6, 18, "edited"),
    (map_name::ENDPOINTS4, 0, "edited"),
    (map_name::ENDPOINTS6, 0, "edited"),
    (map_name::SLOTS, 0, "edited"),
    (map_name::SLOTS, 4, "torn"),
    (map_name::SOURCES4, 0, "torn"),
    (map_name::SOURCES6, 0, "torn"),
    (map_name::SERVICES4, 8, "torn"),
    (map_name::SERVICES6, 8, "torn"),
    (map_name::VIPS4, 0, "edited"),
    (map_name::VIPS6, 0, "edited"),
    (map_name::CONFIG, 4, "edited"),
];

/// Reached by frontends of every kind, some of them for a few clients only.
fn everything(fixture: &Fixture) -> Service {
    fixture.web().with(External {
        load_balancer_ips: vec!["198.51.100.7".parse().unwrap(), "2001:db8:7::7".parse().unwrap()],
        node_ports: vec![30080, 30053],
        source_ranges: vec!["10.0.0.0/8".into(), "fd00::/8".into()],
        ..External::default()
    })
}

fn bpftool(arguments: &[&str]) -> String {
    let output = Command::new("bpftool").args(arguments).output().expect("bpftool: run `cargo xtask setup`");
    assert!(output.status.success(), "bpftool {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A pinned map, by bpftool.
struct Table {
    path: PathBuf,
    is_array: bool,
}

impl Table {
    fn open(fixture: &Fixture, name: &str) -> Self {
        let is_array = matches!(name, map_name::SLOTS | map_name::BACKENDS4 | map_name::BACKENDS6 | map_name::CONFIG);
        Self { path: fixture.node.bpffs().join("ballast/tables").join(name), is_array }
    }

    /// Keys and values in use, as bytes.
    fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: Value = serde_json::from_str(&bpftool(&["-j", "map", "dump", "pinned", self.text()])).unwrap();
        let bytes = |value: &Value| -> Vec<u8> {
            let byte = |text: &Value| u8::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
            value.as_array().unwrap().iter().map(byte).collect()
        };
        let all = all.as_array().unwrap().iter().map(|entry| (bytes(&entry["key"]), bytes(&entry["value"])));
        all.filter(|(_, value)| !self.is_array || value.iter().any(|byte| *byte != 0)).collect()
    }

    fn write(&self, key: &[u8], value: &[u8]) {
        let (key, value) = (hex(key), hex(value));
        let mut arguments = vec!["map", "update", "pinned", self.text(), "key", "hex"];
        arguments.extend(key.iter().map(String::as_str));
        arguments.extend(["value", "hex"]);
        arguments.extend(value.iter().map(String::as_str));
        bpftool(&arguments);
    }

    /// An element of an array cannot go; it is emptied.
    fn delete(&self, key: &[u8], value: &[u8]) {
        if self.is_array {
            return self.write(key, &vec![0; value.len()]);
        }
        let key = hex(key);
        let mut arguments = vec!["map", "delete", "pinned", self.text(), "key", "hex"];
        arguments.extend(key.iter().map(String::as_str));
        bpftool(&arguments);
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn hex(bytes: &[u8]) -> Vec<String> {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exit code and findings of `ballast audit`.
fn audit(agent: &Agent, flags: &[&str]) -> (i32, Vec<Value>) {
    let arguments: Vec<&str> = ["audit", "-o", "json"].into_iter().chain(flags.iter().copied()).collect();
    let output = agent.cli(&arguments).unwrap();
    let code = output.status.code().unwrap();
    assert!(code != 2, "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    (code, report["findings"].as_array().unwrap().clone())
}

fn assert_findings(findings: &[Value], count: usize, table: &str, kind: &str, repaired: bool) {
    assert_eq!(findings.len(), count, "{table} {kind}: {findings:?}");
    for finding in findings {
        assert_eq!(
            (finding["table"].as_str(), finding["kind"].as_str(), finding["repaired"].as_bool()),
            (Some(table), Some(kind), Some(repaired)),
            "{finding}"
        );
    }
}

fn connect(fixture: &Fixture, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("new").unwrap();
    }
}

#[test]
fn every_entry_that_is_deleted_or_edited_is_named_and_put_right() {
    let fixture = Fixture::new("audit", Pods::Routed, 2, NodeOptions::default());
    let service = everything(&fixture);
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[SIZES, "--audit-interval=off"]);
    let mut held: Vec<Stream> = service
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|to| Stream::connect(fixture.client.netns(), to).unwrap())
        .collect();
    assert_eq!(audit(&agent, &[]).0, 0, "{:?}", audit(&agent, &[]));
    let mut damaged = 0;
    for (name, byte, edited_is) in TABLES {
        let table = Table::open(&fixture, name);
        let entries = table.dump();
        assert!(!entries.is_empty(), "{name} is empty");
        for (key, value) in &entries {
            table.delete(key, value);
        }
        let (code, findings) = audit(&agent, &["--dry-run"]);
        assert_eq!(code, 1);
        assert_findings(&findings, entries.len(), name, "missing", false);
        let (code, findings) = audit(&agent, &[]);
        assert_eq!(code, 1);
        assert_findings(&findings, entries.len(), name, "missing", true);
        for (key, value) in &entries {
            let mut other = value.clone();
            other[byte] ^= 1;
            table.write(key, &other);
        }
        let (code, findings) = audit(&agent, &[]);
        assert_eq!(code, 1);
        assert_findings(&findings, entries.len(), name, edited_is, true);
        let mut now = table.dump();
        let mut before = entries.clone();
        now.sort();
        before.sort();
        assert_eq!(now, before, "{name} is as it was");
        assert_eq!(audit(&agent, &[]).0, 0, "after {name}");
        damaged += entries.len();
        for stream in &mut held {
            stream.ask("still").unwrap();
        }
        connect(&fixture, &service);
    }
    assert!(damaged >= TABLES.len(), "{damaged} entries of {} tables were damaged", TABLES.len());
}

#[test]
fn what_nobody_wrote_is_taken_out() {
    let fixture = Fixture::new("foreign", Pods::Routed, 1, NodeOptions::default());
    let service = everything(&fixture);
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[SIZES, "--audit-interval=off"]);
    for (name, byte) in [
        (map_name::NAMES, 0),
        (map_name::SERVICES4, 4),
        // A key that no frontend can have.
        (map_name::SERVICES6, 19),
        (map_name::SOURCES4, 4),
        (map_name::SOURCES6, 4),
        (map_name::VIPS4, 0),
        (map_name::VIPS6, 0),
        (map_name::BACKENDS4, 0),
    ] {
        let table = Table::open(&fixture, name);
        let before = table.dump();
        let (mut key, value) = before.last().unwrap().clone();
        key[byte] ^= 0x28;
        table.write(&key, &value);
        let (code, findings) = audit(&agent, &[]);
        assert_eq!(code, 1, "{name}");
        assert_findings(&findings, 1, name, "foreign", true);
        assert_eq!(audit(&agent, &[]), (0, vec![]), "{name}");
        connect(&fixture, &service);
    }
}

#[test]
fn by_itself_the_agent_heals_within_a_period_and_counts_it() {
    let fixture = Fixture::new("period", Pods::Routed, 2, NodeOptions::default());
    let service = everything(&fixture);
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[SIZES, "--audit-interval=1s"]);
    for name in [map_name::SERVICES4, map_name::SLOTS, map_name::BACKENDS6] {
        let table = Table::open(&fixture, name);
        let entries = table.dump();
        for (key, value) in &entries {
            table.delete(key, value);
        }
        eventually("the entries are back", SOON, || (table.dump().len() == entries.len()).then_some(()));
        connect(&fixture, &service);
        let count = format!("ballast_repairs_total{{kind=\"missing\",table=\"{name}\"}} {}", entries.len());
        let other = format!("ballast_repairs_total{{table=\"{name}\",kind=\"missing\"}} {}", entries.len());
        eventually("the repairs are counted", SOON, || {
            let metrics = agent.metrics().unwrap();
            (metrics.contains(&count) || metrics.contains(&other)).then_some(())
        });
    }
}

fn pins(fixture: &Fixture) -> Vec<PathBuf> {
    let folder = fixture.node.bpffs().join("ballast/attachments");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn name_of(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn programs_that_are_detached_are_attached_again() {
    let fixture = Fixture::new("detach", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[SIZES, "--audit-interval=off"]);
    eventually("the attachments are known", SOON, || (audit(&agent, &[]).0 == 0).then_some(()));
    let before = pins(&fixture);
    assert!(before.iter().any(|pin| name_of(pin).starts_with("cgroup-connect4")), "{before:?}");
    for detach in ["remove the pins", "detach the links"] {
        for pin in &before {
            if detach == "detach the links" {
                bpftool(&["link", "detach", "pinned", pin.to_str().unwrap()]);
            } else {
                std::fs::remove_file(pin).unwrap();
            }
        }
        let (code, findings) = audit(&agent, &[]);
        assert_eq!(code, 1, "{detach}");
        // A round of the agent's own may have come in between: it tells what it repaired, too.
        assert!(findings.len() >= before.len(), "{detach}: {} pins, {findings:?}", before.len());
        for finding in &findings {
            assert_eq!((finding["table"].as_str(), finding["repaired"].as_bool()), (Some("attachments"), Some(true)));
        }
        assert_eq!(pins(&fixture), before, "{detach}");
        assert_eq!(audit(&agent, &[]), (0, vec![]), "{detach}");
        connect(&fixture, &service);
        for to in service.frontends(Protocol::Tcp) {
            Stream::connect(fixture.node.netns(), to).unwrap().ask("from the host").unwrap();
        }
    }
}

/// A restart of a network service takes the qdisc off the uplink, and with it tc filters; TCX stays.
#[test]
fn filters_that_a_network_service_removes_are_attached_again_at_their_notification() {
    /// The agent looks at all attachments again every 10 s: were notifications missed, each round but the first would take that long.
    const MISSED: Duration = Duration::from_secs(30);
    const ROUNDS: usize = 6;
    for mechanism in ["clsact", "tcx"] {
        let options = ["--tc-attach", mechanism, "--xdp-mode=off", "--audit-interval=off"];
        let network = ExternalClient::with("flushed", &options, |service| service);
        let [to, _] = network.frontends(external_client::HTTP);
        let qdisc = |change: &str| {
            let mut tc = Command::new("tc");
            tc.args(["qdisc", change, "dev", "eth0", "clsact"]);
            assert!(network.nodes[0].netns().run(|| tc.status()).unwrap().success(), "{change}");
        };
        let asks = || Stream::connect(network.client.netns(), to)?.ask("hello").map(drop);
        asks().unwrap();
        let begin = Instant::now();
        for round in 0..ROUNDS {
            if mechanism == "tcx" {
                qdisc("add");
            }
            qdisc("del");
            if mechanism == "tcx" {
                asks().unwrap_or_else(|error| panic!("round {round}: {error}"));
            } else {
                eventually("the filters are attached again", SOON, || asks().ok());
            }
        }
        assert!(begin.elapsed() < MISSED, "{mechanism}: {:?}", begin.elapsed());
    }
}

#[test]
fn without_an_agent_the_tables_are_compared_with_themselves() {
    let fixture = Fixture::new("alone", Pods::Routed, 2, NodeOptions::default());
    let service = everything(&fixture);
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[SIZES]);
    agent.stop().unwrap();
    let output = agent.cli(&["audit"]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no agent is running") && said.contains("--dry-run"), "{said}");
    assert_eq!(audit(&agent, &["--dry-run"]), (0, vec![]));
    let table = Table::open(&fixture, map_name::SERVICES4);
    let (key, mut value) = table.dump().remove(0);
    value[8] ^= 1;
    table.write(&key, &value);
    let (code, findings) = audit(&agent, &["--dry-run"]);
    assert_eq!(code, 1);
    assert_findings(&findings, 1, map_name::SERVICES4, "torn", false);
    // The next agent puts it right before anybody asks.
    agent.restart().unwrap();
    assert_eq!(audit(&agent, &[]), (0, vec![]));
    connect(&fixture, &service);
}
