//! The decision's tables as plain hash maps, for tests and fuzzers: the third home of the same code.

mod ask;
mod network;

use std::any::Any;
use std::collections::{HashMap, HashSet};

use crate::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health,
    Masquerade, Service, ServiceKey, Slot, Vip, VipKey, half_open_flags, network_flags, tag,
};
use crate::connect_times;
use crate::decide::{
    self, Accepted, Established, FlowTables, Maps, NotInserted, Pace, Packet, Pick, Reserved, Tables, Work, fresh,
};
use crate::limits::{AFTER_FLOOD_S, FLOOD_S, HAND_OVER};
use crate::map::{self, Map, Record};
use crate::outcome::Outcome;
use crate::state::{SourcePorts, Timeouts};

pub use ask::{End, active, frontend, reply, tuple, what};

/// The initial sequence number of clients that give no other.
pub const ISN: u32 = 1_000;

/// Tables for one family, a clock that moves only when a test asks, and a fixed sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Memory<const N: usize = 4> {
    /// Frontends.
    pub services: HashMap<ServiceKey<N>, Service>,
    /// Addresses that are not ruled out, beside those of services and VIPs: such ones of before.
    pub known: HashSet<[u8; N]>,
    /// By index.
    pub slots: HashMap<u32, Slot>,
    /// By id.
    pub backends: HashMap<u32, Backend<N>>,
    /// Entries of answered connections.
    pub flows: HashMap<FlowKey<N>, Flow<N>>,
    /// Entries of others.
    pub half_open: HashMap<FlowKey<N>, HalfOpen<N>>,
    /// By backend.
    pub health: HashMap<u32, Health>,
    /// Backends of remembered clients.
    pub affinity: HashMap<AffinityKey<N>, Affinity>,
    /// Round-robin counters by service.
    pub turns: HashMap<u32, u32>,
    /// Token buckets.
    pub buckets: HashMap<BucketKey, Bucket>,
    /// Addresses of services that no node has.
    pub vips: HashMap<VipKey<N>, Vip>,
    /// How long entries last.
    pub timeouts: Timeouts,
    /// Ports to translate to.
    pub ports: SourcePorts,
    /// Networks by address and bits, with [`crate::abi::network_flags`].
    pub networks: Vec<([u8; N], u32, u32)>,
    /// Backends of this node, as other nodes name them.
    pub endpoints: HashMap<EndpointKey<N>, Endpoint>,
    /// The addresses of this node that masqueraded packets come from.
    pub own: Option<Masquerade<N>>,
    /// What the decision learnt about backends.
    pub notes: Vec<(u32, Outcome)>,
    /// Admitted networks: service port, address, bits.
    pub sources: Vec<(u32, [u8; N], u32)>,
    /// How many flow entries fit.
    pub capacity: usize,
    /// How many established connections the decision takes to fit.
    pub flow_room: u32,
    /// Of the hashes of clients.
    pub client_key: u32,
    /// By [`crate::client_shares::Counters`].
    pub client_shares: HashMap<u32, i32>,
    /// Half-open flows made in the second: which one, how many.
    pub syn_counts: (u32, u32),
    /// More of them are too many; 0: never.
    pub most_half_open: u32,
    /// Until when flows are made by rule alone.
    pub flood_until_s: u32,
    /// Until when unknown segments are left to the host's stack; 0: never.
    pub adoption_until_s: u32,
    /// The numbers by which another processor marks all half-open entries as answered, right after the next look-up of one.
    pub answered_meanwhile: Option<[u32; 2]>,
    /// Connect times are measured.
    pub measures: bool,
    /// Connect times that were counted: backend, ticks.
    pub connect_times: Vec<(u32, u32)>,
    /// The clock.
    pub now_ns: u64,
    /// The last random number.
    pub seed: u32,
    /// Live direct connections of local clients, client → server.
    pub direct: Vec<FlowKey<N>>,
    /// Sockets of this node: what each receives.
    pub node_sockets: Vec<FlowKey<N>>,
    /// The packets are this node's own.
    pub is_from_node: bool,
    /// The packets come by links that do not lead to their senders.
    pub comes_astray: bool,
}

