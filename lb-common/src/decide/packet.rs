//! A packet, the hook that it is seen at, and the time.

use crate::abi::{FlowKey, UDP, flow_flags};
use crate::state::{self, SourcePorts, tcp_flag};

/// What the decision must know of the hook that asks. Bits, so that a program can hold them in a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook(pub u8);

impl Hook {
    /// Packets come straight from the client: what is not for a service is the client's own direct traffic.
    pub const FROM_CLIENT: u8 = 1;
    /// The link is not the client's: replies must be rewritten where they are first seen.
    pub const CATCH_ALL: u8 = 2;
    /// Rewrites replies of connections that a catch-all hook made.
    pub const EARLY_REPLIES: u8 = 4;
    /// Rewrites all replies: they leave here towards the client.
    pub const REPLIES: u8 = 8;
    /// Translates requests.
    pub const REQUESTS: u8 = 16;
    /// Packets come from outside this node.
    pub const FROM_OUTSIDE: u8 = 32;
    /// The packet has been routed already, to where its old destination lies.
    pub const ROUTED: u8 = 64;
    /// Packets can take the fast path from here, past the host's stack.
    pub const FAST_PATH: u8 = 128;

    /// tc ingress of a pod's link.
    pub const POD_IN: Self = Self(Self::FROM_CLIENT | Self::REQUESTS | Self::EARLY_REPLIES | Self::FAST_PATH);
    /// tc egress of a pod's link.
    pub const POD_OUT: Self = Self(Self::REPLIES);
    /// tc ingress of a bridge.
    pub const BRIDGE_IN: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::EARLY_REPLIES);
    /// tc ingress of an external or tunnel link.
    pub const NODE_IN: Self = Self(Self::NODE_IN_L3.0 | Self::FAST_PATH);
    /// tc ingress of an external or tunnel link without link-layer header.
    pub const NODE_IN_L3: Self = Self(Self::REQUESTS | Self::EARLY_REPLIES | Self::FROM_OUTSIDE);
    /// tc egress of an external or tunnel link.
    pub const NODE_OUT: Self = Self(Self::REQUESTS | Self::CATCH_ALL | Self::REPLIES | Self::ROUTED);
    /// XDP on an external link.
    pub const XDP: Self = Self(Self::REQUESTS | Self::EARLY_REPLIES | Self::FROM_OUTSIDE);

    #[inline(always)]
    pub const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Whether packets of an original direction with these flags are translated here. A translated direct packet looks like the one of
    /// a service with the same tuple: only the client's own link can tell them apart. `collision::translates` adds this node's own packets.
    #[inline(always)]
    pub(super) const fn translates(self, flags: u8) -> bool {
        self.has(Self::REQUESTS) && (flags & flow_flags::DIRECT == 0 || self.has(Self::FROM_CLIENT))
    }

    /// Whether packets of a reply direction with these flags are translated here without the fast path; and if so, whether they are
    /// routed from here.
    #[inline(always)]
    pub(super) const fn translates_replies(self, flags: u8) -> Option<bool> {
        let early = self.has(Self::EARLY_REPLIES) && flags & flow_flags::EARLY != 0;
        if early || self.has(Self::REPLIES) { Some(early) } else { None }
    }
}

/// A packet, as far as the decision needs it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<const N: usize> {
    pub key: FlowKey<N>,
    /// TCP: the header's flag byte. SCTP: the flag that means the same as the first chunk. UDP: 0.
    pub tcp_flags: u8,
    /// An ICMP error stands for this refusal ([`as_refusal`](super::as_refusal)).
    pub is_error: bool,
    pub pad: [u8; 2],
    /// TCP: the sequence number. SCTP: the initiate tag of an INIT or INIT ACK. Else 0.
    pub seq: u32,
    /// TCP: the acknowledgement number. SCTP: the verification tag + 1, so that what answers an INIT acknowledges its tag as a SYN's
    /// number. Else 0.
    pub ack: u32,
    /// Bytes from the network header on, as the packet says of itself; several segments in one, where the kernel joined them.
    pub length: u32,
    /// TCP: bytes of data. SCTP: 1 where the first chunk is one that its receiver answers (DATA, HEARTBEAT). Else 0.
    pub payload: u32,
}

impl<const N: usize> Packet<N> {
    /// A packet of these ports and flags, its numbers zero.
    pub const fn new(key: FlowKey<N>, tcp_flags: u8) -> Self {
        Self { key, tcp_flags, is_error: false, pad: [0; 2], seq: 0, ack: 0, length: 0, payload: 0 }
    }

    #[inline(always)]
    pub(super) const fn is_udp(&self) -> bool {
        self.key.protocol == UDP
    }

    /// A SYN.
    #[inline(always)]
    pub(super) const fn opens(&self) -> bool {
        !self.is_udp() && state::opens(self.tcp_flags)
    }

    /// A SYN with ACK.
    #[inline(always)]
    pub(super) const fn accepts(&self) -> bool {
        !self.is_udp() && state::accepts(self.tcp_flags)
    }

    #[inline(always)]
    pub(super) const fn resets(&self) -> bool {
        !self.is_udp() && self.tcp_flags & tcp_flag::RST != 0
    }

    /// TCP: the sequence number that follows this segment.
    #[inline(always)]
    pub(super) const fn next(&self) -> u32 {
        let fin = (self.tcp_flags & tcp_flag::FIN != 0) as u32;
        let syn = (self.tcp_flags & tcp_flag::SYN != 0) as u32;
        self.seq.wrapping_add(self.payload).wrapping_add(fin + syn)
    }

    /// Whether the packet may be a connection's first one.
    #[inline(always)]
    pub(super) const fn begins(&self) -> bool {
        self.is_udp() || self.opens()
    }

    /// Whether the packet neither opens nor accepts nor resets a connection.
    #[inline(always)]
    pub(super) const fn is_midway(&self) -> bool {
        !self.begins() && !self.accepts() && !self.resets()
    }

    /// Whether the packet may be of the connection before on a SNAT tuple that was reused.
    #[inline(always)]
    pub(super) const fn is_for_reused_port(&self, ports: SourcePorts) -> bool {
        ports.is_reused(self.key.dst_port)
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
