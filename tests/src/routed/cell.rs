//! One cell of the table: the client, the frontend, and the result that the rules demand.

use std::net::{IpAddr, SocketAddr};

use lb_common::family::Family;

use crate::agent::Protocol;
use crate::scene::Scene;
use crate::topology::Addresses;

/// By what address a service is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    ClusterIp,
    /// At node 1's address.
    NodePort,
    LoadBalancer,
    ExternalIp,
}

impl AddressKind {
    pub const ALL: [Self; 4] = [Self::ClusterIp, Self::NodePort, Self::LoadBalancer, Self::ExternalIp];

    /// The addresses that the service with this number has by this kind, one of each family.
    pub fn addresses(self, number: u8) -> Vec<IpAddr> {
        let last = u16::from_str_radix(&number.to_string(), 16).expect("decimal digits are hexadecimal ones");
        let (v4, v6): (IpAddr, IpAddr) = match self {
            Self::ClusterIp => ([10, 96, 0, number].into(), [0xfd00, 0x96, 0, 0, 0, 0, 0, last].into()),
            Self::LoadBalancer => ([198, 51, 100, number].into(), [0x2001, 0xdb8, 5, 0, 0, 0, 0, last].into()),
            Self::ExternalIp => ([203, 0, 113, number].into(), [0x2001, 0xdb8, 7, 0, 0, 0, 0, last].into()),
            Self::NodePort => return Vec::new(),
        };
        vec![v4, v6]
    }
}

/// externalTrafficPolicy
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Cluster,
    Local,
}

impl Policy {
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];
}

/// How packets of external clients get to backends of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Snat,
    Dsr,
    Hybrid,
}

impl Mode {
    /// Value of the option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Dsr => "dsr",
            Self::Hybrid => "hybrid",
        }
    }

    fn is_direct(self, protocol: Protocol) -> bool {
        match self {
            Self::Snat => false,
            Self::Dsr => true,
            Self::Hybrid => protocol == Protocol::Tcp,
        }
    }
}

/// Where the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Behind the router.
    Outside,
    /// On node 1.
    Pod,
    /// On node 2.
    PodByRoute,
    /// On node 3.
    PodByTunnel,
    /// On node 1, with the node's network.
    Process,
    /// On node 2, with the node's network.
    ProcessOfPeer,
    /// The backend's own pod, wherever that is.
    Itself,
}

impl Client {
    pub const ALL: [Self; 7] = [
        Self::Outside,
        Self::Pod,
        Self::PodByRoute,
        Self::PodByTunnel,
        Self::Process,
        Self::ProcessOfPeer,
        Self::Itself,
    ];

    /// The node that it is on; see [`Cell::client_node`] for a client that is its own backend.
    const fn node(self) -> Option<usize> {
        match self {
            Self::Outside | Self::Itself => None,
            Self::Pod | Self::Process => Some(0),
            Self::PodByRoute | Self::ProcessOfPeer => Some(1),
            Self::PodByTunnel => Some(2),
        }
    }

    /// A process of a node, which has many addresses.
    pub const fn is_process(self) -> bool {
        matches!(self, Self::Process | Self::ProcessOfPeer)
    }
}

/// Where the service's only backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// On node 1.
    Pod,
    /// On node 2, by a plain route.
    PodByRoute,
    /// On node 3, through the tunnel.
    PodByTunnel,
    /// Node 1 itself.
    Host,
    /// Node 2 itself.
    PeerHost,
    /// There is none.
    None,
}

impl Backend {
    pub const ALL: [Self; 6] = [Self::Pod, Self::PodByRoute, Self::PodByTunnel, Self::Host, Self::PeerHost, Self::None];

    /// The node that it is on.
    pub const fn node(self) -> Option<usize> {
        match self {
            Self::Pod | Self::Host => Some(0),
            Self::PodByRoute | Self::PeerHost => Some(1),
            Self::PodByTunnel => Some(2),
            Self::None => None,
        }
    }

    /// A pod may be its own client.
    pub const fn is_pod(self) -> bool {
        matches!(self, Self::Pod | Self::PodByRoute | Self::PodByTunnel)
    }

    /// How its server calls itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::PodByRoute => "pod-by-route",
            Self::PodByTunnel => "pod-by-tunnel",
            Self::Host => "host",
            Self::PeerHost => "peer-host",
            Self::None => "nobody",
        }
    }
}

