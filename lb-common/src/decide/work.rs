//! A packet, what is decided over it, and the room that one decision works in.

use super::Pick;
use crate::abi::{Flow, FlowKey, HalfOpen, MOST_MOVES, flow_flags};
use crate::outcome::Outcome;
use crate::words;

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
    /// Packets come from beyond this node's links.
    pub const FROM_OUTSIDE: u8 = 32;
    /// The packet has been routed already, to where its old destination lies.
    pub const ROUTED: u8 = 64;
    /// Packets can be handed over from here, past the host's stack.
    pub const HANDS_OVER: u8 = 128;

    /// tc ingress of a pod's link.
    pub const POD_IN: Self = Self(Self::FROM_CLIENT | Self::REQUESTS | Self::EARLY_REPLIES | Self::HANDS_OVER);
    /// tc egress of a pod's link.
    pub const POD_OUT: Self = Self(Self::REPLIES);
    /// tc ingress of a bridge.
    pub const BRIDGE_IN: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::EARLY_REPLIES);
    /// tc ingress of an external or tunnel link.
    pub const NODE_IN: Self = Self(Self::NODE_IN_L3.0 | Self::HANDS_OVER);
    /// The same of a link without link-layer header.
    pub const NODE_IN_L3: Self = Self(Self::REQUESTS | Self::EARLY_REPLIES | Self::FROM_OUTSIDE);
    /// tc egress of an external or tunnel link.
    pub const NODE_OUT: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::REPLIES | Self::ROUTED);
    /// XDP on an external link.
    pub const XDP: Self = Self(Self::REQUESTS | Self::EARLY_REPLIES | Self::FROM_OUTSIDE);

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
    /// TCP: the sequence number. SCTP: the initiate tag of an INIT or INIT ACK. Else 0.
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
    /// Write `address:port` as destination and `client:client_port` as source; send it on its way. Port 0: leave it as it is, and send it
    /// to `address` in an outer header.
    ToBackend,
    /// Write `address:port` as source and `client:client_port` as destination; send it on its way.
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
    /// The packet's other address changes, too: else `client` is what it has already. Such a packet is routed from this hook.
    pub masquerade: bool,
    pub address: [u8; N],
    pub client: [u8; N],
    pub port: u16,
    pub client_port: u16,
    /// Service port id, where one was looked up; else 0.
    pub service: u32,
    /// Backend id; 0: none.
    pub backend: u32,
    /// The flow's link ([`Flow::link`]). Where packets are handed over, an answer goes there; a pod's request does, if the packet may.
    pub link: u32,
}

/// The room that one decision works in. BPF has 512 bytes of stack, so the programs keep it in a per-CPU map.
///
/// All zeroes is a valid value of every field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<const N: usize> {
    /// In: the packet.
    pub packet: Packet<N>,
    /// In: not zero: the packet came in an outer header for this backend of this node, which another node has chosen. Nothing of the
    /// decision clears it.
    pub chosen: [u8; N],
    /// Out: the verdict.
    pub verdict: Verdict<N>,
    /// The service that was looked up, and the backend picked.
    pub(super) pick: Pick<N>,
    /// For what a flow gets its entries (`place::placing`).
    pub(super) placing: u32,
    /// What a new flow counts as.
    pub(super) beginning: Outcome,
    /// Entry for the packet's own direction.
    pub(super) flow: Flow<N>,
    /// Key and entry of the other direction.
    pub(super) pair_key: FlowKey<N>,
    pub(super) pair: Flow<N>,
    /// The same two while nobody has answered: `half.flow` and `pair_half.flow` stand for `flow` and `pair`.
    pub(super) half: HalfOpen<N>,
    pub(super) pair_half: HalfOpen<N>,
    /// The client's tuple of a flow: of the packet's own, or of another one, which holds a tuple that is asked for.
    pub(super) owner: FlowKey<N>,
    /// Entries of another flow, or ones to compare with.
    pub(super) other: Flow<N>,
    pub(super) other_half: HalfOpen<N>,
    /// Key and entry of the answers of a backend that the flow leaves.
    pub(super) left_key: FlowKey<N>,
    pub(super) left: HalfOpen<N>,
}

impl<const N: usize> Verdict<N> {
    /// Whether both addresses of the packet trade places: the backend is the client itself, and the packet goes back over the link that
    /// it came by.
    #[inline(always)]
    pub fn turns_back(&self, key: &FlowKey<N>) -> bool {
        let (to, from) = if self.action as u8 == Action::ToBackend as u8 {
            (&self.address, &self.client)
        } else {
            (&self.client, &self.address)
        };
        self.masquerade && words::same(to, &key.src) && words::same(from, &key.dst)
    }
}

impl<const N: usize> Work<N> {
    pub const fn new(packet: Packet<N>) -> Self {
        let flow = Flow {
            tag: 0,
            backend: 0,
            seen_s: 0,
            since_s: 0,
            isn: 0,
            address: [0; N],
            client: [0; N],
            port: 0,
            client_port: 0,
            generation: 0,
            state: 0,
            flags: 0,
            link: 0,
        };
        let half = HalfOpen { flow, tried: [0; MOST_MOVES], answers: [0; 2], segments: 0, moves: 0, flags: 0, pad: 0 };
        let verdict = Verdict {
            action: Action::Pass,
            outcome: Outcome::Passed,
            route: false,
            masquerade: false,
            address: [0; N],
            client: [0; N],
            port: 0,
            client_port: 0,
            service: 0,
            backend: 0,
            link: 0,
        };
        Self {
            packet,
            chosen: [0; N],
            verdict,
            pick: Pick::NONE,
            placing: 0,
            beginning: Outcome::Selected,
            flow,
            pair_key: packet.key,
            pair: flow,
            half,
            pair_half: half,
            owner: packet.key,
            other: flow,
            other_half: half,
            left_key: packet.key,
            left: half,
        }
    }

    /// When the flow of a packet that goes on was first seen, seconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    pub const fn since_s(&self) -> u32 {
        self.flow.since_s
    }

    /// Whether another node has chosen the backend.
    #[inline(always)]
    pub fn is_chosen(&self) -> bool {
        !words::same(&self.chosen, &[0; N])
    }

    /// Starts from nothing, as the first packet of a flow does that begins.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.clear();
        self.beginning = Outcome::Selected;
    }

    /// Starts from nothing: the packet passes, and is no service's.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.settle(Action::Pass, Outcome::Passed);
        self.verdict.masquerade = false;
        self.verdict.service = 0;
        self.verdict.backend = 0;
    }

    /// Records a verdict that rewrites nothing.
    #[inline(always)]
    pub(super) fn settle(&mut self, action: Action, outcome: Outcome) {
        self.verdict.action = action;
        self.verdict.outcome = outcome;
    }

    /// Records a verdict that rewrites one end of the packet as `self.flow` says.
    #[inline(always)]
    pub(super) fn rewrite(&mut self, action: Action, outcome: Outcome, route: bool) {
        self.settle(action, outcome);
        self.verdict.masquerade = self.flow.flags & flow_flags::MASQUERADED != 0;
        self.verdict.route = route || self.verdict.masquerade || self.flow.port == 0;
        words::address(&self.flow.address, &mut self.verdict.address);
        words::address(&self.flow.client, &mut self.verdict.client);
        self.verdict.port = self.flow.port;
        self.verdict.client_port = self.flow.client_port;
        self.verdict.backend = self.flow.backend;
        self.verdict.link = self.flow.link;
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

    #[inline(always)]
    pub const fn from_ds(ds: u32) -> Self {
        Self { s: ds / 10, ds }
    }
}
