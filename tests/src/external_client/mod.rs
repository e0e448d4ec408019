//! A fixture with an external client: it is behind a router, and the service's backend is on another node behind a VXLAN tunnel.
//!
//! ```text
//!  client ───── router ──┬── node 1: agent ══ vx0 ══╗
//!  198.51.100.2          └── node 2 ════════════════╝── backend pod
//! ```

use std::net::{IpAddr, SocketAddr};

use crate::agent::{Agent, Endpoint, External, Manifest, Port, Protocol, Service};
use crate::incident::Counters;
use crate::peers::Server;
use crate::topology::{Addresses, Checksums, Namespace, Node, NodeOptions, Pod, Topology, set_checksums};

use crate::fixture;

pub const HTTP: u16 = 30_080;
pub const DNS: u16 = 30_053;
/// Node ports of TCP and UDP whose target is [`TARGET`], where nobody listens but where a test does.
pub const SINK: u16 = 30_081;
pub const ODD: u16 = 30_054;
pub const TARGET: u16 = 5_999;
/// What the tunnel carries at most.
pub const TUNNEL: u32 = 1_400;

/// Fields in the order in which they must end.
pub struct ExternalClient {
    pub agent: Agent,
    _servers: Vec<Server>,
    pub client: Namespace,
    pub backend: Pod,
    pub nodes: [Node; 2],
    pub topology: Topology,
}

impl ExternalClient {
    pub fn new(subject: &str) -> Self {
        Self::with(subject, &[], |service| service)
    }

    /// With these flags of the agent, and the service as `edited`.
    pub fn with(subject: &str, flags: &[&str], edited: impl FnOnce(Service) -> Service) -> Self {
        Self::of(subject, NodeOptions { rp_filter: 2, ..NodeOptions::default() }, flags, edited)
    }

    /// [`Self::with`] on nodes of these options.
    pub fn of(subject: &str, options: NodeOptions, flags: &[&str], edited: impl FnOnce(Service) -> Service) -> Self {
        let topology = Topology::new(subject).expect("a topology: needs root");
        let nodes = [(); 2].map(|()| topology.node_with(options).expect("a node"));
        tunnel(&nodes);
        let client = far_client(&topology);
        let backend = nodes[1].pod("backend").expect("a pod");
        let servers = fixture::serve(&backend, "far");
        let manifest = Manifest::of([edited(service(&backend, &nodes[1]))]);
        let flags = [&["--external-ips", "on"], flags].concat();
        let agent = Agent::start_with(&nodes[0], &manifest, &flags).expect("an agent");
        Self { agent, _servers: servers, client, backend, nodes, topology }
    }

    /// This node port at both addresses of node 1.
    pub fn frontends(&self, port: u16) -> [SocketAddr; 2] {
        self.nodes[0].addresses().both().map(|address| SocketAddr::new(address, port))
    }

    /// The backend's own port, where nobody listens but for the test.
    pub fn target(&self, like: IpAddr) -> SocketAddr {
        SocketAddr::new(self.backend.addresses().like(like), TARGET)
    }

    pub fn counters(&self) -> Counters {
        Counters::read(self.agent.bpffs()).expect("pinned counters")
    }
}

/// Addresses at which the load balancer and the external IPs are.
pub fn load_balancer() -> Addresses {
    Addresses { v4: [203, 0, 113, 10].into(), v6: "2001:db8:113::10".parse().expect("an address") }
}

pub fn external_ip() -> Addresses {
    Addresses { v4: [203, 0, 113, 20].into(), v6: "2001:db8:113::20".parse().expect("an address") }
}

pub fn client_addresses() -> Addresses {
    Addresses { v4: [198, 51, 100, 2].into(), v6: "2001:db8:100::2".parse().expect("an address") }
}

pub fn service(backend: &Pod, on: &Node) -> Service {
    let external = External {
        node_ports: vec![HTTP, DNS, SINK, ODD],
        load_balancer_ips: load_balancer().both().to_vec(),
        external_ips: external_ip().both().to_vec(),
        ..External::default()
    };
    let mut service = Service::web(vec![Endpoint::ready(backend.addresses()).on(&on.node_name())]).with(external);
    service.ports.push(Port { name: "sink", protocol: Protocol::Tcp, port: 81, target: TARGET });
    service.ports.push(Port { name: "odd", protocol: Protocol::Udp, port: 54, target: TARGET });
    service
}

pub fn tunnel(nodes: &[Node; 2]) {
    for (own, other) in [(0, 1), (1, 0)] {
        let (node, peer) = (&nodes[own], &nodes[other]);
        let lines = format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {} remote {} dev {}\n\
             link set vx0 mtu {TUNNEL} up\n\
             address add 172.30.0.{}/24 dev vx0\n\
             address add fd00:30::{}/64 dev vx0 nodad\n\
             route add {} via 172.30.0.{}\n\
             route add {} via fd00:30::{}",
            node.addresses().v4,
            peer.addresses().v4,
            node.uplink(),
            own + 1,
            own + 1,
            peer.pod_net4(),
            other + 1,
            peer.pod_net6(),
            other + 1
        );
        node.namespace().ip(&lines).expect("a tunnel");
    }
}

/// A host in a network of its own, which the wire's namespace routes to.
pub fn far_client(topology: &Topology) -> Namespace {
    let (wire, client) =
        (topology.wire(), Namespace::new(&format!("{}-client", topology.name())).expect("a namespace"));
    client.sysctl("net/ipv6/conf/default/accept_dad", "0").expect("a sysctl");
    wire.ip(&format!("link add far0 type veth peer name eth0 netns {}", client.name())).expect("a link");
    set_checksums(wire, "far0", Checksums::Complete).expect("ethtool");
    set_checksums(&client, "eth0", Checksums::Complete).expect("ethtool");
    wire.ip("link set far0 up\naddress add 198.51.100.1/24 dev far0\naddress add 2001:db8:100::1/64 dev far0 nodad")
        .expect("addresses");
    let Addresses { v4, v6 } = client_addresses();
    let lines = format!(
        "link set lo up\nlink set eth0 up\naddress add {v4}/24 dev eth0\naddress add {v6}/64 dev eth0 nodad\n\
         route add default via 198.51.100.1\nroute add ::/0 via 2001:db8:100::1"
    );
    client.ip(&lines).expect("addresses");
    // The first host on the wire is node 1, which the addresses of services are routed to.
    wire.ip("route add 203.0.113.0/24 via 192.0.2.1\nroute add 2001:db8:113::/64 via 2001:db8:1::1").expect("routes");
    client
}
