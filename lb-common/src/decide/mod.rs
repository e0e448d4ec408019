//! The per-packet decision: tuple in, verdict out, over any tables.
//!
//! The same code runs in the eBPF programs over the kernel's maps and on the host over plain ones. It knows no packet bytes:
//! parsing and rewriting belong to the hook. Work is bounded: at most [`crate::limits::SERVICE_LOOKUPS`] service look-ups and
//! [`crate::limits::PORT_ATTEMPTS`] source ports.

mod affinity;
mod beside;
mod client;
mod direct;
mod known;
mod quoted;
mod schedule;
mod select;
mod vip;

pub use affinity::{recall, remember};
pub use beside::{concerns, later_fragment, malformed, stray_fragment};
pub use client::Client;
pub use quoted::{IcmpError, quoted};
pub use select::{Pick, Picked, pick};
pub use vip::{echoes, is_unserved, is_vip};

use crate::abi::{
    Affinity, AffinityKey, Backend, Flow, FlowKey, HalfOpen, Health, Service, ServiceKey, Slot, Vip, VipKey,
};
use crate::outcome::Outcome;

/// What the decision reads and writes. Implemented by the eBPF maps and by plain hash maps.
pub trait Tables<const N: usize> {
    /// Names a flow entry that was found, for [`Tables::touch`].
    type FlowRef: Copy;

    /// `CLOCK_MONOTONIC` in nanoseconds.
    fn now_ns(&mut self) -> u64;
    fn random(&mut self) -> u32;
    /// Copies the frontend under this key to `into`; `false`: there is none.
    fn service(&mut self, key: &ServiceKey<N>, into: &mut Service) -> bool;
    fn slot(&mut self, index: u32) -> Option<Slot>;
    fn backend(&mut self, id: u32) -> Option<Backend<N>>;
    /// Copies the entry under this key to `into`, its tag checked.
    fn flow(&mut self, key: &FlowKey<N>, into: &mut Flow<N>) -> Option<Self::FlowRef>;
    /// Sets time, state and flags of an entry in place, if it still is the one with this tag.
    fn touch(&mut self, entry: Self::FlowRef, tag: u32, seen_s: u32, state: u8, flags: u8);
    /// Writes an entry; without `replace` an existing one is left alone and refused.
    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted>;
    fn remove_flow(&mut self, key: &FlowKey<N>);
    /// Whether a source range of this service port holds the address.
    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool;
    /// Copies the half-open entry under this key to `into`, its tag checked; `false`: there is none.
    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool;
    /// Writes a half-open entry; without `replace` an existing one is left alone and refused.
    fn insert_half_open(&mut self, key: &FlowKey<N>, entry: &HalfOpen<N>, replace: bool) -> Result<(), NotInserted>;
    fn remove_half_open(&mut self, key: &FlowKey<N>);
    /// What was seen of a backend; zeroes, if that was an earlier one of its id. `None`: there is no such id.
    fn health(&mut self, backend: u32, generation: u32) -> Option<Health>;
    /// Writes what was seen of a backend, but for its connections.
    fn set_health(&mut self, backend: u32, health: &Health);
    /// Adds to the connections of a backend; what an earlier one of its id had counts as zero.
    fn count_connection(&mut self, backend: u32, generation: u32, change: i32);
    /// The affinity of a client, its tag checked.
    fn affinity(&mut self, key: &AffinityKey<N>) -> Option<Affinity>;
    fn set_affinity(&mut self, key: &AffinityKey<N>, affinity: &Affinity);
    /// The next number of a service port's turn; each is given once (wrapping).
    fn turn(&mut self, service: u32) -> u32;
    fn vip(&mut self, key: &VipKey<N>) -> Option<Vip>;
    /// Seconds without a packet after which a flow in this state is forgotten.
    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32;
    /// Counts what the decision learnt about a backend beside its verdict.
    fn note(&mut self, backend: u32, outcome: Outcome);
    /// Whether the client (a local one) has a live TCP connection of its own whose answers have this tuple.
    fn direct_connection(&mut self, reply: &FlowKey<N>) -> bool;
}

/// Why [`Tables::insert_flow`] wrote nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInserted {
    Exists,
    Full,
}

/// What the decision must know of the hook that asks. Bits, so that a program can hold them in a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook(pub u8);

impl Hook {
    /// Packets come straight from the client: what is not for a service is the client's own direct traffic.
    pub const FROM_CLIENT: u8 = 1;
    /// The link is not the client's: replies must be rewritten where they are first seen.
    pub const CATCH_ALL: u8 = 2;
    /// Rewrites replies of flows that a catch-all hook made.
    pub const EARLY_REPLIES: u8 = 4;
    /// Rewrites all replies: they leave here towards the client.
    pub const REPLIES: u8 = 8;
    /// Translates requests.
    pub const REQUESTS: u8 = 16;
    /// Only towards backends of this node; all else is left to tc.
    pub const LOCAL_ONLY: u8 = 32;
    /// The packet has been routed already, to where its old destination lies.
    pub const ROUTED: u8 = 64;

