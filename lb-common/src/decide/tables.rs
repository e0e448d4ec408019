//! What the decision reads, and what it notes beside the connections.

use super::connection::Connection;
use super::maps::{FlowRef, Maps};
use super::packet::Packet;
use super::pick::Pick;
use super::rate::Pace;
use super::work::Work;
use crate::abi::{
    Affinity, AffinityKey, Backend, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, NetworkKey,
    SOURCE_SERVICE_BITS, Service, ServiceKey, Slot, SourceKey, UDP, Vip, VipKey, affinity_tag, tag,
};
use crate::limits;
use crate::map::{self, Prefix};
use crate::outcome::Outcome;
use crate::service_cidrs;
use crate::state::{SourcePorts, is_retained};
use crate::words;

/// What the decision reads, and what it notes beside the connections.
///
/// Required is what differs between the kernel and memory. The others are written once here; the programs replace some by functions of their own,
/// which the verifier walks once and by themselves.
pub trait Tables<const N: usize>: Maps {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    fn now_ns(&mut self) -> u64;
    fn random(&mut self) -> u32;
    /// Whether the address is certainly no service's: of no frontend, and no other one that packets are refused at. `false`: it may be one.
    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool;
    /// Takes one new flow from a bucket. `false`: there is none in it.
    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool;
    /// A half-open flow was made.
    fn begun(&mut self, now_s: u32);
    /// A half-open flow has become an open one.
    fn opened(&mut self, now_s: u32);
    /// Whether half-open flows are made faster than their table holds them for [`crate::limits::HALF_OPEN_HELD_S`].
    fn is_flood(&mut self) -> bool;
    /// Whether that was so within [`crate::limits::AFTER_FLOOD_S`]: flows that were made by rule alone may have lost their entries.
    fn is_after_flood(&mut self) -> bool;
    /// Established connections that fit, of all clients.
    fn flow_room(&mut self) -> u32;
    /// The key of the hashes of [`crate::client_shares`].
    fn client_key(&mut self) -> u32;
    fn source_ports(&mut self) -> SourcePorts;
    /// Seconds without a packet after which a flow in this state is forgotten.
    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32;
    /// Counts what the decision learnt about a backend beside its verdict.
    fn note(&mut self, backend: u32, outcome: Outcome);
    /// Whether the client (a local one) has a live TCP connection of its own whose answers have `work.connection.reply_key`.
    fn direct_connection(&mut self, work: &mut Work<N>) -> bool;
    /// Whether a socket of this node takes packets with `work.connection.reply_key`: a live TCP connection, or a bound UDP socket. No kernel
    /// has such a look-up for SCTP.
    fn node_socket(&mut self, work: &mut Work<N>) -> bool;
    /// Whether this node has sent the packet itself: it came by no link.
    fn is_from_node(&mut self) -> bool;

    /// Looks at one slot in search of a backend, as [`try_slot`](super::try_slot) does: the programs call a function of their own.
    fn try_slot(&mut self, key: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_ds: u32) -> bool;
    /// As [`leaves_half`](super::leaves_half): the programs call a function of their own.
    fn leaves_half(&mut self, base: u32, count: u32, id: u32) -> bool;
    /// As [`note_tried`](super::note_tried): the programs call a function of their own.
    fn note_tried(&mut self, work: &mut Work<N>, now_ds: u32);
    /// As [`is_out`](super::is_out): the programs call a function of their own.
    fn is_out(&mut self, index: u32, id: u32) -> bool;

    /// Whether the packet's source was translated at this node, where the packet leaves.
    fn is_translated(&mut self) -> bool {
        false
    }
    /// Index of the link that the packet is seen at.
    fn link(&mut self) -> u32 {
        0
    }
    /// Index of the link that packets to the address leave by; 0: not known.
    fn link_to(&mut self, _address: &[u8; N]) -> u32 {
        0
    }
    /// Whether packets to the sender of this one leave by the link that it is seen at. A sender at another link has forged the source.
    fn comes_by_its_link(&mut self, _packet: &Packet<N>) -> bool {
        true
    }
    /// The link to the backend ([`Flow::link`]), if packets of a new flow of the client at [`Tables::link`] may go there past the host's stack,
    /// and answers to the client's; else 0.
    fn fast_link(&mut self, _client: &[u8; N], _backend: &[u8; N]) -> u32 {
        0
    }
    /// Whether this answer may be handed over at the other end of the client's link ([`Flow::link`]) now.
    fn is_fast(&mut self, _link: u32, _protocol: u8) -> bool {
        false
    }
    /// Whether the routing table leads packets that come by this packet's link from one address to another by the link `link`.
    fn leads_by(&mut self, _from: &[u8; N], _to: &[u8; N], _link: u32) -> bool {
        true
    }
    /// This moment in ticks of [`crate::connect_times`]; 0: connect times are not measured.
    fn connect_clock(&mut self) -> u32 {
        0
    }
    /// Counts a connect time of a backend, in ticks.
    fn count_connect_time(&mut self, _backend: u32, _ticks: u32) {}

