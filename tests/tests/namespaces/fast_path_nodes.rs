//! The fast path to other nodes: packets of pods leave by an external link, and answers come in by it, past the node's forwarding.

use std::process::{Command, Stdio};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::fixture::{Pods, serve};
use lb_tests::peers::{Datagrams, Server, Stream, eventually};
use lb_tests::topology::{Node, NodeOptions, Pod, Topology};
use serde_json::Value;

/// How long a switch may take: the agent looks once a second.
const SWITCH: Duration = Duration::from_mins(1);
/// Longer than any segment, socket buffer and window at the start of a connection.
const BULK: usize = 400_000;
/// The fewest packets that one direction of [`Streams::ask`] can have: two streams, two short texts, and a bulk in segments of at most 64 KiB.
const ASKED: u64 = 2 * (2 + (BULK as u64).div_ceil(65_536));
/// The fewest packets that one direction of [`Beyond::serves`] can have: a handshake's for each stream, and four datagrams.
const SERVED: u64 = ASKED + 2 + 4;
/// The other way between the nodes.
const OTHER4: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
const OTHER6: [&str; 2] = ["fd00:18::1", "fd00:18::2"];

/// A client on the first node, its backend on the second; only the first one has an agent. Fields in the order in which they must end.
struct Beyond {
    agent: Agent,
    service: Service,
    _servers: Vec<Server>,
    client: Pod,
    _backend: Pod,
    nodes: [Node; 2],
    _topology: Topology,
}

impl Beyond {
    fn new(subject: &str, pods: Pods) -> Self {
        let topology = Topology::new(subject).unwrap();
        // Loose: answers may come by another link.
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        nodes[0].route_to(&nodes[1]).unwrap();
        nodes[1].route_to(&nodes[0]).unwrap();
        let client =
            if pods == Pods::Bridged { nodes[0].bridged_pod("client") } else { nodes[0].pod("client") }.unwrap();
        let backend = nodes[1].pod("backend").unwrap();
        let servers = serve(&backend, "far");
        let service = Service::web(vec![Endpoint::ready(backend.addresses()).on(&nodes[1].node_name())]);
        let agent = Agent::start_with(&nodes[0], &Manifest::of([service.clone()]), &[]).unwrap();
        Self { agent, service, _servers: servers, client, _backend: backend, nodes, _topology: topology }
    }

