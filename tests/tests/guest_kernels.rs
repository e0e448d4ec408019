//! Ballast on kernels that it was not developed on, in a virtual machine (`cargo xtask vm`). The agent starts and attaches what the kernel has, and
//! services are reached. A drain and a restart of the agent break no connection, and SCTP is served between two real ends.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use lb_tests::agent::{Agent, Endpoint, External, Manifest, Port, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Association, Datagrams, Server, Stream, eventually};
use lb_tests::topology::{Addresses, NetNs, NodeOptions, Outside};
use serde_json::Value;

const SCTP_PORT: u16 = 3868;
const SCTP_TARGET: u16 = 13_868;
const SCTP_NODE_PORT: u16 = 30_868;
/// Longer than a packet: sent in many chunks.
const LONG: usize = 20_000;

/// One agent for all tests: in an emulated machine its programs take a minute to be verified. The machine ends with the tests.
static SCENE: LazyLock<Scenario> = LazyLock::new(Scenario::new);

struct Scenario {
    agent: Mutex<Agent>,
    outside: Outside,
    fixture: Fixture,
    _servers: Vec<Server>,
}

impl Scenario {
    fn new() -> Self {
        let fixture = Fixture::new("guest", Pods::Routed, 2, NodeOptions::default());
        let outside = fixture.topology.outside("outside", &fixture.node).unwrap();
        let mut servers = Vec::new();
        for (index, pod) in fixture.backends.iter().enumerate() {
            for address in pod.addresses().both() {
                let target = SocketAddr::new(address, SCTP_TARGET);
                servers.push(Server::sctp(pod.netns(), &format!("b{index}"), target).unwrap());
            }
        }
        let agent = fixture.agent(&manifest(&fixture, fixture.endpoints()), &[]);
        Self { agent: Mutex::new(agent), outside, fixture, _servers: servers }
    }

    fn agent(&self) -> MutexGuard<'_, Agent> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open connection from the pod to each TCP address of `web`, and the server that answers.
    fn connections(&self) -> Vec<(Stream, String)> {
        let connect = |to| {
            let mut stream = Stream::connect(self.fixture.client.netns(), to).unwrap();
            let server = stream.ask("who").unwrap().server;
            (stream, server)
        };
        self.fixture.web().frontends(Protocol::Tcp).into_iter().map(connect).collect()
    }