impl<const N: usize> Memory<N> {
    /// Empty tables.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            services: HashMap::new(),
            known: HashSet::new(),
            slots: HashMap::new(),
            backends: HashMap::new(),
            flows: HashMap::new(),
            half_open: HashMap::new(),
            health: HashMap::new(),
            affinity: HashMap::new(),
            turns: HashMap::new(),
            buckets: HashMap::new(),
            vips: HashMap::new(),
            timeouts: Timeouts::DEFAULT,
            ports: SourcePorts::DEFAULT,
            networks: Vec::new(),
            endpoints: HashMap::new(),
            own: None,
            notes: Vec::new(),
            sources: Vec::new(),
            capacity: usize::MAX,
            flow_room: u32::MAX,
            client_key: 0x5eed_1e55,
            client_shares: HashMap::new(),
            syn_counts: (0, 0),
            most_half_open: 0,
            flood_until_s: 0,
            adoption_until_s: 0,
            answered_meanwhile: None,
            measures: false,
            connect_times: Vec::new(),
            now_ns: 1_000_000_000_000,
            seed: 1,
            direct: Vec::new(),
            node_sockets: Vec::new(),
            is_from_node: false,
            comes_astray: false,
        }
    }
}

impl Default for Memory<4> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<const N: usize> Memory<N> {
    /// The map, by what it holds: flows of UDP are among the others.
    fn map<M: Map>(&mut self) -> &mut HashMap<M::Key, M::Value> {
        let maps: [&mut dyn Any; 9] = [
            &mut self.services,
            &mut self.slots,
            &mut self.backends,
            &mut self.flows,
            &mut self.half_open,
            &mut self.health,
            &mut self.affinity,
            &mut self.vips,
            &mut self.endpoints,
        ];
        let mut found = maps.into_iter().filter_map(|map| map.downcast_mut());
        found.next().unwrap_or_else(|| panic!("{} is not kept in memory", M::NAME))
    }
}

impl<const N: usize> Maps for Memory<N> {
    type Element<K: Record, V: Record> = K;

    fn find<M: Map>(&mut self, key: &M::Key) -> Option<M::Key> {
        // Every backend has an element there from the start.
        if M::ID == map::Health::<N>::ID
            && let Some(backend) = (key as &dyn Any).downcast_ref()
        {
            self.health.entry(*backend).or_default();
        }
        self.map::<M>().contains_key(key).then_some(*key)
    }

    fn with<M: Map, R>(&mut self, key: M::Key, with: impl FnOnce(&mut M::Value) -> R) -> Option<R> {
        self.map::<M>().get_mut(&key).map(with)
    }

    fn insert<M: Map>(&mut self, key: &M::Key, value: &M::Value, replace: bool) -> Result<(), NotInserted> {
        let is_bounded = [map::Flows::<N>::ID, map::UdpFlows::<N>::ID, map::HalfOpen::<N>::ID].contains(&M::ID);
        let capacity = if is_bounded { self.capacity } else { usize::MAX };
        let map = self.map::<M>();
        let exists = map.contains_key(key);
        if exists && !replace {
            return Err(NotInserted::Exists);
        }
        if !exists && map.len() >= capacity {
            return Err(NotInserted::Full);
        }
        map.insert(*key, *value);
        Ok(())
    }

    fn remove<M: Map>(&mut self, key: &M::Key) {
        self.map::<M>().remove(key);
    }
}

impl<const N: usize> FlowTables<N> for Memory<N> {
    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved {
        decide::reserve(self, work, port, now_s)
    }

    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted {
        decide::accept(self, work, now_s)
    }

    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established {
        decide::establish(self, work, link, generation, now_s)
    }

    fn keep_entries(&mut self, work: &mut Work<N>, keeping: decide::Keeping) {
        decide::keep_entries(self, work, keeping);
    }
}

impl<const N: usize> Tables<N> for Memory<N> {
    fn try_slot(&mut self, key: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_ds: u32) -> bool {
        decide::try_slot(self, key, pick, how, now_ds)
    }

    fn leaves_half(&mut self, base: u32, count: u32, id: u32) -> bool {
        decide::leaves_half(self, base, count, id)
    }

    fn note_tried(&mut self, work: &mut Work<N>, now_ds: u32) {
        decide::note_tried(self, work, now_ds);
    }

