//! The model's world: services, backends and connections in plain collections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::wire::Protocol;

/// All that the model knows.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub services: BTreeMap<(SocketAddr, Protocol), Service>,
    pub backends: BTreeMap<u32, Backend>,
    pub connections: Vec<Connection>,
    /// `CLOCK_MONOTONIC` in seconds.
    pub now_s: u32,
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
    /// No endpoint is allowed here, though some exist: drop.
    pub drop_if_empty: bool,
    /// The networks whose clients may pass; `None`: everybody may.
    pub ranges: Option<Vec<Range>>,
    /// Bits of the entry that must not matter to a pod's packets.
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
    pub life: Life,
    /// The endpoint still serves, though it may take no new flows.
    pub serving: bool,
    /// On this node.
    pub local: bool,
    /// The drain's deadline lies behind us; holds in whatever state.
    pub deadline_struck: bool,
}

/// Where a backend is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Active,
    Resting,
    Terminating,
    Draining,
    Maintenance,
    Gone,
}

impl Life {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Active, Self::Resting, Self::Terminating, Self::Draining, Self::Maintenance, Self::Gone];
}

impl Backend {
    /// Whether flows that it has may stay with it.
    pub fn keeps_flows(&self) -> bool {
        self.life != Life::Gone && !self.deadline_struck
    }

    /// Whether its UDP flows leave it at their next packet.
    pub fn sheds_udp(&self) -> bool {
        match self.life {
            Life::Draining => true,
            Life::Resting | Life::Terminating => !self.serving,
            _ => false,
        }
    }
}

/// One connection, with the halves of it that the tables hold.
#[derive(Clone, Debug)]
pub struct Connection {
    pub protocol: Protocol,
    pub client: SocketAddr,
    /// What the client asked for: a frontend, or for a direct connection the other end itself.
    pub target: SocketAddr,
    /// Who answers.
    pub answerer: SocketAddr,
    /// The backend's id and generation; `None`: a direct connection under a translated port.
    pub backend: Option<(u32, u32)>,
    /// The client's port as the answerer sees it.
    pub port: u16,
    /// Made where the client's own link has no program.
    pub early: bool,
    pub forward: Option<Half>,
    pub reply: Option<Half>,
}

/// What is remembered of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    pub state: State,
    pub seen_s: u32,
    /// The other half was given away and is due to be written again.
    pub lost: bool,
    pub ended: Ended,
}

/// Which ends of a TCP connection have said that they are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub client: bool,
    pub answerer: bool,
}

impl Ended {
    /// What either of the two knew.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { client: self.client || other.client, answerer: self.answerer || other.answerer }
    }
}

/// States only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    HalfOpen,
    Open,
    Closing,
    Evicted,
}

impl Connection {
    /// The client as the answerer sees it.
    pub fn seen_client(&self) -> SocketAddr {
        SocketAddr::new(self.client.ip(), self.port)
    }

    /// Whether this packet is the client's.
    pub fn asks(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        self.protocol == protocol && self.forward.is_some() && self.client == src && self.target == dst
    }

    /// Whether this packet is the answerer's.
    pub fn answers(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        self.protocol == protocol && self.reply.is_some() && self.answerer == src && self.seen_client() == dst
    }

    /// Whether a half has been silent for longer than its state allows.
    pub fn is_silent(&self, half: Half, now_s: u32) -> bool {
        let limit = match (self.protocol, half.state) {
            (Protocol::Tcp, State::HalfOpen) => 60,
            (Protocol::Tcp, State::Open) => 8_100,
            (Protocol::Udp, _) => 30,
            (Protocol::Tcp, State::Closing | State::Evicted) => 120,
        };
        now_s.saturating_sub(half.seen_s) > limit
    }
}

impl Connection {
    /// Whether another connection may have the place of this one's replies: it is over, or silent for too long.
    pub fn yields(&self, reply: Half, now_s: u32) -> bool {
        (reply.ended.client && reply.ended.answerer) || self.is_silent(reply, now_s)
    }
}

impl World {
    /// The connection that this packet of a client belongs to.
    pub fn asked(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.connections.iter().position(|connection| connection.asks(protocol, src, dst))
    }

    /// The connection that this packet of an answerer belongs to.
    pub fn answered(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.connections.iter().position(|connection| connection.answers(protocol, src, dst))
    }

    /// Drops connections of which nothing is left.
    pub fn tidy(&mut self) {
        self.connections.retain(|connection| connection.forward.is_some() || connection.reply.is_some());
    }
}
