//! Direct server return: a client's packets go whole from the node that they came by to the backend's, which answers by itself.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, Service, peers_flag};
use lb_tests::fixture::serve;
use lb_tests::peers::{Datagrams, Server, Stream, eventually, fresh_port};
use lb_tests::routed::XdpPass;
use lb_tests::topology::{Addresses, Node, NodeOptions, Outside, Pod, Topology};

const VIP: &str = "203.0.113.80";
const VIP6: &str = "2001:db8:113::80";
const NODE_PORTS: [u16; 2] = [30_080, 30_053];

/// Three nodes on one wire; the backends are on the last one. An external client asks by way of the first.
struct Scenario {
    _servers: Vec<Server>,
    backends: Vec<Pod>,
    client: Outside,
    nodes: Vec<Node>,
    topology: Topology,
}

impl Scenario {
    fn new(subject: &str) -> Self {
        let topology = Topology::new(subject).unwrap();
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes: Vec<Node> = (0..3).map(|_| topology.node_with(options).unwrap()).collect();
        for (own, other) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
            nodes[own].route_to(&nodes[other]).unwrap();
        }
        let backends = vec![nodes[2].pod("b0").unwrap(), nodes[2].bridged_pod("b1").unwrap()];
        let servers = backends.iter().zip(["b0", "b1"]).flat_map(|(pod, name)| serve(pod, name)).collect();
        let client = topology.outside("client", &nodes[0]).unwrap();
        let scenario = Self { _servers: servers, backends, client, nodes, topology };
        scenario.ask_by(0);
        scenario
    }

    /// Leads the client to a node.
    fn ask_by(&self, node: usize) {
        let Addresses { v4, v6 } = self.nodes[node].addresses();
        let routes = format!("route replace {VIP} via {v4}\nroute replace {VIP6} via {v6}");
        self.client.namespace().ip(&routes).unwrap();
    }

    /// `mode`: what its annotation says; empty: nothing.
    fn service(&self, mode: &str) -> Service {
        let node = self.nodes[2].node_name();
        let endpoints = self.backends.iter().map(|pod| Endpoint::ready(pod.addresses()).on(&node)).collect();
        let external = External {
            load_balancer_ips: vec![VIP.parse().unwrap(), VIP6.parse().unwrap()],
            node_ports: NODE_PORTS.to_vec(),
            ..External::default()
        };
        let service = Service::web(endpoints).with(external);
        if mode.is_empty() { service } else { service.annotated("mode", mode) }
    }

    /// They know each other.
    fn agents(&self, mode: &str, flags: &[&str]) -> Vec<Agent> {
        let manifest = Manifest::of([self.service(mode)]);
        let peers = peers_flag(&self.nodes);
        let flags = [&[peers.as_str()], flags].concat();
        self.nodes.iter().map(|node| Agent::start_with(node, &manifest, &flags).unwrap()).collect()
    }

    /// The same with other flags.
    fn restart(&self, agents: &mut [Agent], flags: &[&str]) {
        let peers = peers_flag(&self.nodes);
        let flags = [&[peers.as_str()], flags].concat();
        for (node, agent) in self.nodes.iter().zip(agents) {
            agent.restart_with(node, &flags).unwrap();
        }
    }

    /// Where the client may ask: the load balancer's addresses, and the first node's by its node ports.
    fn asked(&self, protocol: Protocol) -> Vec<SocketAddr> {
        let (port, node_port) = match protocol {
            Protocol::Tcp => (80, NODE_PORTS[0]),
            Protocol::Udp => (53, NODE_PORTS[1]),
            Protocol::Sctp => unreachable!("a guest has it"),
        };
        let balanced = [VIP, VIP6].map(|address| SocketAddr::new(address.parse().unwrap(), port));
        let node = self.nodes[0].addresses().both().map(|address| SocketAddr::new(address, node_port));
        balanced.into_iter().chain(node).collect()
    }

    /// The client asks everywhere; what the backend sees is the client itself.
    fn everywhere_the_client_is_seen(&self, what: &str) {
        for to in self.asked(Protocol::Tcp) {
            for _ in 0..8 {
                let mut stream =
                    Stream::connect(self.client.netns(), to).unwrap_or_else(|e| panic!("{what}: {to}: {e}"));
                for text in ["one", "two"] {
                    let answer = stream.ask(text).unwrap_or_else(|e| panic!("{what}: {to}: {e}"));
                    // Its port is another one where a connection on the same tuple has ended within the last minute.
                    assert_eq!(answer.peer.ip(), stream.local().unwrap().ip(), "{what}: {to}");
                }
                assert_eq!(stream.peer().unwrap(), to);
            }
        }
        for to in self.asked(Protocol::Udp) {
            // The kernel may choose the port of a flow to another frontend: to the backend, both are one tuple.
            let socket = Datagrams::connected(self.client.netns(), fresh_port(), to).unwrap();
            for text in ["one", "two", "three"] {
                let answer = socket.ask(text).unwrap_or_else(|e| panic!("{what}: udp {to}: {e}"));
                assert_eq!(answer.peer, socket.local().unwrap(), "{what}: udp {to}");
            }
        }
    }
}

