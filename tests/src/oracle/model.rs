//! The model's state: services, backends and connections in plain collections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::adopted::Adopted;
use super::client::Client;
use super::connection::{Claim, Connection, Second};
use super::routes::Routes;
use super::wire::Protocol;

/// All that the model knows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub services: BTreeMap<(SocketAddr, Protocol), Service>,
    pub backends: BTreeMap<u32, Backend>,
    pub connections: Vec<Connection>,
    /// Connections of another proxy.
    pub adopted: Vec<Adopted>,
    /// Of connections whose SYN went to several backends, those that one of them has won.
    pub claims: Vec<Claim>,
    /// SYNs that ask for another connection under the tuple of an answered one.
    pub seconds: Vec<Second>,
    /// Networks that clients may be in; the longest one that holds an address says whose it is.
    pub networks: Vec<(Range, Whose)>,
    /// Addresses of services that no node has; whether their unserved ports are refused.
    pub vips: BTreeMap<IpAddr, bool>,
    /// Addresses of this node to masquerade by, in turn, by the link towards the backend; 0: by any other.
    pub own_addresses: BTreeMap<u32, Vec<IpAddr>>,
    /// How many established TCP connections fit.
    pub room: u32,
    /// Connections that the model knows nothing else about: how many, and whose; `None`: of clients that send nothing here.
    pub others: usize,
    pub holder: Option<(IpAddr, Client)>,
    /// First and last port to translate to.
    pub ports: (u16, u16),
    /// First and last of those that are reused though another client had them lately.
    pub reused: (u16, u16),
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
    pub kind: AddressKind,
    /// Backends for clients inside, with the generation they had when the service was written.
    pub members: Vec<(u32, u32)>,
    /// The same for external clients.
    pub members_outside: Vec<(u32, u32)>,
    /// No endpoint is allowed here, though some exist: clients inside are dropped.
    pub drop_if_empty: bool,
    /// The same of external clients.
    pub drop_outside_if_empty: bool,
    /// The networks whose clients may pass; `None`: everybody may.
    pub ranges: Option<Vec<Range>>,
    /// Unanswered connections may be moved, refusals suppressed.
    pub retries: bool,
    /// Bits of the entry that must not matter to packets.
    pub other_flags: u8,
    pub torn: Torn,
}

/// What sort of address a frontend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl AddressKind {
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

/// The state that a reader may meet during an update.
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
    /// The eviction deadline lies behind us; holds in whatever state.
    pub is_evictable: bool,
    /// It drains, and how far.
    pub drain: Drain,
}

/// The drain of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    None,
    /// Its period is not over.
    Goes,
    /// Its period is over: what it does not answer ends.
    Over,
}

/// Where a backend is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    Active,
    Unready,
    Terminating,
    Draining,
    Maintenance,
    Gone,
}

impl BackendState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Active, Self::Unready, Self::Terminating, Self::Draining, Self::Maintenance, Self::Gone];
}

impl Backend {
    /// Whether established TCP connections that it has may stay with it while it answers.
    pub fn lasts(&self) -> bool {
        self.life != BackendState::Gone && !self.is_evictable
    }

    /// Whether all flows that it has may stay with it.
    pub fn keeps_flows(&self) -> bool {
        self.lasts() && self.drain != Drain::Over
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
            BackendState::Unready | BackendState::Terminating => !self.serving,
            _ => false,
        }
    }
}

