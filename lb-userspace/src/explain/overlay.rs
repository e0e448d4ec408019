//! The decision's tables over stored ones: reads come from there, writes stay here and are thrown away (ADR 0036).

use std::collections::HashMap;

use lb_common::abi::{Bucket, BucketKey, FlowKey, fast_path, flow_link, link_role};
use lb_common::decide::{
    self, Accepted, Established, FlowTables, Keeping, Maps, NotInserted, Pace, Packet, Pick, Reserved, Tables, Work,
    fresh,
};
use lb_common::limits::AFTER_FLOOD_S;
use lb_common::map::{self, Map, MapId, Record};
use lb_common::outcome::Outcome;
use lb_common::state::SourcePorts;

use super::stored::{DecisionContext, Stored};
use super::trace::Trace;
use crate::observe::inventory::ip;
use lb_tables::{bytes_of, from_bytes};

/// Stored tables, and what a decision has written over them. `None`: it has removed the element.
pub struct Overlay<'a, S> {
    stored: &'a S,
    settings: DecisionContext,
    seed: u32,
    written: HashMap<(MapId, Vec<u8>), Option<Vec<u8>>>,
    pub trace: Trace,
}

impl<'a, S: Stored> Overlay<'a, S> {
    pub fn new(stored: &'a S, settings: DecisionContext) -> Self {
        Self { stored, settings, seed: settings.seed, written: HashMap::new(), trace: Trace::default() }
    }

    /// What was written for this key; else what was stored.
    fn written_or<K: Record, V: Record>(&self, map: MapId, key: &K, stored: impl FnOnce() -> Option<V>) -> Option<V> {
        let written = self.written.get(&(map, bytes_of(key).to_vec()));
        written.map_or_else(stored, |value| value.as_deref().and_then(from_bytes))
    }

    fn write<K: Record, V: Record>(&mut self, map: MapId, key: &K, value: Option<&V>) {
        self.written.insert((map, bytes_of(key).to_vec()), value.map(|value| bytes_of(value).to_vec()));
    }

    /// The element under this key, unless the decision has removed it.
    fn at<M: Map>(&self, key: &M::Key) -> Option<M::Value> {
        self.written_or(M::ID, key, || self.stored.get::<M>(key))
    }

    fn is_flood_within(&self, longer_s: u32) -> bool {
        let until_s = self.at::<map::FloodUntil>(&0).unwrap_or_default();
        until_s != 0 && self.settings.now_ns / 1_000_000_000 <= u64::from(until_s) + u64::from(longer_s)
    }
}

impl<S: Stored> Maps for Overlay<'_, S> {
    /// Where it was found, and what it held then.
    type Element<K: Record, V: Record> = (MapId, K, V);

    fn find<M: Map>(&mut self, key: &M::Key) -> Option<(MapId, M::Key, M::Value)> {
        let found = self.at::<M>(key);
        self.trace.read(M::ID, key, found.as_ref());
        found.map(|value| (M::ID, *key, value))
    }

    fn with<M: Map, R>(
        &mut self,
        (map, key, stored): (MapId, M::Key, M::Value),
        with: impl FnOnce(&mut M::Value) -> R,
    ) -> Option<R> {
        let before = self.written_or(map, &key, || Some(stored))?;
        let mut value = before;
        let result = with(&mut value);
        if bytes_of(&value) != bytes_of(&before) {
            self.write(map, &key, Some(&value));
        }
        Some(result)
    }

    /// The overlay has room for every element: whether a table is full shows only when a program writes to it.
    fn insert<M: Map>(&mut self, key: &M::Key, value: &M::Value, replace: bool) -> Result<(), NotInserted> {
        if !replace && self.at::<M>(key).is_some() {
            return Err(NotInserted::Exists);
        }
        self.write(M::ID, key, Some(value));
        Ok(())
    }

    fn remove<M: Map>(&mut self, key: &M::Key) {
        self.write::<_, M::Value>(M::ID, key, None);
    }
}