    /// tc ingress of a pod's link.
    pub const POD_IN: Self = Self(Self::FROM_CLIENT | Self::REQUESTS | Self::EARLY_REPLIES);
    /// tc egress of a pod's link.
    pub const POD_OUT: Self = Self(Self::REPLIES);
    /// tc ingress of a bridge.
    pub const BRIDGE_IN: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::EARLY_REPLIES);
    /// tc ingress of an external or tunnel link.
    pub const NODE_IN: Self = Self(Self::REQUESTS | Self::EARLY_REPLIES);
    /// tc egress of an external or tunnel link.
    pub const NODE_OUT: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::REPLIES | Self::ROUTED);
    /// XDP on an external link.
    pub const XDP: Self = Self(Self::REQUESTS | Self::LOCAL_ONLY);

    #[inline(always)]
    pub const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// A packet, as far as the decision needs it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<const N: usize> {
    pub key: FlowKey<N>,
    /// TCP: the header's flag byte. SCTP: the flag that means the same as the first chunk. UDP: 0.
    pub tcp_flags: u8,
    pub pad: [u8; 3],
    /// TCP: the sequence number. SCTP: the initiate tag of an INIT. Else 0.
    pub seq: u32,
    /// TCP: the acknowledgement number. SCTP: the verification tag + 1, so that what answers an INIT acknowledges its tag as a SYN's
    /// number. Else 0.
    pub ack: u32,
    /// Bytes from the network header on, as the packet was received; several segments in one, where the kernel joined them.
    pub length: u32,
}

impl<const N: usize> Packet<N> {
    /// A packet of these ports and flags, its numbers zero.
    pub const fn new(key: FlowKey<N>, tcp_flags: u8) -> Self {
        Self { key, tcp_flags, pad: [0; 3], seq: 0, ack: 0, length: 0 }
    }
}

/// What the hook must do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave it as it is.
    Pass = 0,
    /// Write `address:port` as destination and `client_port` as source port; send it on its way.
    ToBackend,
    /// Write `address:port` as source and `client_port` as destination port; send it on its way.
    ToClient,
    /// Tell the sender: TCP RST, else ICMP port unreachable.
    Refuse,
    Drop,
}

/// The decision, one record for both directions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<const N: usize> {
    pub action: Action,
    pub outcome: Outcome,
    /// The packet's further way does not lead on from this hook: route it from here.
    pub route: bool,
    /// The backend is the client itself: source and destination address trade places, both ways, so that each end sees the service's
    /// address as the other's; ports are written as ever. The packet goes back over the link that it came by.
    pub hairpin: bool,
    pub address: [u8; N],
    pub port: u16,
    pub client_port: u16,
    /// Service port id, where one was looked up; else 0.
    pub service: u32,
    /// Backend id; 0: none.
    pub backend: u32,
}

/// The room that one decision works in. BPF has 512 bytes of stack, so the programs keep it in a per-CPU map.
///
/// All zeroes is a valid value of every field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<const N: usize> {
    /// In: the packet.
    pub packet: Packet<N>,
    /// Out: the verdict.
    pub verdict: Verdict<N>,
    /// The service that was looked up, and the backend picked.
    pick: Pick<N>,
    /// What a new flow counts as.
    beginning: Outcome,
    /// Entry for the packet's own direction.
    flow: Flow<N>,
    /// Key and entry of the other direction.
    pair_key: FlowKey<N>,
    pair: Flow<N>,
    /// The client's tuple of another flow, which holds a tuple that is asked for.
    owner: FlowKey<N>,
    /// An entry of another flow, or one to compare with.
    other: Flow<N>,
}

impl<const N: usize> Work<N> {
    pub const fn new(packet: Packet<N>) -> Self {
        let flow = no_flow();
        let verdict = Verdict {
            action: Action::Pass,
            outcome: Outcome::Passed,
            route: false,
            hairpin: false,
            address: [0; N],
            port: 0,
            client_port: 0,
            service: 0,
            backend: 0,
        };
        Self {
            packet,
            verdict,
            pick: Pick::NONE,
            beginning: Outcome::Selected,
            flow,
            pair_key: packet.key,
            pair: flow,
            owner: packet.key,
            other: flow,
        }
    }

    /// When the flow of a packet that goes on was first seen, seconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    pub const fn since_s(&self) -> u32 {
        self.flow.since_s
    }

    /// Starts from nothing: the packet passes, and is no service's.
    #[inline(always)]
    fn clear(&mut self) {
        self.settle(Action::Pass, Outcome::Passed);
        self.verdict.hairpin = false;
        self.verdict.service = 0;
        self.verdict.backend = 0;
    }

    /// Records a verdict that rewrites nothing.
    #[inline(always)]
    fn settle(&mut self, action: Action, outcome: Outcome) {
        self.verdict.action = action;
        self.verdict.outcome = outcome;
    }

    /// Records a verdict that rewrites one end of the packet as `self.flow` says.
    #[inline(always)]
    fn rewrite(&mut self, action: Action, outcome: Outcome, route: bool) {
        self.settle(action, outcome);
        self.verdict.route = route;
        self.verdict.address = self.flow.address;
        self.verdict.port = self.flow.port;
        self.verdict.client_port = self.flow.client_port;
        self.verdict.backend = self.flow.backend;
    }
}

