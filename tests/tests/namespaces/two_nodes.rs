//! Services across nodes, each with an agent of its own: through a VXLAN tunnel, and over a link without Ethernet.

use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::fixture::{serve, serve_at};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{Addresses, NetNs, Node, NodeOptions, Pod, Topology, tun};

fn served(what: &str, from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        for _ in 0..10 {
            let mut stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("{what}: tcp {to}: {error}"));
            let answer = stream.ask("hello").unwrap_or_else(|error| panic!("{what}: tcp {to}: {error}"));
            assert_eq!(answer.text, "hello");
        }
    }
    for to in service.frontends(Protocol::Udp) {
        for _ in 0..10 {
            let socket = Datagrams::connected(from, 0, to).unwrap();
            socket.ask("hello").unwrap_or_else(|error| panic!("{what}: udp {to}: {error}"));
        }
    }
}

fn refused(what: &str, from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        let error = Stream::connect(from, to).expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{what}: tcp {to}: {error}");
    }
    for to in service.frontends(Protocol::Udp) {
        let error = Datagrams::connected(from, 0, to).unwrap().ask("hello").expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{what}: udp {to}: {error}");
    }
}

/// Two nodes; a client pod and a backend pod on each, the backends serve.
struct Pair {
    _servers: Vec<Vec<lb_tests::peers::Server>>,
    clients: [Pod; 2],
    backends: [Pod; 2],
    nodes: [Node; 2],
    _topology: Topology,
}

impl Pair {
    fn new(subject: &str) -> Self {
        let topology = Topology::new(subject).unwrap();
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        let clients = [nodes[0].pod("client").unwrap(), nodes[1].bridged_pod("client").unwrap()];
        let backends = [nodes[0].bridged_pod("backend").unwrap(), nodes[1].pod("backend").unwrap()];
        let servers = vec![serve(&backends[0], "b0"), serve(&backends[1], "b1")];
        Self { _servers: servers, clients, backends, nodes, _topology: topology }
    }

    fn services(&self) -> [Service; 2] {
        let endpoint = |at: usize| Endpoint::ready(self.backends[at].addresses()).on(&self.nodes[at].node_name());
        [Service::web(vec![endpoint(0), endpoint(1)]), Service::standard("empty", 11, vec![])]
    }

    fn agents(&self) -> [Agent; 2] {
        let manifest = Manifest::of(self.services());
        [0, 1].map(|at| Agent::start(&self.nodes[at], &manifest).unwrap())
    }

    fn everyone_is_served(&self) {
        let [service, empty] = self.services();
        for (at, client) in self.clients.iter().enumerate() {
            served(&format!("pod on node {}", at + 1), client.netns(), &service);
            refused(&format!("pod on node {}", at + 1), client.netns(), &empty);
            served(&format!("process on node {}", at + 1), self.nodes[at].netns(), &service);
        }
    }
}

#[test]
fn pods_reach_backends_through_a_tunnel() {
    let pair = Pair::new("vxlan");
    for (own, other) in [(0, 1), (1, 0)] {
        let (node, peer) = (&pair.nodes[own], &pair.nodes[other]);
        let number = own + 1;
        node.namespace()
            .ip(&format!(
                "link add vx0 type vxlan id 7 dstport 4789 local {} remote {} dev eth0\n\
                 address add 172.30.0.{number}/24 dev vx0\n\
                 address add fd00:30::{number}/64 dev vx0 nodad\n\
                 link set vx0 up\n\
                 route add {} via 172.30.0.{}\n\
                 route add {} via fd00:30::{}",
                node.addresses().v4,
                peer.addresses().v4,
                peer.pod_net4(),
                other + 1,
                peer.pod_net6(),
                other + 1
            ))
            .unwrap();
    }
    let mut agents = pair.agents();
    let status = agents[0].json(&["status"]).unwrap().to_string();
    assert!(status.contains("vx0"), "{status}");
    pair.everyone_is_served();

    let [service, _] = pair.services();
    agents.iter_mut().for_each(Agent::kill);
    let orphan = pair.nodes[0].pod("orphan").unwrap();
    served("pod without an agent", orphan.netns(), &service);
}

/// Programs for links without Ethernet header: a client asks from outside, and a pod without an agent asks through it.
#[test]
fn a_link_without_ethernet_serves_clients_and_catches_pods() {
    let topology = Topology::new("tun").unwrap();
    let node = topology.node_with(NodeOptions { rp_filter: 2, ..NodeOptions::default() }).unwrap();
    let outside = topology.outside("vpn", &node).unwrap();
    let backend = node.pod("backend").unwrap();
    let _servers = serve(&backend, "b0");
    let _wire = tun::join(node.namespace(), outside.namespace(), "tun0").unwrap();
    for (namespace, own, nets) in [
        (node.namespace(), 1, ["203.0.113.0/24".to_owned(), "2001:db8:113::/64".to_owned()]),
        (outside.namespace(), 2, ["10.96.0.0/16".to_owned(), "fd00:96::/112".to_owned()]),
    ] {
        namespace
            .ip(&format!(
                "address add 203.0.113.{own}/24 dev tun0\n\
                 address add 2001:db8:113::{own}/64 dev tun0 nodad\n\
                 link set tun0 up\n\
                 route replace {} dev tun0\n\
                 route replace {} dev tun0",
                nets[0], nets[1]
            ))
            .unwrap();
    }
    let service = Service::web(vec![Endpoint::ready(backend.addresses()).on(&node.node_name())]);
    let empty = Service::standard("empty", 11, vec![]);
    // A backend that lies behind the tunnel itself.
    let beyond = Addresses { v4: [203, 0, 113, 2].into(), v6: "2001:db8:113::2".parse().unwrap() };
    let _far_servers = serve_at(outside.netns(), beyond.both(), "far");
    let far = Service::standard("far", 12, vec![Endpoint::ready(beyond)]);
    let manifest = Manifest::of([service.clone(), empty.clone(), far.clone()]);
    let mut agent = Agent::start(&node, &manifest).unwrap();
    served("pod to a backend behind the tunnel", backend.netns(), &far);
    served("process to a backend behind the tunnel", node.netns(), &far);
    let status = agent.json(&["status"]).unwrap().to_string();
    assert!(status.contains("node_in_l3"), "{status}");
    served("client behind the tunnel", outside.netns(), &service);
    refused("client behind the tunnel", outside.netns(), &empty);

    // Cluster addresses are routed out through the tunnel: there a pod's packets are caught that no other hook saw.
    node.namespace().ip("route add 10.96.0.0/16 dev tun0\nroute add fd00:96::/112 dev tun0").unwrap();
    agent.kill();
    let orphan = node.pod("orphan").unwrap();
    served("pod without an agent", orphan.netns(), &service);
    served("pod without an agent to a backend behind the tunnel", orphan.netns(), &far);
    refused("pod without an agent", orphan.netns(), &empty);
}
