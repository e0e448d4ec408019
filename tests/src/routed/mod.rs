//! A routed network: three nodes behind a router, an outside client in another subnet, pods by routes and through a tunnel.
//!
//! ```text
//!   outside client ── router ──┬── node 1: every packet from outside comes in here; routed pods
//!   198.18.0.0/24   192.0.2.254├── node 2: pods on a bridge, reached by plain routes
//!                              └── node 3: pods reached from node 1, and back, through a VXLAN tunnel
//! ```
//!
//! The tunnel carries both families, over either one.
//!
//! The router sends the addresses of services to node 1. Packets on the wire carry complete checksums, so that native XDP is right.

mod cell;
mod contrast;
mod differences;
mod entries;
mod sctp;
mod table;
mod unserved;
mod xdp_pass;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};

pub use cell::{AddressKind, Backend, Cell, Client, Due, Mode, Policy};
pub use contrast::{Contrast, Found, KubeProxies, Rules};
pub use differences::{DIFFERENCES, Difference, Finds};
pub use entries::{eventually_empty, left};
pub use lb_common::family::Family;
pub use table::{Row, run};
pub use unserved::{Unserved, wrong_at_unserved};
pub use xdp_pass::XdpPass;

use crate::agent::{Agent, Endpoint, External, Manifest, Protocol, Service};
use crate::peers::Server;
use crate::topology::{Addresses, Checksums, Namespace, NetNs, Node, NodeOptions, Pod, Topology, set_checksums};

/// Networks that all pods are in.
pub const POD_NETS: &str = "10.244.0.0/16,fd00:244::/32";
/// Addresses that the nodes send outer headers from, also through the tunnel.
const PEERS: &str = "--dsr-peers=192.0.2.0/24,2001:db8:1::/64";
/// Ports of the backends.
const HTTP: u16 = 8080;
const DNS: u16 = 5353;

/// The network, its servers, and the agents once they are started. Fields in the order in which they must end.
#[derive(Debug)]
pub struct Network {
    pub agents: Vec<Agent>,
    servers: Vec<Server>,
    _passing: Vec<XdpPass>,
    clients: [Pod; 3],
    backends: [Pod; 3],
    beyond: Namespace,
    pub nodes: [Node; 3],
    /// What the agents are started with.
    pub mode: Mode,
    pub topology: Topology,
}

impl Network {
    /// The network without agents, its tunnel over IPv4.
    pub fn new(subject: &str) -> Result<Self> {
        Self::over(subject, Family::V4)
    }

    /// The network without agents, its tunnel over this family.
    pub fn over(subject: &str, outer: Family) -> Result<Self> {
        Self::of(subject, outer, NodeOptions { rp_filter: 2, ..NodeOptions::default() })
    }

    /// [`Self::over`] with nodes of these options.
    pub fn of(subject: &str, outer: Family, options: NodeOptions) -> Result<Self> {
        let topology = Topology::new(subject)?;
        let nodes = [topology.node_with(options)?, topology.node_with(options)?, topology.node_with(options)?];
        let [one, two, three] = &nodes;
        for (from, to) in [(one, two), (two, one), (two, three), (three, two)] {
            from.route_to(to)?;
        }
        tunnel(one, three, outer)?;
        let beyond = beyond(&topology, one.addresses())?;
        let clients = [one.pod("client")?, two.bridged_pod("client")?, three.pod("client")?];
        let backends = [one.pod("backend")?, two.bridged_pod("backend")?, three.pod("backend")?];
        let passing = nodes.iter().map(|node| XdpPass::attach(topology.wire(), &node.port())).collect::<Result<_>>()?;
        let mut network = Self {
            agents: Vec::new(),
            servers: Vec::new(),
            _passing: passing,
            clients,
            backends,
            beyond,
            nodes,
            mode: Mode::Snat,
            topology,
        };
        for backend in Backend::ALL {
            if let Some((netns, addresses)) = network.server(backend) {
                for address in addresses.both() {
                    let (http, dns) = (SocketAddr::new(address, HTTP), SocketAddr::new(address, DNS));
                    network.servers.push(Server::tcp(&netns, backend.name(), http)?);
                    network.servers.push(Server::udp(&netns, backend.name(), dns)?);
                }
            }
        }
        Ok(network)
    }

