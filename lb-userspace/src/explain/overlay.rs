//! The decision's tables over stored ones: reads come from there, writes stay here and are thrown away (ADR 0036).

use std::collections::HashMap;

use lb_common::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Service,
    ServiceKey, Slot, Vip, VipKey, affinity_tag, fast_path, flow_link, tag,
};
use lb_common::decide::{self, Connection, Pace, Pick, Tables, Work, fresh};
use lb_common::limits::{AFTER_FLOOD_S, HAND_OVER};
use lb_common::outcome::Outcome;
use lb_common::state::{SourcePorts, is_retained};

use super::stored::{Settings, Stored};
use super::trace::{Access, Trace, Write};

/// Stored tables, and what a decision has written over them. `None`: it has removed the entry.
pub struct Overlay<'a, const N: usize, S> {
    stored: &'a S,
    settings: Settings,
    seed: u32,
    pub(super) flows: HashMap<FlowKey<N>, Option<Flow<N>>>,
    pub(super) half_open: HashMap<FlowKey<N>, Option<HalfOpen<N>>>,
    health: HashMap<u32, Health>,
    client_shares: HashMap<u32, i32>,
    affinity: HashMap<AffinityKey<N>, Affinity>,
    round_robin: HashMap<u32, u32>,
    buckets: HashMap<BucketKey, Bucket>,
    pub trace: Trace<N>,
}

impl<'a, const N: usize, S: Stored<N>> Overlay<'a, N, S> {
    pub fn new(stored: &'a S, settings: Settings) -> Self {
        Self {
            stored,
            settings,
            seed: settings.seed,
            flows: HashMap::new(),
            half_open: HashMap::new(),
            health: HashMap::new(),
            client_shares: HashMap::new(),
            affinity: HashMap::new(),
            round_robin: HashMap::new(),
            buckets: HashMap::new(),
            trace: Trace::default(),
        }
    }

    pub(super) fn found<T: Clone>(&mut self, access: impl FnOnce(T) -> Access<N>, value: T) -> T {
        self.trace.0.push(access(value.clone()));
        value
    }

    pub(super) fn wrote(&mut self, write: Write<N>) {
        self.trace.0.push(Access::Write(write));
    }

    /// The entry under this key, unless the decision has removed it.
    pub(super) fn flow_at(&self, key: &FlowKey<N>) -> Option<Flow<N>> {
        self.flows.get(key).copied().unwrap_or_else(|| self.stored.flow(key))
    }

    /// The same of a half-open one.
    pub(super) fn half_open_at(&self, key: &FlowKey<N>) -> Option<HalfOpen<N>> {
        self.half_open.get(key).copied().unwrap_or_else(|| self.stored.half_open(key))
    }

    fn health_at(&self, backend: u32) -> Option<Health> {
        self.health.get(&backend).copied().or_else(|| self.stored.health(backend))
    }

    fn is_flood_within(&self, longer_s: u32) -> bool {
        let until_s = self.stored.flood_until_s();
        until_s != 0 && self.settings.now_ns / 1_000_000_000 <= u64::from(until_s) + u64::from(longer_s)
    }
}

