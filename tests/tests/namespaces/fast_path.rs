//! The fast path: packets between two pods of a node are handed over past its stack, and only while that skips nothing.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use lb_common::abi::PeerMac;
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::Value;

/// How long a switch may take: the agent looks once a second.
const SWITCH: Duration = Duration::from_mins(1);
/// Longer than any segment, socket buffer and window at the start of a connection.
const BULK: usize = 400_000;
/// The fewest packets that both directions of [`Streams::ask`] can have: two streams, two short texts, and a bulk in segments of at most 64 KiB.
const ASKED: u64 = 2 * 2 * (2 + (BULK as u64).div_ceil(65_536));
/// The fewest packets that both directions of [`serves`] can have: a handshake's for each stream, and of each family three datagrams.
const SERVED: u64 = ASKED + 2 * (2 + 2 * 3);

/// How many packets were handed over so far.
fn handed_over(agent: &Agent) -> u64 {
    agent.counted(Outcome::FastPath).unwrap()
}

fn fast_path(agent: &Agent) -> Value {
    agent.json(&["status"]).unwrap()["agent"]["datapath"]["fastPath"].clone()
}

/// Waits until the fast path is open, or closed, and gives what it would skip.
fn until(agent: &Agent, open: bool) -> String {
    eventually(if open { "the fast path opens" } else { "the fast path closes" }, SWITCH, || {
        let told = fast_path(agent);
        (told["open"] == open).then(|| told["skips"].to_string())
    })
}

/// Connections that were made already, and what is asked over them.
struct Streams(Vec<Stream>);

impl Streams {
    fn new(fixture: &Fixture, service: &Service) -> Self {
        let from = fixture.client.netns();
        Self(service.frontends(Protocol::Tcp).into_iter().map(|to| Stream::connect(from, to).unwrap()).collect())
    }

    fn ask(&mut self, what: &str) {
        let bulk = "0123456789abcdef".repeat(BULK / 16);
        for stream in &mut self.0 {
            for text in ["hello", &bulk, "bye"] {
                let answer = stream.ask(text).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(answer.text.len(), text.len(), "{what}");
                assert_eq!(answer.peer, stream.local().unwrap(), "{what}: the backend sees the client's own address");
            }
        }
    }
}

/// Asks the service anew over both protocols and families: the answers come from its own address.
fn serves(what: &str, fixture: &Fixture, service: &Service) {
    Streams::new(fixture, service).ask(what);
    for to in service.frontends(Protocol::Udp) {
        let socket = Datagrams::connected(fixture.client.netns(), 0, to).unwrap();
        for text in ["one", &"x".repeat(1_200), &"y".repeat(4_000)] {
            let answer = socket.ask(text).unwrap_or_else(|error| panic!("{what}: udp {to}: {error}"));
            assert_eq!(answer.text.len(), text.len(), "{what}: udp {to}");
        }
    }
}

/// Asks until new flows take the fast path: a node learns where the pods on its bridge are.
fn warm(fixture: &Fixture, service: &Service, agent: &Agent) {
    for to in service.frontends(Protocol::Tcp) {
        eventually("a new flow takes the fast path", SWITCH, || {
            let before = handed_over(agent);
            Stream::connect(fixture.client.netns(), to).unwrap().ask("warm").unwrap();
            (handed_over(agent) > before).then_some(())
        });
    }
}