    /// Runs a command in the first node's namespace; `~` stands for a space within a word.
    fn at_node(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words.map(|word| word.replace('~', " "))).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.nodes[0].netns().start(&mut command).unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// How many packets went past the first node's forwarding so far, and how many were forwarded.
    fn counts(&self) -> (u64, u64) {
        let fast = self.agent.counted(Outcome::FastPath).unwrap();
        let snmp = self.at_node("cat /proc/thread-self/net/snmp");
        let mut lines = snmp.lines().filter(|line| line.starts_with("Ip:"));
        let names = lines.next().unwrap().split_whitespace();
        let at = names.into_iter().position(|name| name == "ForwDatagrams").unwrap();
        let v4: u64 = lines.next().unwrap().split_whitespace().nth(at).unwrap().parse().unwrap();
        let snmp6 = self.at_node("cat /proc/thread-self/net/snmp6");
        let v6 = snmp6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).unwrap();
        (fast, v4 + v6.trim().parse::<u64>().unwrap())
    }

    fn told(&self) -> Value {
        self.agent.json(&["status"]).unwrap()["agent"]["datapath"]["fastPath"].clone()
    }

    /// Waits until the fast path to other nodes is open, or closed, and gives all that it would skip.
    fn until(&self, open: bool) -> String {
        eventually(if open { "the fast path opens" } else { "the fast path closes" }, SWITCH, || {
            let told = self.told();
            (told["openToNodes"] == open).then(|| format!("{} {}", told["skips"], told["skipsToNodes"]))
        })
    }

    /// Asks until new flows take the fast path in both directions: a node learns where its neighbours are.
    fn warm(&self) {
        for to in self.service.frontends(Protocol::Tcp) {
            eventually("new flows take the fast path", SWITCH, || {
                let before = self.counts();
                Stream::connect(self.client.netns(), to).unwrap().ask("warm").unwrap();
                let after = self.counts();
                (after.0 >= before.0 + 4 && after.1 <= before.1 + 1).then_some(())
            });
        }
    }

    fn streams(&self) -> Streams {
        let from = self.client.netns();
        Streams(
            self.service.frontends(Protocol::Tcp).into_iter().map(|to| Stream::connect(from, to).unwrap()).collect(),
        )
    }

    /// Asks the service anew over both protocols and families.
    fn serves(&self, what: &str) {
        self.streams().ask(what);
        for to in self.service.frontends(Protocol::Udp) {
            let socket = Datagrams::connected(self.client.netns(), 0, to).unwrap();
            for text in ["one", &"x".repeat(1_200)] {
                let answer = socket.ask(text).unwrap_or_else(|error| panic!("{what}: udp {to}: {error}"));
                assert_eq!(answer.text.len(), text.len(), "{what}: udp {to}");
            }
        }
    }

    /// Another wire between the nodes, which no route leads over.
    fn second_wire(&self) {
        let [near, far] = [0, 1].map(|at| self.nodes[at].namespace());
        near.ip(&format!("link add eth1 type veth peer name eth1 netns {}", far.name())).unwrap();
        for (at, node) in [near, far].into_iter().enumerate() {
            let (v4, v6) = (OTHER4[at], OTHER6[at]);
            node.ip(&format!("link set eth1 up\naddress add {v4}/30 dev eth1\naddress add {v6}/64 dev eth1 nodad"))
                .unwrap();
            node.sysctl("net/ipv4/conf/eth1/rp_filter", "2").unwrap();
        }
    }

    /// Leads the packets of one node to the other's pods over the second wire.
    fn over_second_wire(&self, from: usize) {
        let other = 1 - from;
        let (net4, net6) = (self.nodes[other].pod_net4(), self.nodes[other].pod_net6());
        let (v4, v6) = (OTHER4[other], OTHER6[other]);
        let lines = format!("route replace {net4} via {v4}\nroute replace {net6} via {v6}");
        self.nodes[from].namespace().ip(&lines).unwrap();
    }
}

/// Connections that were made already, and what is asked over them.
struct Streams(Vec<Stream>);

impl Streams {
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

#[test]
fn packets_to_other_nodes_and_back_pass_the_forwarding_by_while_nothing_is_skipped() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let beyond = Beyond::new("beyond", pods);
        assert_eq!(beyond.until(true), "[] []");
        beyond.warm();
        let before = beyond.counts();
        let mut open = beyond.streams();
        open.ask("fast");
        beyond.serves("fast");
        let after = beyond.counts();
        assert!(after.0 >= before.0 + 2 * (ASKED + SERVED), "{pods:?}: {before:?}, then {after:?}");
        assert!(after.1 < before.1 + 10, "{pods:?}: both directions pass the stack by: {before:?}, then {after:?}");

        beyond.at_node("nft add table inet seen");
        beyond.at_node("nft add chain inet seen forward { type filter hook forward priority 0; }");
        beyond.at_node("nft add rule inet seen forward counter");
        assert!(beyond.until(false).contains("inet seen forward"), "{pods:?}");
        let before = beyond.counts();
        open.ask("a rule came");
        let mut slow = beyond.streams();
        slow.ask("a rule is there");
        beyond.serves("a rule is there");
        let after = beyond.counts();
        assert_eq!(after.0, before.0, "{pods:?}: nothing passes the rule by");
        assert!(after.1 >= before.1 + 2 * (2 * ASKED + SERVED), "{pods:?}: {before:?}, then {after:?}");

        beyond.at_node("nft delete table inet seen");
        beyond.until(true);
        let before = beyond.counts();
        open.ask("the rule went");
        slow.ask("the rule went");
        assert!(beyond.counts().0 > before.0, "{pods:?}");
    }
}

#[test]
fn what_the_stack_must_see_is_not_skipped() {
    let beyond = Beyond::new("beyondskip", Pods::Routed);
    answers_by_another_link_and_routes_that_move_go_by_the_stack(&beyond);
    what_others_put_on_an_external_link_or_on_the_way_is_not_skipped(&beyond);
    what_is_too_large_for_the_way_is_told_by_the_stack(&beyond);
}