    fn is_out(&mut self, index: u32, id: u32) -> bool {
        decide::is_out(self, index, id)
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn random(&mut self) -> u32 {
        // Knuth's multiplicative sequence: well spread, repeatable.
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed
    }

    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool {
        self.sources.iter().any(|(id, range, bits)| *id == service && network::holds(range, *bits, address))
    }

    /// The most that the table of the programs may say: every address that is not known is ruled out.
    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool {
        let is_known = self.known.contains(address)
            || self.services.keys().any(|key| key.address == *address)
            || self.vips.contains_key(&VipKey { address: *address });
        !is_known
    }

    /// The most that the cover may rule out: whatever is in no CIDR.
    fn may_be_in_service_cidr(&mut self, address: &[u8; N]) -> bool {
        self.networks.iter().any(|(network, bits, flags)| {
            flags & network_flags::SERVICES != 0 && network::holds(network, *bits, address)
        })
    }

    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool {
        let found = self.half_open.get(key).filter(|entry| entry.flow.tag == tag(key));
        if let Some(entry) = found {
            *into = *entry;
        }
        let is_found = found.is_some();
        if let Some(answers) = self.answered_meanwhile.take_if(|_| is_found) {
            for entry in self.half_open.values_mut() {
                (entry.flags, entry.answers) = (entry.flags | half_open_flags::ANSWERED, answers);
            }
        }
        is_found
    }

    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool {
        let Some(bucket) = self.buckets.get(key) else {
            self.buckets.insert(*key, fresh(pace, self.now_ns));
            return true;
        };
        let after_ns = pace.after(bucket.due_ns, self.now_ns);
        if after_ns != 0 {
            self.buckets.insert(*key, Bucket { due_ns: after_ns });
        }
        after_ns != 0
    }

    fn begun(&mut self, now_s: u32) {
        if self.most_half_open == 0 {
            return;
        }
        if self.syn_counts.0 != now_s {
            self.syn_counts = (now_s, 0);
        }
        self.syn_counts.1 += 1;
        if self.syn_counts.1 > self.most_half_open {
            self.flood_until_s = now_s + FLOOD_S;
        }
    }

    fn opened(&mut self, now_s: u32) {
        if self.syn_counts.0 == now_s {
            self.syn_counts.1 = self.syn_counts.1.saturating_sub(1);
        }
    }

    fn is_flood(&mut self) -> bool {
        self.flood_until_s != 0 && self.now_ns / 1_000_000_000 <= u64::from(self.flood_until_s)
    }

    fn is_after_flood(&mut self) -> bool {
        self.flood_until_s != 0
            && self.now_ns / 1_000_000_000 <= u64::from(self.flood_until_s) + u64::from(AFTER_FLOOD_S)
    }

    fn adopts(&mut self, now_s: u32) -> bool {
        now_s < self.adoption_until_s
    }

    fn hands_over(&mut self) -> bool {
        self.adoption_until_s == HAND_OVER
    }

    fn flow_room(&mut self) -> u32 {
        self.flow_room
    }

    fn client_key(&mut self) -> u32 {
        self.client_key
    }

    fn client_share(&mut self, counter: u32) -> u32 {
        self.client_shares.get(&counter).copied().unwrap_or_default().max(0).cast_unsigned()
    }

    fn count_client_share(&mut self, counter: u32, change: i32) {
        *self.client_shares.entry(counter).or_default() += change;
    }

    fn turn(&mut self, service: u32) -> u32 {
        let turn = self.turns.entry(service).or_default();
        *turn += 1;
        *turn - 1
    }

    fn network(&mut self, address: &[u8; N]) -> u32 {
        let found = self.networks.iter().filter(|(network, bits, _)| network::holds(network, *bits, address));
        found.max_by_key(|(_, bits, _)| *bits).map_or(0, |(.., flags)| *flags)
    }

    fn masquerade(&mut self, _: &[u8; N], turn: u32, into: &mut [u8; N]) -> bool {
        self.own.map(|own| *into = *own.address(turn)).is_some()
    }

    fn source_ports(&mut self) -> SourcePorts {
        self.ports
    }

    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32 {
        self.timeouts.with_room().of(protocol, state)
    }

    fn connect_clock(&mut self) -> u32 {
        if self.measures { connect_times::ticks(self.now_ns) } else { 0 }
    }

    fn count_connect_time(&mut self, backend: u32, ticks: u32) {
        self.connect_times.push((backend, ticks));
    }

    fn note(&mut self, backend: u32, outcome: Outcome) {
        self.notes.push((backend, outcome));
    }

    fn direct_connection(&mut self, work: &mut Work<N>) -> bool {
        self.direct.contains(&work.reply_key().reversed())
    }

    fn node_socket(&mut self, work: &mut Work<N>) -> bool {
        self.node_sockets.contains(work.reply_key())
    }

    fn is_from_node(&mut self) -> bool {
        self.is_from_node
    }

    fn comes_by_its_link(&mut self, _: &Packet<N>) -> bool {
        !self.comes_astray
    }
}