/// Runs a command in the node's namespace.
fn at_node(fixture: &Fixture, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = fixture.node.netns().start(&mut command).unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// How many packets the counter of the forward chain has seen.
fn counted(fixture: &Fixture) -> u64 {
    let rules = at_node(fixture, "nft", &["list", "chain", "inet", "seen", "forward"]);
    let (_, rest) = rules.split_once("packets ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn packets_between_pods_are_handed_over_while_nothing_is_skipped() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("fast", pods, 1, NodeOptions::default());
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        assert_eq!(until(&agent, true), "[]");
        warm(&fixture, &service, &agent);
        let before = handed_over(&agent);
        let mut open = Streams::new(&fixture, &service);
        open.ask("fast");
        serves("fast", &fixture, &service);
        let after = handed_over(&agent);
        assert!(after >= before + ASKED + SERVED, "{pods:?}: {before}, then {after}");

        at_node(&fixture, "nft", &["add table inet seen"]);
        at_node(&fixture, "nft", &["add chain inet seen forward { type filter hook forward priority 0; }"]);
        at_node(&fixture, "nft", &["add rule inet seen forward counter"]);
        assert!(until(&agent, false).contains("inet seen forward"), "{pods:?}");
        let (before, rule) = (handed_over(&agent), counted(&fixture));
        open.ask("a rule came");
        let mut slow = Streams::new(&fixture, &service);
        slow.ask("a rule is there");
        serves("a rule is there", &fixture, &service);
        assert_eq!(handed_over(&agent), before, "{pods:?}: nothing passes the rule by");
        let seen = counted(&fixture);
        assert!(seen >= rule + 2 * ASKED + SERVED, "{pods:?}: the rule sees the packets: {rule}, then {seen}");

        at_node(&fixture, "nft", &["delete table inet seen"]);
        until(&agent, true);
        open.ask("the rule went");
        slow.ask("the rule went");
        assert!(handed_over(&agent) > before, "{pods:?}");
        if pods == Pods::Routed {
            programs_and_queues_of_others_on_pods_links_are_not_skipped(&fixture, &agent);
            links_that_are_gone_are_forgotten(&fixture, &agent);
        }
    }
}

/// A program of somebody else's on a pod's link: ours over maps of its own, which knows of no flow.
fn program_of_others(fixture: &Fixture, link: &str) -> Ebpf {
    let object = lb_tests::test_run::object().unwrap();
    let mut ebpf = EbpfLoader::new().load(&std::fs::read(object).unwrap()).unwrap();
    lb_tests::test_run::load_entry(&mut ebpf, "pod_out").unwrap();
    let program: &mut SchedClassifier = ebpf.program_mut("pod_out").unwrap().try_into().unwrap();
    let order = TcAttachOptions::TcxOrder(LinkOrder::last());
    fixture.node.netns().run(|| program.attach_with_options(link, TcAttachType::Egress, order)).unwrap();
    ebpf
}

/// With one backend, whatever is connected after the first is on the fast path: no other pod is one that the node does not know yet.
fn programs_and_queues_of_others_on_pods_links_are_not_skipped(fixture: &Fixture, agent: &Agent) {
    let (service, link) = (fixture.web(), fixture.client.link());
    let tc = |arguments: &str| at_node(fixture, "tc", &arguments.split(' ').collect::<Vec<_>>());
    let mut program = None;
    let mut open = Streams::new(fixture, &service);
    for name in ["tbf", "tc filters", "tcx program"] {
        until(agent, true);
        let before = handed_over(agent);
        open.ask("fast");
        assert!(handed_over(agent) > before, "{name}");
        match name {
            "tbf" => drop(tc(&format!("qdisc add dev {link} root tbf rate 1gbit burst 1mbit latency 50ms"))),
            "tc filters" => {
                tc(&format!("qdisc add dev {link} clsact"));
                // Classic BPF: whatever it is.
                let all = ["1,6 0 0 4294967295,"];
                let filter = format!("filter add dev {link} egress pref 7 bpf bytecode");
                at_node(fixture, "tc", &filter.split(' ').chain(all).collect::<Vec<_>>());
            }
            _ => program = Some(program_of_others(fixture, link)),
        }
        assert!(until(agent, false).contains(name), "{name}: {}", fast_path(agent));
        let before = handed_over(agent);
        open.ask(name);
        serves(name, fixture, &service);
        assert_eq!(handed_over(agent), before, "{name}");
        match name {
            "tbf" => drop(tc(&format!("qdisc del dev {link} root"))),
            "tc filters" => drop(tc(&format!("qdisc del dev {link} clsact"))),
            _ => drop(program.take()),
        }
    }
    until(agent, true);
}

/// As of a pod that holds a virtual machine: what comes to its link goes on to another one, by the address of the link layer.
#[test]
fn pods_that_bridge_their_link_onward_get_frames_addressed_to_them() {
    let fixture = Fixture::new("fastonward", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let pod = fixture.client.namespace();
    let routes = |family: &str| pod.ip_show(&[family, "route", "show", "default"]).unwrap();
    let via = |family: &str| routes(family).split_whitespace().nth(2).unwrap().to_owned();
    let (gateway4, gateway6) = (via("-4"), via("-6"));
    let [v4, v6] = fixture.client.addresses().both();
    pod.ip("address flush dev eth0 scope global").unwrap();
    pod.ip(&format!(
        "link add vm type bridge\n\
         link set vm address 02:00:00:00:00:77\n\
         link set vm up\n\
         link set eth0 master vm\n\
         address add {v4}/32 dev vm\n\
         address add {v6}/128 dev vm nodad\n\
         route replace {gateway4} dev vm\n\
         route replace default via {gateway4} dev vm\n\
         route replace {gateway6} dev vm\n\
         route replace ::/0 via {gateway6} dev vm"
    ))
    .unwrap();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    until(&agent, true);
    warm(&fixture, &service, &agent);
    serves("onward", &fixture, &service);
}

#[test]
fn off_and_on_are_as_asked_for() {
    let fixture = Fixture::new("fastasked", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    at_node(
        &fixture,
        "nft",
        &["add table inet seen; add chain inet seen forward { type filter hook forward priority 0; policy drop; }"],
    );
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--fast-path=on"]);
    until(&agent, true);
    // The rule lets nobody but the node itself speak: it gets to know its pods.
    for pod in [fixture.client.addresses(), fixture.backends[0].addresses()] {
        for address in pod.both() {
            let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            fixture.node.netns().run(|| UdpSocket::bind(any).unwrap().send_to(b"who", (address, 9))).unwrap();
            let known = || at_node(&fixture, "ip", &["neighbour", "show", &address.to_string()]).contains("lladdr");
            eventually("the node knows its pod", SWITCH, || known().then_some(()));
        }
    }
    Streams::new(&fixture, &service).ask("the rule drops all the others");
    assert!(handed_over(&agent) > 0);
    drop(agent);
    at_node(&fixture, "nft", &["delete table inet seen"]);
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--fast-path=off"]);
    let before = handed_over(&agent);
    serves("off", &fixture, &service);
    assert_eq!((handed_over(&agent), &fast_path(&agent)["open"]), (before, &Value::Bool(false)));
}

/// The indexes of links whose other ends the programs have noted.
fn noted_links(agent: &Agent) -> Vec<u32> {
    let folder = std::fs::read_dir(agent.bpffs().join("ballast/programs")).unwrap();
    let mut paths = folder.map(|entry| entry.unwrap().path());
    let pin = paths.find(|path| path.to_string_lossy().contains("peer_macs")).unwrap();
    let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
    HashMap::<MapData, u32, PeerMac>::try_from(map).unwrap().keys().collect::<Result<_, _>>().unwrap()
}

/// Links come and go with their pods: on a node where nobody forgot them, the table would be full one day, and no new pod would have the
/// fast path.
fn links_that_are_gone_are_forgotten(fixture: &Fixture, agent: &Agent) {
    let before = noted_links(agent);
    assert!(!before.is_empty());
    let shown = at_node(fixture, "ip", &["-o", "link", "show", "dev", fixture.client.link()]);
    let index: u32 = shown.split(':').next().unwrap().parse().unwrap();
    assert!(before.contains(&index), "{before:?} without {index}");
    fixture.node.namespace().ip(&format!("link delete {}", fixture.client.link())).unwrap();
    eventually("the link is forgotten", SWITCH, || (!noted_links(agent).contains(&index)).then_some(()));
    assert_eq!(noted_links(agent).len(), before.len() - 1, "others are not");
}