    /// Copies the frontend under this key to `into`; `false`: there is none.
    #[inline(always)]
    fn service(&mut self, key: &ServiceKey<N>, into: &mut Service) -> bool {
        let Some(found) = self.find::<map::Services<N>>(key) else { return false };
        self.with::<map::Services<N>, _>(found, |service| words::copy(service, into)).is_some()
    }

    #[inline(always)]
    fn slot(&mut self, index: u32) -> Option<Slot> {
        self.get::<map::Slots>(&index)
    }

    #[inline(always)]
    fn backend(&mut self, id: u32) -> Option<Backend<N>> {
        self.get::<map::Backends<N>>(&id)
    }

    /// Copies a backend's record to `into`; `false`: there is no such id.
    #[inline(always)]
    fn copy_backend(&mut self, id: u32, into: &mut Backend<N>) -> bool {
        let Some(found) = self.find::<map::Backends<N>>(&id) else { return false };
        self.with::<map::Backends<N>, _>(found, |backend| words::copy(backend, into)).is_some()
    }

    /// The entry under this key, of whatever tag.
    #[inline(always)]
    fn flow_entry(&mut self, key: &FlowKey<N>) -> Option<FlowRef<Self, N>> {
        if key.protocol == UDP { self.find::<map::UdpFlows<N>>(key) } else { self.find::<map::Flows<N>>(key) }
    }

    /// Copies the entry under this key to its place in the connection ([`Connection::read`]).
    #[inline(always)]
    fn connection(&mut self, key: &FlowKey<N>, into: &mut Connection<N>) -> Option<FlowRef<Self, N>> {
        let entry = self.flow_entry(key)?;
        self.with::<map::Flows<N>, _>(entry, |flow| into.read(key, flow))?.then_some(entry)
    }

    /// Copies the entry under this key to `into`, its tag checked.
    #[inline(always)]
    fn flow(&mut self, key: &FlowKey<N>, into: &mut Flow<N>) -> Option<FlowRef<Self, N>> {
        let entry = self.flow_entry(key)?;
        self.with::<map::Flows<N>, _>(entry, |flow| words::copy_tagged(flow, into, || tag(key)))?.then_some(entry)
    }

    /// Whether a source range of this service port holds the address.
    #[inline(always)]
    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool {
        let key = Prefix::new(SOURCE_SERVICE_BITS + 8 * N as u32, SourceKey { service, address: *address });
        let Some(found) = self.find::<map::Sources<N>>(&key) else { return false };
        // The service must match whole. A recycled element may show another one's id: denied, the next try finds its own.
        self.with::<map::Sources<N>, _>(found, |source| source.service == service).is_some_and(|is_own| is_own)
    }

    /// Whether the address may be in a service CIDR. `false`: it is in none.
    #[inline(always)]
    fn may_be_in_service_cidr(&mut self, address: &[u8; N]) -> bool {
        let Some(found) = self.find::<map::ServiceCidrs>(&service_cidrs::index::<N>()) else { return false };
        self.with::<map::ServiceCidrs, _>(found, |cover| cover.may_hold(address)).is_some_and(|may| may)
    }

    /// Whether there may be a half-open entry under this key.
    #[inline(always)]
    fn may_be_half_open(&mut self, key: &FlowKey<N>) -> bool {
        self.find::<map::HalfOpen<N>>(key).is_some()
    }

    /// Whether there is a half-open entry under this key that is retained ([`crate::state::is_retained`]).
    #[inline(always)]
    fn is_retained(&mut self, key: &FlowKey<N>) -> bool {
        let Some(entry) = self.find::<map::HalfOpen<N>>(key) else { return false };
        // The step that handles it checks the tag.
        self.with::<map::HalfOpen<N>, _>(entry, |entry| is_retained(&entry.flow)).is_some_and(|is_retained| is_retained)
    }

    /// Copies the half-open entry under this key to `into`, its tag checked; `false`: there is none.
    #[inline(always)]
    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool {
        let Some(entry) = self.find::<map::HalfOpen<N>>(key) else { return false };
        let copied = self.with::<map::HalfOpen<N>, _>(entry, |entry| words::copy_tagged(entry, into, || tag(key)));
        copied.is_some_and(|is_own| is_own)
    }

    /// Whether the adoption window is open: connections may be known to the host's NAT that were made before the node's first start.
    #[inline(always)]
    fn adopts(&mut self, now_s: u32) -> bool {
        // One whole word, which the agent writes before the programs are attached.
        self.get::<map::Adoption>(&0).is_some_and(|until_s| now_s < until_s)
    }

    /// Whether connections are given to another proxy, which gets all new ones.
    #[inline(always)]
    fn hands_over(&mut self) -> bool {
        self.get::<map::Adoption>(&0).is_some_and(|word| word == limits::HAND_OVER)
    }