fn what_is_too_large_for_the_way_is_told_by_the_stack(beyond: &Beyond) {
    let (other, node) = (&beyond.nodes[1], beyond.nodes[0].namespace());
    let (v4, v6) = (other.addresses().v4, other.addresses().v6);
    let (net4, net6) = (other.pod_net4(), other.pod_net6());
    beyond.until(true);
    beyond.warm();
    node.ip(&format!("route replace {net4} via {v4} mtu lock 1400\nroute replace {net6} via {v6} mtu lock 1400"))
        .unwrap();
    let before = beyond.counts();
    beyond.serves("narrow");
    let after = beyond.counts();
    assert!(after.0 > before.0 + 20, "what fits takes the fast path: {before:?}, then {after:?}");
    for to in beyond.service.frontends(Protocol::Tcp) {
        let learnt = beyond.client.namespace().ip_show(&["route", "get", &to.ip().to_string()]).unwrap();
        assert!(learnt.contains("mtu 1400"), "the client has learnt of it: {learnt}");
    }
}

fn answers_by_another_link_and_routes_that_move_go_by_the_stack(beyond: &Beyond) {
    beyond.second_wire();
    eventually("the second wire is looked after", SWITCH, || {
        let links = beyond.agent.json(&["status"]).unwrap()["agent"]["datapath"]["links"].to_string();
        links.contains("\"eth1\"").then_some(())
    });
    beyond.until(true);
    beyond.warm();
    let mut open = beyond.streams();
    open.ask("one way");

    beyond.over_second_wire(1);
    let before = beyond.counts();
    open.ask("answers come by another link");
    beyond.serves("answers come by another link");
    let after = beyond.counts();
    let answers = after.1 - before.1;
    assert!(after.0 > before.0 && answers >= ASKED + SERVED, "requests go fast, answers do not: {before:?}, {after:?}");

    beyond.over_second_wire(0);
    let before = beyond.counts();
    open.ask("the route moved");
    assert!(beyond.counts().1 >= before.1 + ASKED);
    beyond.warm();
    let mut new = beyond.streams();
    new.ask("new flows lead over the other link");

    // The link goes, and the routes over it.
    beyond.nodes[0].namespace().ip("link delete eth1").unwrap();
    beyond.nodes[0].route_to(&beyond.nodes[1]).unwrap();
    beyond.nodes[1].route_to(&beyond.nodes[0]).unwrap();
    new.ask("the link went");
    let before = beyond.counts();
    open.ask("its first way is there again");
    assert!(beyond.counts().0 > before.0);
    beyond.warm();
}

fn what_others_put_on_an_external_link_or_on_the_way_is_not_skipped(beyond: &Beyond) {
    beyond.until(true);
    beyond.warm();
    let mut open = beyond.streams();
    let cases = [
        ("tc filters on eth0", "tc filter add dev eth0 ingress pref 7 bpf bytecode 1,6~0~0~4294967295,", ""),
        ("IPsec policies", "ip xfrm policy add src 203.0.113.0/24 dst 203.0.113.0/24 dir fwd", "ip xfrm policy flush"),
    ];
    for (what, add, remove) in cases {
        open.ask("fast");
        if remove.is_empty() {
            beyond.at_node("tc qdisc add dev eth0 clsact");
        }
        beyond.at_node(add);
        assert!(beyond.until(false).contains(what), "{what}: {}", beyond.told());
        assert_eq!(
            beyond.told()["open"],
            remove.is_empty(),
            "{what}: only the way to other nodes meets an external link"
        );
        let before = beyond.counts();
        open.ask(what);
        beyond.serves(what);
        assert_eq!(beyond.counts().0, before.0, "{what}");
        beyond.at_node(if remove.is_empty() { "tc qdisc del dev eth0 clsact" } else { remove });
        beyond.until(true);
    }
    // A queue of what goes out is not passed by.
    beyond.at_node("tc qdisc add dev eth0 root tbf rate 1gbit burst 1mbit latency 50ms");
    let before = beyond.counts();
    open.ask("through the queue");
    assert!(beyond.counts().0 > before.0, "{}", beyond.told());
    let queue = beyond.at_node("tc -s qdisc show dev eth0");
    assert!(!queue.contains("Sent 0 bytes"), "{queue}");
}