    /// Starts an agent on each node, all told the same.
    pub fn start(&mut self, manifest: &Manifest, flags: &[&str]) -> Result<()> {
        self.start_first(self.nodes.len(), manifest, flags)
    }

    /// [`Self::start`] on the first `count` nodes alone.
    pub fn start_first(&mut self, count: usize, manifest: &Manifest, flags: &[&str]) -> Result<()> {
        let cidr = format!("--cluster-cidr={POD_NETS}");
        let mode = format!("--mode={}", self.mode.name());
        let mut all = vec!["--external-ips=on", &cidr, &mode, PEERS];
        all.extend(flags);
        for node in &self.nodes[..count] {
            self.agents.push(Agent::start_with(node, manifest, &all).with_context(|| node.node_name())?);
        }
        Ok(())
    }

    /// Where the client of this cell runs.
    pub fn client(&self, cell: Cell) -> &NetNs {
        match cell.client {
            Client::Outside => self.beyond.netns(),
            Client::Pod => self.clients[0].netns(),
            Client::PodByRoute => self.clients[1].netns(),
            Client::PodByTunnel => self.clients[2].netns(),
            Client::Process => self.nodes[0].netns(),
            Client::ProcessOfPeer => self.nodes[1].netns(),
            Client::Itself => self.own_pod(cell).netns(),
        }
    }

    fn own_pod(&self, cell: Cell) -> &Pod {
        &self.backends[cell.client_node().expect("who is its own client is a pod of a node")]
    }

    /// How many connections the servers have seen end by a RST.
    pub fn broken(&self) -> u32 {
        self.servers.iter().map(Server::broken).sum()
    }

    /// The addresses that the client of this cell has; a node has others besides.
    pub fn client_addresses(&self, cell: Cell) -> Addresses {
        match cell.client {
            Client::Outside => OUTSIDE,
            Client::Pod => self.clients[0].addresses(),
            Client::PodByRoute => self.clients[1].addresses(),
            Client::PodByTunnel => self.clients[2].addresses(),
            Client::Process => self.nodes[0].addresses(),
            Client::ProcessOfPeer => self.nodes[1].addresses(),
            Client::Itself => self.own_pod(cell).addresses(),
        }
    }

    /// Where this backend runs, and its addresses.
    pub fn server(&self, backend: Backend) -> Option<(NetNs, Addresses)> {
        let pod = |at: usize| (self.backends[at].netns().clone(), self.backends[at].addresses());
        // Servers of hosts are no host processes: nobody connects from them.
        let host = |at: usize| (self.nodes[at].namespace().netns().clone(), self.nodes[at].addresses());
        match backend {
            Backend::Pod => Some(pod(0)),
            Backend::PodByRoute => Some(pod(1)),
            Backend::PodByTunnel => Some(pod(2)),
            Backend::Host => Some(host(0)),
            Backend::PeerHost => Some(host(1)),
            Backend::None => None,
        }
    }

    /// A service for each backend position and policy.
    pub fn services(&self) -> Vec<Service> {
        let all = Backend::ALL.into_iter().flat_map(|backend| Policy::ALL.map(|policy| (backend, policy)));
        all.map(|(backend, policy)| self.service(backend, policy)).collect()
    }

    fn service(&self, backend: Backend, policy: Policy) -> Service {
        let endpoint = self
            .server(backend)
            .zip(backend.node())
            .map(|((_, addresses), at)| Endpoint::ready(addresses).on(&self.nodes[at].node_name()));
        let number = cell::service_number(backend, policy);
        let external = External {
            external_ips: AddressKind::ExternalIp.addresses(number),
            load_balancer_ips: AddressKind::LoadBalancer.addresses(number),
            node_ports: [Protocol::Tcp, Protocol::Udp].map(|protocol| cell::node_port(number, protocol)).to_vec(),
            local: policy == Policy::Local,
            ..External::default()
        };
        Service::standard(cell::service_name(backend, policy), number, endpoint.into_iter().collect()).with(external)
    }