/// The time of one decision, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub s: u32,
    /// Tenths of a second.
    pub ds: u32,
}

impl Now {
    #[inline(always)]
    pub const fn from_ns(ns: u64) -> Self {
        Self { s: (ns / 1_000_000_000) as u32, ds: (ns / 100_000_000) as u32 }
    }
}

/// What is left to do over a packet: the next function to call, in the order of the names. Each is small enough to be verified by
/// itself, and hands over in `work`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The verdict stands in `work`.
    Decided = 0,
    /// [`keep`]: the verdict stands, the other direction's entry is behind.
    Books = 1,
    /// [`keep`]: the flow that was found is over, and the packet is none of its.
    Forget = 2,
    /// [`keep`]: as above, then [`select`].
    Anew = 3,
    /// [`select`]: the first packet of a flow.
    Select = 4,
    /// [`direct`]: the destination is no service's.
    Direct = 5,
}

impl Step {
    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Books,
            2 => Self::Forget,
            3 => Self::Anew,
            4 => Self::Select,
            5 => Self::Direct,
            _ => Self::Decided,
        }
    }

    /// Whether [`keep`] is next.
    #[inline(always)]
    #[must_use]
    pub const fn keeps(self) -> bool {
        matches!(self, Self::Books | Self::Forget | Self::Anew)
    }
}

/// Decides over the packet in `work`; the verdict stands there afterwards.
///
/// The programs call the steps themselves: [`begin`] inline, each other one as a function that the kernel verifies by itself.
#[inline(always)]
pub fn decide<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let mut step = begin(tables, work, hook);
    if step.keeps() {
        step = keep(tables, work, hook, step);
    }
    if step == Step::Select {
        step = select(tables, work, hook, step);
    }
    if step == Step::Direct {
        direct(tables, work, hook, step);
    }
}

/// The first step, and the only one for most packets of a known flow.
#[inline(always)]
pub fn begin<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    work.clear();
    work.beginning = Outcome::Selected;
    if let Some(entry) = tables.flow(&work.packet.key, &mut work.flow) {
        work.pair_key = pair_key(&work.packet.key, &work.flow);
        return known::decide(tables, work, hook, entry);
    }
    if hook.has(Hook::REQUESTS) { Step::Select } else { Step::Decided }
}

/// What a known flow's packet leaves to do seldom: keeping both entries alike, and forgetting them.
#[inline(always)]
pub fn keep<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, _: Hook, step: Step) -> Step {
    if step == Step::Books {
        known::books(tables, work);
        return Step::Decided;
    }
    forget(tables, work);
    if step == Step::Anew { Step::Select } else { Step::Decided }
}

/// The first packet of a flow: to a backend of the service that it asks for.
#[inline(always)]
pub fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    match select::select(tables, work, hook) {
        Picked::NoService if vip::unserved(tables, work, hook) => Step::Decided,
        Picked::NoService | Picked::NotServed => Step::Direct,
        _ => Step::Decided,
    }
}

/// A packet that no service is meant by: whether it collides with a flow of its sender's, if that is a client.
#[inline(always)]
pub fn direct<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    if hook.has(Hook::FROM_CLIENT) {
        direct::decide(tables, work);
    }
    Step::Decided
}

/// Removes both directions of a flow, so that its packet counts as a first one.
#[inline(always)]
fn forget<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    if tables.flow(&work.pair_key, &mut work.other).is_some()
        && pair_key(&work.pair_key, &work.other) == work.packet.key
    {
        tables.remove_flow(&work.pair_key);
    }
    tables.remove_flow(&work.packet.key);
}

/// Removes the client's half, under `work.owner`, of a flow whose reply entry stood under `work.pair_key`: only if it still is that
/// flow's. The client may have begun another one on the same tuple since, whose half is not to be touched.
#[inline(always)]
fn forget_owner<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    if tables.flow(&work.owner, &mut work.other).is_some() && pair_key(&work.owner, &work.other) == work.pair_key {
        tables.remove_flow(&work.owner);
    }
}

/// An entry that says nothing.
const fn no_flow<const N: usize>() -> Flow<N> {
    Flow {
        tag: 0,
        backend: 0,
        seen_s: 0,
        since_s: 0,
        isn: 0,
        address: [0; N],
        port: 0,
        client_port: 0,
        generation: 0,
        state: 0,
        flags: 0,
    }
}

/// The key of the other direction's entry.
#[inline(always)]
pub const fn pair_key<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> FlowKey<N> {
    let (src, src_port, dst, dst_port) = if flow.flags & crate::abi::flow_flags::REPLY == 0 {
        (flow.address, flow.port, key.src, flow.client_port)
    } else {
        (key.dst, flow.client_port, flow.address, flow.port)
    };
    FlowKey { src, dst, src_port, dst_port, protocol: key.protocol, pad: [0; 3] }
}