    /// What was seen of a backend; zeroes, if that was an earlier one of its id. `None`: there is no such id.
    #[inline(always)]
    fn health(&mut self, backend: u32, generation: u32) -> Option<Health> {
        // Each word is whole, and none decides over another.
        let health = self.get::<map::Health<N>>(&backend)?;
        if health.generation == generation { Some(health) } else { Some(Health { generation, ..Health::default() }) }
    }

    /// Writes what was seen of a backend, but for its connections.
    #[inline(always)]
    fn set_health(&mut self, backend: u32, health: &Health) {
        let Some(entry) = self.find::<map::Health<N>>(&backend) else { return };
        // Other CPUs may write it at the same time, and the last word stands.
        self.with::<map::Health<N>, _>(entry, |entry| {
            if entry.generation != health.generation {
                entry.connections = 0;
                entry.generation = health.generation;
            }
            entry.answered_s = health.answered_s;
            entry.ejected_s = health.ejected_s;
            entry.probe_s = health.probe_s;
            entry.unanswered = health.unanswered;
            entry.evidence_client = health.evidence_client;
            entry.evidence_s = health.evidence_s;
        });
    }

    /// Adds to the connections of a backend; what an earlier one of its id had counts as zero.
    #[inline(always)]
    fn count_connection(&mut self, backend: u32, generation: u32, change: i32) {
        let Some(entry) = self.find::<map::Health<N>>(&backend) else { return };
        self.with::<map::Health<N>, _>(entry, |entry| {
            if entry.generation != generation {
                *entry = Health { generation, ..Health::default() };
            }
            if change >= 0 || entry.connections != 0 {
                Self::add(&mut entry.connections, change);
            }
        });
    }

    /// A counter of [`crate::client_shares`].
    #[inline(always)]
    #[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "counters wrap")]
    fn client_share(&mut self, counter: u32) -> u32 {
        // Two CPUs that take the same connection off leave less than nothing.
        let count = self.get::<map::ClientShares>(&counter).unwrap_or(0) as i32;
        if count < 0 { 0 } else { count as u32 }
    }

    /// Adds to it.
    #[inline(always)]
    fn count_client_share(&mut self, counter: u32, change: i32) {
        let Some(counter) = self.find::<map::ClientShares>(&counter) else { return };
        self.with::<map::ClientShares, _>(counter, |counter| Self::add(counter, change));
    }

    /// The affinity of a client, its tag checked.
    #[inline(always)]
    fn affinity(&mut self, key: &AffinityKey<N>) -> Option<Affinity> {
        let entry = self.find::<map::Affinity<N>>(key)?;
        let mut affinity = Affinity { tag: 0, backend: 0, generation: 0, seen_ds: 0 };
        let copy = |entry: &mut Affinity| words::copy_tagged(entry, &mut affinity, || affinity_tag(key));
        self.with::<map::Affinity<N>, _>(entry, copy)?.then_some(affinity)
    }

    #[inline(always)]
    fn set_affinity(&mut self, key: &AffinityKey<N>, affinity: &Affinity) {
        // A full LRU map makes room by itself.
        let _ = self.insert::<map::Affinity<N>>(key, affinity, true);
    }

    /// The next number of a service port's turn (wrapping). Callers at the same moment may be given the same one.
    #[inline(always)]
    fn turn(&mut self, service: u32) -> u32 {
        let Some(turn) = self.find::<map::RoundRobin>(&(service & (limits::ROUND_ROBIN - 1))) else { return 0 };
        let taken = self.with::<map::RoundRobin, _>(turn, |turn| {
            let given = *turn as u32;
            *turn = turn.wrapping_add(1);
            given
        });
        taken.unwrap_or(0)
    }

    #[inline(always)]
    fn vip(&mut self, key: &VipKey<N>) -> Option<Vip> {
        self.get::<map::Vips<N>>(key)
    }

    /// What is known of a client's address: bits of [`crate::abi::network_flags`]; 0: nothing.
    #[inline(always)]
    fn network(&mut self, address: &[u8; N]) -> u32 {
        let key = Prefix::new(8 * N as u32, NetworkKey { address: *address });
        self.get::<map::Networks<N>>(&key).map_or(0, |network| network.flags)
    }

    /// Writes the address of this node that packets to `backend` are to come from, if they cannot come from the client, to `into`;
    /// `false`: there is none. `turn`: how many were tried in vain ([`crate::abi::Masquerade::address`]).
    #[inline(always)]
    fn masquerade(&mut self, backend: &[u8; N], turn: u32, into: &mut [u8; N]) -> bool {
        let link = self.link_to(backend);
        let of_link = self.find::<map::Masquerade<N>>(&link);
        let found = if of_link.is_some() { of_link } else { self.find::<map::Masquerade<N>>(&0) };
        let Some(own) = found else { return false };
        self.with::<map::Masquerade<N>, _>(own, |own| words::address(own.address(turn), into)).is_some()
    }

    /// The backend of this node that another node has chosen.
    #[inline(always)]
    fn endpoint(&mut self, key: &EndpointKey<N>) -> Option<Endpoint> {
        // A recycled element shows another backend, whose service is compared.
        self.get::<map::Endpoints<N>>(key)
    }
}