    /// The address that masqueraded packets from node 1 have on their way to this backend: that of the link that they leave by.
    pub fn masqueraded(&self, backend: Backend) -> Addresses {
        match backend {
            Backend::PodByTunnel => tunnel_addresses(1),
            _ => self.nodes[0].addresses(),
        }
    }

    /// Whether a node has this address.
    pub fn is_of_node(&self, at: usize, address: IpAddr) -> bool {
        let shown = self.nodes[at].namespace().ip_show(&["-br", "address"]).unwrap_or_default();
        shown.split_whitespace().any(|word| word.split_once('/').is_some_and(|(text, _)| text.parse() == Ok(address)))
    }
}

const OUTSIDE: Addresses = Addresses {
    v4: std::net::Ipv4Addr::new(198, 18, 0, 7),
    v6: std::net::Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 7),
};

/// The client behind the router, and the router's routes to the services by way of `entry`.
fn beyond(topology: &Topology, entry: Addresses) -> Result<Namespace> {
    let beyond = Namespace::new(&format!("{}-beyond", topology.name()))?;
    let router = topology.wire();
    router.ip(&format!("link add far0 type veth peer name eth0 netns {}", beyond.name()))?;
    set_checksums(router, "far0", Checksums::Complete)?;
    set_checksums(&beyond, "eth0", Checksums::Complete)?;
    router.ip("address add 198.18.0.254/24 dev far0\n\
               address add 2001:db8:18::fe/64 dev far0 nodad\n\
               link set far0 up")?;
    beyond.ip(&format!(
        "link set lo up\n\
         link set eth0 up\n\
         address add {}/24 dev eth0\n\
         address add {}/64 dev eth0 nodad\n\
         route add default via 198.18.0.254\n\
         route add ::/0 via 2001:db8:18::fe",
        OUTSIDE.v4, OUTSIDE.v6
    ))?;
    let Addresses { v4, v6 } = entry;
    let nets4 = [crate::topology::SERVICE_NET4, "198.51.100.0/24", "203.0.113.0/24"];
    let nets6 = [crate::topology::SERVICE_NET6, "2001:db8:5::/64", "2001:db8:7::/64"];
    let routes4 = nets4.map(|net| format!("route add {net} via {v4}\n"));
    let routes6 = nets6.map(|net| format!("route add {net} via {v6}\n"));
    router.ip(&(routes4.concat() + &routes6.concat()))?;
    Ok(beyond)
}

/// The addresses of a node's end of the tunnel.
fn tunnel_addresses(number: u8) -> Addresses {
    Addresses { v4: [172, 30, 0, number].into(), v6: [0xfd00, 0x30, 0, 0, 0, 0, 0, number.into()].into() }
}

/// A tunnel between two nodes over the outer family, and their pods' routes through it.
fn tunnel(one: &Node, three: &Node, outer: Family) -> Result<()> {
    for (node, own, peer, other) in [(one, 1, three, 2), (three, 2, one, 1)] {
        let (inside, across) = (tunnel_addresses(own), tunnel_addresses(other));
        node.namespace().ip(&format!(
            "link add vx0 type vxlan id 7 dstport 4789 local {} remote {} dev {}\n\
             address add {}/24 dev vx0\n\
             address add {}/64 dev vx0 nodad\n\
             link set vx0 up\n\
             route add {} via {}\n\
             route add {} via {}",
            node.addresses().of(outer),
            peer.addresses().of(outer),
            node.uplink(),
            inside.v4,
            inside.v6,
            peer.pod_net4(),
            across.v4,
            peer.pod_net6(),
            across.v6
        ))?;
    }
    Ok(())
}