impl<const N: usize, S: Stored<N>> Tables<N> for Overlay<'_, N, S> {
    type FlowRef = FlowKey<N>;

    fn now_ns(&mut self) -> u64 {
        self.settings.now_ns
    }

    fn random(&mut self) -> u32 {
        // Knuth's multiplicative sequence: well spread, repeatable.
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.trace.0.push(Access::Random);
        self.seed
    }

    fn service(&mut self, key: &ServiceKey<N>, into: &mut Service) -> bool {
        let found = self.found(|service| Access::Service(*key, service), self.stored.service(key));
        found.map(|service| *into = service).is_some()
    }

    fn slot(&mut self, index: u32) -> Option<Slot> {
        self.found(|slot| Access::Slot(index, slot), self.stored.slot(index))
    }

    fn backend(&mut self, id: u32) -> Option<Backend<N>> {
        self.found(|backend| Access::Backend(id, backend), self.stored.backend(id))
    }

    fn copy_backend(&mut self, id: u32, into: &mut Backend<N>) -> bool {
        self.backend(id).map(|backend| *into = backend).is_some()
    }

    fn connection(&mut self, key: &FlowKey<N>, into: &mut Connection<N>) -> Option<FlowKey<N>> {
        let flow = self.found(|flow| Access::Flow(*key, flow), self.flow_at(key))?;
        into.read(key, &flow).then_some(*key)
    }

    fn flow(&mut self, key: &FlowKey<N>, into: &mut Flow<N>) -> Option<FlowKey<N>> {
        *into = self.found(|flow| Access::Flow(*key, flow), self.flow_at(key))?;
        (into.tag == tag(key)).then_some(*key)
    }

    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool {
        self.found(|is| Access::Admitted(service, is), self.stored.admitted(service, address))
    }

    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool {
        self.found(Access::RuledOut, self.stored.is_ruled_out(address))
    }

    fn may_be_in_service_cidr(&mut self, address: &[u8; N]) -> bool {
        self.stored.may_be_in_service_cidr(address)
    }

    fn may_be_half_open(&mut self, key: &FlowKey<N>) -> bool {
        self.half_open_at(key).is_some()
    }

    fn is_retained(&mut self, key: &FlowKey<N>) -> bool {
        self.half_open_at(key).is_some_and(|entry| is_retained(&entry.flow))
    }

    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool {
        let found = self.half_open_at(key).filter(|entry| entry.flow.tag == tag(key));
        self.found(|entry| Access::HalfOpen(*key, entry), found).map(|entry| *into = entry).is_some()
    }

    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool {
        let before = self.buckets.get(key).copied().or_else(|| self.stored.bucket(key));
        let after = before.map_or_else(
            || fresh(pace, self.settings.now_ns),
            |bucket| Bucket { due_ns: pace.after(bucket.due_ns, self.settings.now_ns) },
        );
        let takes = after.due_ns != 0;
        if takes {
            self.buckets.insert(*key, after);
        }
        self.found(|takes| Access::Bucket(before, takes), takes)
    }

    /// Flood mode begins for later packets alone.
    fn begun(&mut self, _: u32) {}

    fn opened(&mut self, _: u32) {}

    fn is_flood(&mut self) -> bool {
        self.found(Access::Flood, self.is_flood_within(0))
    }

    fn is_after_flood(&mut self) -> bool {
        self.is_flood_within(AFTER_FLOOD_S)
    }

    fn adopts(&mut self, now_s: u32) -> bool {
        now_s < self.stored.adoption()
    }

    fn hands_over(&mut self) -> bool {
        self.stored.adoption() == HAND_OVER
    }

    fn health(&mut self, backend: u32, generation: u32) -> Option<Health> {
        let health = self.health_at(backend)?;
        let own = if health.generation == generation { health } else { Health { generation, ..Health::default() } };
        Some(self.found(|health| Access::Health(backend, health), own))
    }

    fn set_health(&mut self, backend: u32, health: &Health) {
        let before = self.health_at(backend).unwrap_or_default();
        let connections = if before.generation == health.generation { before.connections } else { 0 };
        let health = Health { connections, ..*health };
        self.health.insert(backend, health);
        self.wrote(Write::Health(backend, health));
    }

    fn count_connection(&mut self, backend: u32, generation: u32, change: i32) {
        let before = self.health_at(backend).unwrap_or_default();
        let mut health =
            if before.generation == generation { before } else { Health { generation, ..Health::default() } };
        health.connections = health.connections.saturating_add_signed(change);
        self.health.insert(backend, health);
    }

    fn flow_room(&mut self) -> u32 {
        self.settings.flow_room
    }

    fn client_key(&mut self) -> u32 {
        self.settings.client_key
    }

    fn client_share(&mut self, counter: u32) -> u32 {
        let change = self.client_shares.get(&counter).copied().unwrap_or_default();
        self.stored.client_share(counter).saturating_add_signed(change)
    }

    fn count_client_share(&mut self, counter: u32, change: i32) {
        *self.client_shares.entry(counter).or_default() += change;
    }

    fn affinity(&mut self, key: &AffinityKey<N>) -> Option<Affinity> {
        let found = self.affinity.get(key).copied().or_else(|| self.stored.affinity(key));
        self.found(Access::Affinity, found.filter(|affinity| affinity.tag == affinity_tag(key)))
    }

    fn set_affinity(&mut self, key: &AffinityKey<N>, affinity: &Affinity) {
        self.affinity.insert(*key, *affinity);
        self.wrote(Write::Affinity(*affinity));
    }

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

    fn turn(&mut self, service: u32) -> u32 {
        let taken = self.round_robin.entry(service).or_default();
        let number = self.stored.round_robin(service).wrapping_add(*taken);
        *taken += 1;
        self.found(Access::RoundRobin, number)
    }

    fn vip(&mut self, key: &VipKey<N>) -> Option<Vip> {
        self.found(|vip| Access::Vip(key.address, vip), self.stored.vip(key))
    }

    fn network(&mut self, address: &[u8; N]) -> u32 {
        self.found(|flags| Access::Network(*address, flags), self.stored.network(address))
    }

    fn masquerade(&mut self, backend: &[u8; N], turn: u32, into: &mut [u8; N]) -> bool {
        let found = self.found(Access::Masquerade, self.stored.masquerade(backend, turn));
        found.map(|address| *into = address).is_some()
    }

    fn endpoint(&mut self, key: &EndpointKey<N>) -> Option<Endpoint> {
        self.found(Access::Endpoint, self.stored.endpoint(key))
    }

    fn source_ports(&mut self) -> SourcePorts {
        self.settings.ports
    }

    fn link(&mut self) -> u32 {
        self.settings.link
    }

    /// As far as the tables show: the programs ask the kernel as well, whether this very packet fits.
    fn is_fast(&mut self, link: u32, _: u8) -> bool {
        let kind = if flow_link::way(link) == 0 { fast_path::PODS } else { fast_path::NODES };
        fast_path::at(self.stored.fast_path(), self.settings.now_ns) & kind != 0
    }

    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32 {
        self.settings.timeouts.of(protocol, state)
    }

    fn note(&mut self, backend: u32, outcome: Outcome) {
        self.wrote(Write::Note(backend, outcome));
    }

    /// The programs ask the client's sockets, which no table has.
    fn direct_connection(&mut self, _: &mut Work<N>) -> bool {
        false
    }

    /// The same of this node's sockets.
    fn node_socket(&mut self, _: &mut Work<N>) -> bool {
        false
    }

    /// The packet is a client's.
    fn is_from_node(&mut self) -> bool {
        false
    }
}
