//! The model's state: services, backends and connections in plain collections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::connection::{Connection, Left, Second};
use super::routes::Routes;
use super::wire::Protocol;

/// All that the model knows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub services: BTreeMap<(SocketAddr, Protocol), Service>,
    pub backends: BTreeMap<u32, Backend>,
    pub connections: Vec<Connection>,
    /// Tuples of answers that half-open connections have left for another backend.
    pub left: Vec<Left>,
    /// SYNs that ask for another connection under the tuple of an answered one.
    pub seconds: Vec<Second>,
    /// Networks that clients may be in; the longest one that holds an address says whose it is.
    pub networks: Vec<(Range, Whose)>,
    /// Addresses of services that no node has; whether their unserved ports are refused.
    pub vips: BTreeMap<IpAddr, bool>,
    /// Addresses of this node to masquerade by, in turn, by the link towards the backend; 0: by any other.
    pub own_addresses: BTreeMap<u32, Vec<IpAddr>>,
    /// First and last port to translate to.
    pub ports: (u16, u16),
    /// Where packets go that leave.
    pub routes: Option<Routes>,
    /// By backend.
    pub health: BTreeMap<u32, Health>,
    /// `CLOCK_MONOTONIC` in seconds.
    pub now_s: u32,
    /// Until when unknown segments are left to the host's stack, by the same clock.
    pub adoption_until_s: u32,
}

/// A frontend.
#[derive(Clone, Debug)]
pub struct Service {
    pub id: u32,
    pub kind: Kind,
    /// Backends for clients inside, with the generation they had when the service was written.
    pub members: Vec<(u32, u32)>,
    /// The same for clients outside.
    pub members_outside: Vec<(u32, u32)>,
    /// No endpoint is allowed here, though some exist: clients inside are dropped.
    pub drop_if_empty: bool,
    /// The same of clients outside.
    pub drop_outside_if_empty: bool,
    /// The networks whose clients may pass; `None`: everybody may.
    pub ranges: Option<Vec<Range>>,
    /// Unanswered connections may be moved, refusals withheld.
    pub retries: bool,
    /// Bits of the entry that must not matter to packets.
    pub other_flags: u8,
    pub torn: Torn,
}

/// What sort of address a frontend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl Kind {
    /// Those that are reached from outside, too.
    pub const EXTERNAL: [Self; 3] = [Self::ExternalIp, Self::LoadBalancer, Self::NodePort];
}

/// Whose addresses a network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Pods,
    /// This node's own.
    Node,
    /// Another node's.
    Peer,
    /// Services' alone.
    Services,
}

/// What a reader meets in the midst of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    /// Nothing: all is whole.
    Whole,
    /// The entry does not go with its key.
    Entry,
    /// The slots are of another generation of the service.
    Generation,
    /// The slots are another service's.
    Service,
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub address: IpAddr,
    pub bits: u32,
}

impl Range {
    /// Whether the address is in it: as many of the first bits are the same.
    pub fn holds(self, address: IpAddr) -> bool {
        let same = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
            _ => return false,
        };
        same >= self.bits
    }
}

impl Service {
    /// Whether a client with this address may pass.
    pub fn admits(&self, address: IpAddr) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.holds(address)))
    }
}

/// An endpoint of a service.
#[derive(Clone, Debug)]
pub struct Backend {
    pub address: SocketAddr,
    pub service: u32,
    pub generation: u32,
    pub life: BackendState,
    /// The endpoint still serves, though it may take no new flows.
    pub serving: bool,
    /// On this node.
    pub local: bool,
    /// The drain's deadline lies behind us; holds in whatever state.
    pub deadline_struck: bool,
}

/// Where a backend is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    Active,
    Resting,
    Terminating,
    Draining,
    Maintenance,
    Gone,
}

impl BackendState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Active, Self::Resting, Self::Terminating, Self::Draining, Self::Maintenance, Self::Gone];
}

impl Backend {
    /// Whether flows that it has may stay with it.
    pub fn keeps_flows(&self) -> bool {
        self.life != BackendState::Gone && !self.deadline_struck
    }

    /// Whether it is in a set of its service: ready, or terminating where no other one is left.
    pub fn is_in_a_set(&self) -> bool {
        matches!(self.life, BackendState::Active | BackendState::Terminating)
    }

    /// Whether new flows may be sent to it.
    pub fn takes_flows(&self) -> bool {
        self.is_in_a_set() && self.keeps_flows()
    }

    /// Whether its UDP flows leave it at their next packet.
    pub fn sheds_udp(&self) -> bool {
        match self.life {
            BackendState::Draining => true,
            BackendState::Resting | BackendState::Terminating => !self.serving,
            _ => false,
        }
    }
}

/// What was seen of a backend. With another generation it is about another backend, and nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub generation: u32,
    pub answered_s: Option<u32>,
    pub suspect_s: Option<u32>,
    pub probe_s: Option<u32>,
    pub unanswered: u32,
}

impl Model {
    /// The answered connection that this packet of a client belongs to.
    pub fn asked(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.find(|it| it.opening.is_none() && it.asks(protocol, src, dst))
    }

    /// The answered connection that this packet of an answerer belongs to.
    pub fn answered(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.find(|it| it.opening.is_none() && it.answers(protocol, src, dst))
    }

    /// The unanswered connection that this packet of a client belongs to.
    pub fn asking(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.find(|it| it.opening.is_some() && it.asks(protocol, src, dst))
    }

    /// The unanswered connection that this packet of an answerer belongs to.
    pub fn answering(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.find(|it| it.opening.is_some() && it.answers(protocol, src, dst))
    }

    /// Whether something is known of an unanswered connection under this tuple.
    pub fn is_half_open(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        let left = |left: &Left| (left.protocol, left.answerer, left.seen_client) == (protocol, src, dst);
        let second = |second: &Second| protocol == Protocol::Tcp && (second.client, second.target) == (src, dst);
        self.asking(protocol, src, dst).is_some()
            || self.answering(protocol, src, dst).is_some()
            || self.left.iter().any(left)
            || self.seconds.iter().any(second)
    }

    /// Where packets go that leave.
    pub fn routes(&self) -> &Routes {
        self.routes.as_ref().expect("a run has links")
    }

    /// Whether a search for a port to translate to tries each of them.
    pub fn has_few_ports(&self) -> bool {
        self.ports.1 - self.ports.0 < 8
    }

    /// Whose an address is.
    pub fn whose(&self, address: IpAddr) -> Option<Whose> {
        let holding = self.networks.iter().filter(|(network, _)| network.holds(address));
        holding.max_by_key(|(network, _)| network.bits).map(|(_, whose)| *whose)
    }

    /// Whether only a service may have the address, and none has.
    pub fn is_unallocated(&self, address: IpAddr) -> bool {
        self.whose(address) == Some(Whose::Services) && !self.vips.contains_key(&address)
    }

    fn find(&self, is: impl Fn(&Connection) -> bool) -> Option<usize> {
        self.connections.iter().position(is)
    }

    /// What is known of a backend.
    pub fn health(&self, backend: u32) -> Health {
        let generation = self.backends[&backend].generation;
        let known = self.health.get(&backend).copied().unwrap_or_default();
        if known.generation == generation { known } else { Health { generation, ..Health::default() } }
    }

    /// Drops connections of which nothing is left.
    pub fn tidy(&mut self) {
        self.connections.retain(|connection| connection.forward.is_some() || connection.reply.is_some());
    }
}