impl<const N: usize, S: Stored> Tables<N> for Overlay<'_, S> {
    fn try_slot(&mut self, key: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_ds: u32) -> bool {
        decide::try_slot(self, key, pick, how, now_ds)
    }

    fn leaves_half(&mut self, base: u32, count: u32, id: u32) -> bool {
        decide::leaves_half::<N, _>(self, base, count, id)
    }

    fn note_tried(&mut self, work: &mut Work<N>, now_ds: u32) {
        decide::note_tried(self, work, now_ds);
    }

    fn is_out(&mut self, index: u32, id: u32) -> bool {
        decide::is_out::<N, _>(self, index, id)
    }

    fn now_ns(&mut self) -> u64 {
        self.settings.now_ns
    }

    fn random(&mut self) -> u32 {
        // Knuth's multiplicative sequence: well spread, repeatable.
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.trace.random();
        self.seed
    }

    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool {
        self.stored.is_ruled_out(ip(*address))
    }

    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool {
        let after = self.get::<map::Buckets>(key).map_or_else(
            || fresh(pace, self.settings.now_ns),
            |bucket| Bucket { due_ns: pace.after(bucket.due_ns, self.settings.now_ns) },
        );
        let takes = after.due_ns != 0;
        if takes {
            self.write(map::Buckets::ID, key, Some(&after));
        }
        takes
    }

    /// Flood mode begins for later packets alone.
    fn begun(&mut self, _: u32) {}

    fn opened(&mut self, _: u32) {}

    fn is_flood(&mut self) -> bool {
        self.is_flood_within(0)
    }

    fn is_after_flood(&mut self) -> bool {
        self.is_flood_within(AFTER_FLOOD_S)
    }

    fn flow_room(&mut self) -> u32 {
        self.settings.flow_room
    }

    fn client_key(&mut self) -> u32 {
        self.settings.client_key
    }

    fn source_ports(&mut self) -> SourcePorts {
        self.settings.ports
    }

    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32 {
        self.settings.timeouts.of(protocol, state)
    }

    fn note(&mut self, _: u32, _: Outcome) {}

    /// The programs ask the client's sockets, which no table has.
    fn direct_connection(&mut self, _: &mut Work<N>) -> bool {
        false
    }

    /// The programs ask this node's sockets, which no table has.
    fn node_socket(&mut self, _: &mut Work<N>) -> bool {
        false
    }

    /// The packet is a client's.
    fn is_from_node(&mut self) -> bool {
        false
    }

    fn link(&mut self) -> u32 {
        self.settings.link
    }

    fn link_to(&mut self, address: &[u8; N]) -> u32 {
        self.stored.link_to(address)
    }

    /// As far as the routes show: of a bridge any port will do.
    fn comes_by_its_link(&mut self, packet: &Packet<N>) -> bool {
        let link = self.settings.link;
        let by = if link == 0 { 0 } else { self.stored.link_to(&packet.key.src) };
        by == link || self.at::<map::Links>(&by).is_some_and(|found| found.role == link_role::BRIDGE)
    }

    /// As far as the tables show: the programs ask the kernel as well, whether this very packet fits.
    fn is_fast(&mut self, link: u32, _: u8) -> bool {
        let kind = if flow_link::way(link) == 0 { fast_path::PODS } else { fast_path::NODES };
        fast_path::at(self.at::<map::FastPath>(&0).unwrap_or_default(), self.settings.now_ns) & kind != 0
    }
}

impl<const N: usize, S: Stored> FlowTables<N> for Overlay<'_, S> {
    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved {
        decide::reserve(self, work, port, now_s)
    }

    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted {
        decide::accept(self, work, now_s)
    }

    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established {
        decide::establish(self, work, link, generation, now_s)
    }

    fn keep_entries(&mut self, work: &mut Work<N>, keeping: Keeping) {
        decide::keep_entries(self, work, keeping);
    }
}