    /// A pod and a host outside, each with its name and its addresses.
    fn clients(&self) -> [(&'static str, &NetNs, Addresses); 2] {
        let client = &self.fixture.client;
        [("pod", client.netns(), client.addresses()), ("host outside", self.outside.netns(), self.outside.addresses())]
    }
}

/// The services, of which `web` has these endpoints.
fn manifest(fixture: &Fixture, endpoints: Vec<Endpoint>) -> Manifest {
    let web = Service { endpoints, ..fixture.web() };
    Manifest::of([web, diameter("diameter", 20, fixture.endpoints(), &[SCTP_NODE_PORT])])
}

/// A service of SCTP.
fn diameter(name: &'static str, last: u8, endpoints: Vec<Endpoint>, node_ports: &[u16]) -> Service {
    let ports = vec![Port { name: "sctp", protocol: Protocol::Sctp, port: SCTP_PORT, target: SCTP_TARGET }];
    let external = External { node_ports: node_ports.to_vec(), ..External::default() };
    Service { ports, ..Service::standard(name, last, endpoints) }.with(external)
}

/// An association is made, carries short and long messages both ways, and both ends see whom they should: the backend `seen`.
fn served(what: &str, from: &NetNs, own: IpAddr, to: SocketAddr, seen: IpAddr) -> String {
    let mut association = Association::connect(from, own, to).unwrap_or_else(|e| panic!("{what}: sctp {to}: {e}"));
    let mut server = String::new();
    for text in ["hello".to_owned(), "long".repeat(LONG / 4), "bye".to_owned()] {
        let answer = association.ask(&text).unwrap_or_else(|e| panic!("{what}: sctp {to}, {} bytes: {e}", text.len()));
        assert_eq!(answer.peer.ip(), seen, "{what}: the address that the backend sees");
        assert_eq!(answer.local.port(), SCTP_TARGET, "{what}");
        server = answer.server;
    }
    assert_eq!(association.peer().unwrap(), to, "{what}: the client believes it talks to the service");
    server
}

#[test]
fn the_agent_attaches_what_the_kernel_has() {
    let status = SCENE.agent().json(&["status"]).unwrap();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    // TCX is there since 6.6, clsact filters before.
    let expected = if version >= (6, 6) { "tcx" } else { "clsact" };
    let datapath = &status["agent"]["datapath"];
    assert_eq!(datapath["problems"], Value::Array(vec![]), "{status:#}");
    let links = datapath["links"].as_array().unwrap();
    assert_eq!(links.len(), 1 + 3, "eth0 and the pods' links: {status:#}");
    for link in links {
        for program in link["programs"].as_array().unwrap() {
            assert_eq!(program["how"], expected, "{}: {program}", link["name"]);
        }
    }
}

#[test]
fn tcp_and_udp_reach_a_service() {
    let web = SCENE.fixture.web();
    let clients = SCENE.clients().map(|(what, from, _)| (what, from));
    for (what, from) in clients.into_iter().chain([("process of the node", SCENE.fixture.node.netns())]) {
        for to in web.frontends(Protocol::Tcp) {
            eventually(&format!("{what}: tcp {to}"), SOON, || Stream::connect(from, to).ok()?.ask("hello").ok());
        }
        for to in web.frontends(Protocol::Udp) {
            let socket = Datagrams::connected(from, 0, to).unwrap();
            eventually(&format!("{what}: udp {to}"), SOON, || socket.ask("hello").ok());
        }
    }
}

#[test]
fn a_backend_that_drains_keeps_its_connections_and_gets_no_new_ones() {
    let fixture = &SCENE.fixture;
    let mut held = eventually("a connection to b1 in each family", SOON, || {
        let connections = SCENE.connections();
        connections.iter().all(|(_, server)| server == "b1").then_some(connections)
    });
    let agent = SCENE.agent();
    agent.apply(&manifest(fixture, fixture.endpoints()[..1].to_vec())).unwrap();
    for _ in 0..8 {
        assert!(SCENE.connections().iter().all(|(_, server)| server == "b0"), "b1 drains");
    }
    for (stream, server) in &mut held {
        assert_eq!(&stream.ask("still").unwrap().server, server);
    }
    agent.apply(&manifest(fixture, fixture.endpoints())).unwrap();
}

#[test]
fn a_new_agent_takes_over_with_connections_open() {
    let mut held = SCENE.connections();
    let mut agent = SCENE.agent();
    agent.kill();
    for (stream, server) in &mut held {
        assert_eq!(&stream.ask("no agent").unwrap().server, server);
    }
    agent.restart().unwrap();
    for (stream, server) in &mut held {
        assert_eq!(&stream.ask("another agent").unwrap().server, server);
    }
    SCENE.connections();
}

#[test]
fn sctp_reaches_a_service_by_its_cluster_addresses() {
    let service = diameter("diameter", 20, vec![], &[]);
    let (what, from, addresses) = SCENE.clients()[0];
    for to in service.frontends(Protocol::Sctp) {
        let own = addresses.like(to.ip());
        served(what, from, own, to, own);
    }
}

#[test]
fn sctp_reaches_a_service_by_its_node_port() {
    for (what, from, addresses) in SCENE.clients() {
        for node in SCENE.fixture.node.addresses().both() {
            let own = addresses.like(node);
            served(what, from, own, SocketAddr::new(node, SCTP_NODE_PORT), own);
        }
    }
}

#[test]
fn sctp_associations_are_spread_over_the_backends() {
    let (_, from, addresses) = SCENE.clients()[0];
    for to in diameter("diameter", 20, vec![], &[]).frontends(Protocol::Sctp) {
        let mut servers: Vec<String> =
            (0..12).map(|_| served("pod", from, addresses.like(to.ip()), to, addresses.like(to.ip()))).collect();
        servers.sort();
        servers.dedup();
        assert_eq!(servers, ["b0", "b1"], "{to}");
    }
}