/// The first node's agent has sent packets whole since this count, and no answer ever came back through it.
fn answered_directly(agents: &[Agent], before: u64) {
    assert!(agents[0].counted(Outcome::Tunnelled).unwrap() > before);
    assert_eq!(agents[0].counted(Outcome::Replied).unwrap(), 0, "no answer comes back through the first node");
}

#[test]
fn the_backends_node_answers_by_itself_at_tc_and_at_xdp() {
    let scenario = Scenario::new("dsr");
    let mut agents = scenario.agents("dsr", &["--xdp-mode=off"]);
    scenario.everywhere_the_client_is_seen("tc");
    answered_directly(&agents, 0);
    connections_go_on_by_another_node(&scenario, &agents);
    for mode in ["generic", "native"] {
        // As on a real card: with native XDP the frames leave from XDP, and are opened there.
        let wire = scenario.topology.wire();
        let _passing: Vec<XdpPass> =
            scenario.nodes.iter().map(|node| XdpPass::attach(wire, &node.port()).unwrap()).collect();
        scenario.restart(&mut agents, &[&format!("--xdp-mode={mode}")]);
        let before = agents[0].counted(Outcome::Tunnelled).unwrap();
        scenario.everywhere_the_client_is_seen(mode);
        answered_directly(&agents, before);
    }
    scenario.restart(&mut agents, &["--drain-period=4s", "--drain-max=1h"]);
    connections_to_a_backend_that_is_gone_end_with_the_drain_period(&scenario, &agents);
    let hybrid = Manifest::of([scenario.service("hybrid")]);
    for agent in &agents {
        agent.apply(&hybrid).unwrap();
    }
    hybrid_is_for_tcp_alone(&scenario);
    let manifest = Manifest::of([scenario.service("dsr")]);
    for agent in &agents {
        agent.apply(&manifest).unwrap();
    }
    who_is_no_peer_is_not_served(&scenario, &mut agents);
}

fn hybrid_is_for_tcp_alone(scenario: &Scenario) {
    let tcp = scenario.asked(Protocol::Tcp)[0];
    let mut stream = Stream::connect(scenario.client.netns(), tcp).unwrap();
    assert_eq!(stream.ask("who").unwrap().peer, stream.local().unwrap());
    let udp = scenario.asked(Protocol::Udp)[0];
    let answer = Datagrams::connected(scenario.client.netns(), 0, udp).unwrap().ask("who").unwrap();
    assert_eq!(answer.peer.ip(), scenario.nodes[0].addresses().like(udp.ip()), "of the first node");
}

/// It serves its own backends, and says what it does not.
fn a_node_that_knows_no_other_is_told_so(scenario: &Scenario, agent: &mut Agent) {
    agent.restart_with(&scenario.nodes[2], &["--mode=dsr"]).unwrap();
    let warnings = || agent.json(&["status"]).unwrap()["agent"]["datapath"]["warnings"].to_string();
    eventually("the warning", Duration::from_secs(20), || warnings().contains("--dsr-peers").then_some(()));
    scenario.ask_by(2);
    for to in &scenario.asked(Protocol::Tcp)[..2] {
        let mut stream = Stream::connect(scenario.client.netns(), *to).unwrap();
        assert_eq!(stream.ask("who").unwrap().peer, stream.local().unwrap());
    }
}

