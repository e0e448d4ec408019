//! Connect times of a backend that answers late, as each command shows them, and the switch that turns them off.
//!
//! nftables in the backend's namespace loses its first SYN+ACKs: the client's kernel sends its SYN again after a second. Needs root and `nft`.

use std::io::Write as _;
use std::process::Stdio;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{NodeOptions, Pod};
use serde_json::Value;

/// The bound of the last bucket: a time beside it is at least half of it.
const A_SECOND_US: u64 = 1_073_742;
const HISTOGRAM: &str = "ballast_service_connect_duration_seconds";

fn connect(fixture: &Fixture, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("who").unwrap();
    }
}

/// Loses the SYN+ACKs of the pod, or no more.
fn loses_answers(pod: &Pod, loses: bool) {
    let rule = if loses { "tcp flags & (syn | ack) == syn | ack counter fwd to \"lo\"" } else { "" };
    let text = format!(
        "table netdev slow\ndelete table netdev slow\ntable netdev slow {{\n\
         chain egress {{\ntype filter hook egress device \"eth0\" priority 0;\n{rule}\n}}\n}}\n"
    );
    let mut command = std::process::Command::new("nft");
    let mut child = pod.netns().start(command.args(["-f", "-"]).stdin(Stdio::piped())).expect("nft: install nftables");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft refuses {text}");
}

/// How many SYN+ACKs were lost.
fn lost_answers(pod: &Pod) -> u64 {
    let mut list = std::process::Command::new("nft");
    let output = pod.netns().run(|| list.args(["list", "table", "netdev", "slow"]).output()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, counter) = text.split_once("counter packets ").unwrap_or_else(|| panic!("no counter in {text}"));
    counter.split_whitespace().next().unwrap().parse().unwrap()
}

fn items(agent: &Agent, list: &str) -> Vec<Value> {
    agent.json(&["get", list, "--service", "web:80"]).unwrap()["items"].as_array().unwrap().clone()
}

/// The cell of a column in the first row of a wide list.
fn wide(agent: &Agent, list: &str, column: &str) -> String {
    let output = agent.cli(&["get", list, "--service", "web:80", "-o", "wide"]).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    let (header, row) = (lines.next().unwrap(), lines.next().unwrap());
    let at = header.find(&format!(" {column} ")).unwrap_or_else(|| panic!("no {column} in {text}")) + 1;
    row[at..].split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_late_answer_is_in_every_list_and_an_agent_that_does_not_measure_has_none() {
    let fixture = Fixture::new("conntime", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let manifest = Manifest::of([service.clone()]);
    let mut agent = fixture.agent(&manifest, &[]);
    let families = service.frontends(Protocol::Tcp).len() as u64;
    assert!(items(&agent, "backends").iter().all(|item| item["connectTime"].is_null()));
    connect(&fixture, &service);
    for item in items(&agent, "backends") {
        assert_eq!(item["connectTime"]["answers"], 1, "{item}");
    }
    let sum = items(&agent, "services")[0]["connectTime"].clone();
    assert_eq!(sum["answers"], families);
    assert!(sum["sumMicroseconds"].as_u64().unwrap() < families * 500_000, "{sum}");

    loses_answers(&fixture.backends[0], true);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect_at_once(&fixture, &service));
        eventually("the first answer to each client is lost", SOON, || {
            (lost_answers(&fixture.backends[0]) >= families).then_some(())
        });
        loses_answers(&fixture.backends[0], false);
        connecting.join().unwrap();
    });
    for item in items(&agent, "backends") {
        let time = &item["connectTime"];
        assert_eq!((&time["answers"], &time["p99Microseconds"]), (&2.into(), &A_SECOND_US.into()), "{item}");
        assert!(time["sumMicroseconds"].as_u64().unwrap() >= A_SECOND_US / 2, "{item}");
    }
    assert_eq!(items(&agent, "services")[0]["connectTime"]["p99Microseconds"], A_SECOND_US);
    for list in ["services", "backends"] {
        assert!(wide(&agent, list, "P99").ends_with("1.1s"), "{list}: {}", wide(&agent, list, "P99"));
    }
    #[allow(clippy::cast_precision_loss)] // Four connections.
    let all = 2.0 * families as f64;
    assert_eq!(agent.metric(&format!("{HISTOGRAM}_count"), "service=\"web\""), Some(all));
    assert!(agent.metric(&format!("{HISTOGRAM}_bucket"), "le=\"0.268435456\"").unwrap() <= all / 2.0);
    assert!(agent.metric(&format!("{HISTOGRAM}_sum"), "service=\"web\"").unwrap() >= 0.5);
    let top = agent.cli(&["top", "--once"]).unwrap();
    assert!(String::from_utf8(top.stdout).unwrap().contains("  P99  "));

    agent.kill();
    let off = fixture.agent(&manifest, &["--connect-times", "off"]);
    connect(&fixture, &service);
    for list in ["services", "backends"] {
        assert!(items(&off, list).iter().all(|item| item["connectTime"].is_null()), "{:?}", items(&off, list));
        assert_eq!(wide(&off, list, "P99"), "-");
    }
    assert_eq!(off.metric(&format!("{HISTOGRAM}_count"), ""), None);
}

/// One client for each family, at the same time.
fn connect_at_once(fixture: &Fixture, service: &Service) {
    std::thread::scope(|scope| {
        for to in service.frontends(Protocol::Tcp) {
            scope.spawn(move || Stream::connect(fixture.client.netns(), to).unwrap().ask("who").unwrap());
        }
    });
}