/// The service of this backend and policy: last number of its addresses.
pub fn service_number(backend: Backend, policy: Policy) -> u8 {
    20 + 2 * backend as u8 + policy as u8
}

pub fn service_name(backend: Backend, policy: Policy) -> &'static str {
    const NAMES: [[&str; 2]; 6] = [
        ["pod", "pod-local"],
        ["pod-by-route", "pod-by-route-local"],
        ["pod-by-tunnel", "pod-by-tunnel-local"],
        ["host", "host-local"],
        ["peer-host", "peer-host-local"],
        ["nobody", "nobody-local"],
    ];
    NAMES[backend as usize][policy as usize]
}

pub fn node_port(number: u8, protocol: Protocol) -> u16 {
    30_000 + 2 * u16::from(number) + u16::from(protocol == Protocol::Udp)
}

/// What a client is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The backend sees the client's own address.
    Own,
    /// The backend sees an address of node 1.
    Masqueraded,
    /// The backend, which is the client, sees the address that it asked for.
    Service,
    /// Silence.
    Dropped,
    /// Told at once that nobody serves.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub kind: AddressKind,
    pub protocol: Protocol,
    pub family: Family,
    pub policy: Policy,
    pub client: Client,
    pub backend: Backend,
}

impl Cell {
    /// Every combination; those without a pod as backend have no client that is the backend itself.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for client in Client::ALL {
            for (kind, backend) in
                AddressKind::ALL.into_iter().flat_map(|kind| Backend::ALL.map(|backend| (kind, backend)))
            {
                if client == Client::Itself && !backend.is_pod() {
                    continue;
                }
                for (policy, family) in Policy::ALL.into_iter().flat_map(|policy| Family::ALL.map(|f| (policy, f))) {
                    for protocol in [Protocol::Tcp, Protocol::Udp] {
                        all.push(Self { kind, protocol, family, policy, client, backend });
                    }
                }
            }
        }
        all
    }

    /// What the client asks.
    pub fn frontend(self, node: Addresses) -> SocketAddr {
        let number = service_number(self.backend, self.policy);
        if self.kind == AddressKind::NodePort {
            return SocketAddr::new(node.of(self.family), node_port(number, self.protocol));
        }
        let port = match self.protocol {
            Protocol::Tcp => 80,
            Protocol::Udp => 53,
            Protocol::Sctp => super::sctp::PORT,
        };
        SocketAddr::new(self.kind.addresses(number)[self.family as usize], port)
    }

    /// The node that the client is on.
    pub const fn client_node(self) -> Option<usize> {
        if matches!(self.client, Client::Itself) { self.backend.node() } else { self.client.node() }
    }

    /// The node whose agent serves the client: its own, or node 1 for external clients and for node 1's port.
    pub const fn entry(self) -> usize {
        match (self.kind, self.client_node()) {
            (AddressKind::NodePort, _) | (_, None) => 0,
            (_, Some(node)) => node,
        }
    }

    /// The node whose CNI puts its own address in the place of this client's: that of a pod whose packets go to another node, not to a pod of it.
    pub fn masquerader(self, scene: Scene) -> Option<usize> {
        let at = self.client_node().filter(|_| !self.client.is_process())?;
        let to =
            if at == self.entry() { self.backend.node().filter(|_| !self.backend.is_pod())? } else { self.entry() };
        (to != at && scene.masquerades_to_nodes()).then_some(at)
    }

    /// [`Self::due`] in this mode.
    pub fn due_in(self, mode: Mode) -> Due {
        let due = self.due();
        if due != Due::Masqueraded || self.kind == AddressKind::ClusterIp || !mode.is_direct(self.protocol) {
            return due;
        }
        // What others of the cluster ask might come home, with an address of that node: a packet that no stack takes.
        if self.client == Client::Outside { Due::Own } else { due }
    }

    /// By the rules of the manual, page "North–south", and no more of the code than they tell.
    pub fn due(self) -> Due {
        let Some(backend) = self.backend.node() else { return Due::Refused };
        if self.client_node() == Some(self.entry()) {
            return if self.client == Client::Itself { Due::Service } else { Due::Own };
        }
        if self.kind == AddressKind::ClusterIp {
            // Who answers with the node's own stack could not be answered from an address of that stack.
            return if self.backend == Backend::Host { Due::Own } else { Due::Masqueraded };
        }
        if backend == self.entry() {
            return Due::Own;
        }
        if self.policy == Policy::Local { Due::Dropped } else { Due::Masqueraded }
    }
}