/// Nodes are set anew one after the other: those that have no direct server return yet serve what the others send.
#[test]
fn nodes_may_be_set_one_after_the_other() {
    let scenario = Scenario::new("dsr-rollout");
    let manifest = Manifest::of([scenario.service("")]);
    let peers = peers_flag(&scenario.nodes);
    let start = |(node, mode): (&Node, &str)| Agent::start_with(node, &manifest, &[mode, &peers]).unwrap();
    let mut agents: Vec<Agent> =
        scenario.nodes.iter().zip(["--mode=dsr", "--mode=snat", "--mode=snat"]).map(start).collect();
    scenario.everywhere_the_client_is_seen("by the first that is set");
    answered_directly(&agents, 0);
    // One that is not set yet asks as before.
    scenario.ask_by(1);
    let to = scenario.asked(Protocol::Tcp)[0];
    let answer = Stream::connect(scenario.client.netns(), to).unwrap().ask("who").unwrap();
    assert_eq!(answer.peer.ip(), scenario.nodes[1].addresses().like(to.ip()));
    a_node_that_knows_no_other_is_told_so(&scenario, &mut agents[2]);
}

/// The router takes the first node out of its set: another one knows none of the connections, and they go on.
fn connections_go_on_by_another_node(scenario: &Scenario, agents: &[Agent]) {
    let to = scenario.asked(Protocol::Tcp);
    let connect = |index: usize| Stream::connect(scenario.client.netns(), to[index % 2]).unwrap();
    let mut streams: Vec<Stream> = (0..40).map(connect).collect();
    let before: Vec<String> = streams.iter_mut().map(|stream| stream.ask("before").unwrap().server).collect();
    assert!(["b0", "b1"].iter().all(|name| before.iter().any(|server| server == name)));
    scenario.ask_by(1);
    for (stream, server) in streams.iter_mut().zip(&before) {
        assert_eq!(&stream.ask("after").unwrap().server, server);
    }
    assert!(agents[1].counted(Outcome::Tunnelled).unwrap() > 0);
    scenario.ask_by(0);
}

/// No node sees both directions, so none knows whether the backend still answers: the drain period ends its connections, `--drain-max` does not count.
fn connections_to_a_backend_that_is_gone_end_with_the_drain_period(scenario: &Scenario, agents: &[Agent]) {
    const PERIOD: Duration = Duration::from_secs(4);
    let to = scenario.asked(Protocol::Tcp);
    let connect = |index: usize| {
        let mut stream = Stream::connect(scenario.client.netns(), to[index % to.len()]).unwrap();
        let server = stream.ask("before").unwrap().server;
        (stream, server)
    };
    let (mut stay, mut go): (Vec<_>, Vec<_>) = (0..40).map(connect).partition(|(_, server)| server == "b0");
    assert!(!stay.is_empty() && !go.is_empty(), "both backends have connections");
    let mut left = scenario.service("dsr");
    left.endpoints.truncate(1);
    let began = Instant::now();
    for agent in agents {
        agent.apply(&Manifest::of([left.clone()])).unwrap();
    }
    let (drained, asked) = (Instant::now(), &mut go);
    for (stream, server) in &mut *asked {
        let answer = stream.ask("draining");
        // A slow machine may be past the period by now.
        assert!(began.elapsed() >= PERIOD || answer.is_ok_and(|answer| answer.server == *server), "within the period");
    }
    std::thread::sleep((drained + PERIOD + Duration::from_secs(1)).saturating_duration_since(Instant::now()));
    for (stream, _) in asked {
        let error = stream.ask("past the period").expect_err("the drain is over");
        // Broken pipe: on a slow machine the question before got the RST after the period.
        let told = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe];
        assert!(told.contains(&error.kind()), "{error}");
    }
    for (stream, server) in &mut stay {
        assert_eq!(stream.ask("after").unwrap().server, *server);
    }
}

/// A host that is no node of the cluster encapsulates nothing.
fn who_is_no_peer_is_not_served(scenario: &Scenario, agents: &mut [Agent]) {
    for (node, agent) in scenario.nodes.iter().zip(&mut *agents) {
        agent.restart_with(node, &["--dsr-peers=198.51.100.0/24"]).unwrap();
    }
    let to = scenario.asked(Protocol::Tcp)[0];
    let limit = Duration::from_millis(1500);
    assert!(Stream::connect_from(scenario.client.netns(), 0, to, limit).is_err());
    assert!(agents[2].counted(Outcome::DroppedNoPeer).unwrap() > 0);
}