/// What was seen of a backend. With another generation it is about another backend, and nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub generation: u32,
    pub answered_s: Option<u32>,
    pub ejected_s: Option<u32>,
    pub probe_s: Option<u32>,
    pub unanswered: u32,
    /// Who has met it silent, and since when that counts.
    pub evidence_client: Option<(IpAddr, u32)>,
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

    /// What was begun beside the connection that this packet of a client belongs to, unless that was silent for too long.
    pub fn beside(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Option<usize> {
        self.find(|it| it.asks_beside(protocol, src, dst)).filter(|at| {
            self.connections[*at].forward.is_some_and(|half| !self.connections[*at].is_silent(half, self.now_s))
        })
    }

    /// Whether the connection's backend takes what is not established.
    pub fn is_kept(&self, at: usize) -> bool {
        self.connections[at].backend.is_none_or(|(id, generation)| {
            let backend = &self.backends[&id];
            backend.generation == generation && backend.keeps_flows()
        })
    }

    /// Whether something is known of an unanswered connection under this tuple.
    pub fn is_half_open(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        let second = |second: &Second| protocol == Protocol::Tcp && (second.client, second.target) == (src, dst);
        self.asking(protocol, src, dst).is_some()
            || self.answering(protocol, src, dst).is_some()
            || self.seconds.iter().any(second)
    }

    /// Where packets go that leave.
    pub fn routes(&self) -> &Routes {
        self.routes.as_ref().expect("a run has links")
    }

    /// Whether connections are translated to this port though another client had it lately.
    pub fn is_reused_port(&self, port: u16) -> bool {
        (self.reused.0..=self.reused.1).contains(&port)
    }

    /// Whether a search for a port to translate to tries each of them.
    pub fn has_few_ports(&self) -> bool {
        self.ports.1 - self.ports.0 < 8
    }

    /// The clients of established TCP connections, by what counts as one client: of an external one of IPv6, the network of 64 bits.
    pub fn clients(&self) -> impl Iterator<Item = (IpAddr, Client)> {
        let counts = |it: &&Connection| it.protocol == Protocol::Tcp && it.opening.is_none() && it.forward.is_some();
        let others = self.holder.into_iter().flat_map(|holder| std::iter::repeat_n(holder, self.others));
        self.connections.iter().filter(counts).map(|it| (it.client.ip(), it.who)).chain(others)
    }

    /// Connections of clients that send nothing here.
    pub fn anonymous(&self) -> usize {
        if self.holder.is_none() { self.others } else { 0 }
    }

    /// Whether a new connection of this client is refused because others have need of the room that is left.
    pub fn is_greedy(&self, client: IpAddr, who: Client) -> bool {
        let whole = |(address, who): (IpAddr, Client)| match address {
            IpAddr::V6(address) if who == Client::Outside => {
                (IpAddr::from((address.to_bits() >> 64 << 64).to_be_bytes()), true)
            }
            _ => (address, false),
        };
        let all = self.anonymous() + self.clients().count();
        let own = self.clients().filter(|it| whole(*it) == whole((client, who))).count();
        let room = self.room as usize;
        // A quarter is rounded down.
        all > room - room / 4 && own > room.saturating_sub(all)
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

    /// Another unanswered connection that this packet of an answerer belongs to.
    pub fn find_beside(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr, at: usize) -> Option<usize> {
        let is = |it: &Connection| it.opening.is_some() && it.answers(protocol, src, dst);
        (0..self.connections.len()).find(|other| *other != at && is(&self.connections[*other]))
    }

    fn find(&self, is: impl Fn(&Connection) -> bool) -> Option<usize> {
        self.connections.iter().position(is)
    }

    /// The claim on this attempt of a client.
    pub fn claim(&self, of: &Connection) -> Option<Connection> {
        self.claims.iter().find(|claim| claim.is_of(of)).map(|claim| claim.winner.clone())
    }

    /// The client's half is this one's from now on. Where it is.
    pub fn give(&mut self, winner: &Connection) -> usize {
        let (protocol, client, target) = (winner.protocol, winner.client, winner.target);
        if let Some(before) = self.asking(protocol, client, target) {
            self.connections[before].forward = None;
        }
        self.tidy();
        let made = |it: &Connection| (it.backend, it.isn, it.since_s, it.early, it.masqueraded);
        let place = self.answering(protocol, winner.answerer, winner.seen_client).filter(|at| {
            let it = &self.connections[*at];
            it.forward.is_none() && (it.client, it.target) == (client, target) && made(it) == made(winner)
        });
        let Some(at) = place else {
            self.connections.push(Connection { reply: None, ..winner.clone() });
            return self.connections.len() - 1;
        };
        let it = &mut self.connections[at];
        it.forward = winner.forward;
        let clients = winner.opening.clone().unwrap_or_default();
        it.opening = it.opening.as_ref().map(|own| own.with_clients(&clients));
        at
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
