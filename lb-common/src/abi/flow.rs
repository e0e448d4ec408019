//! Flow entries: one for each direction of a connection, and what else is kept by tuple.

use super::hash::{mix, mix_address};
use super::sizes::sizes;
use crate::numbered::numbered;

/// Key of `flows4` / `flows6`, `udp_flows4` / `udp_flows6`, `half_open4` / `half_open6`: the tuple as it stands in the packet before it is rewritten.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey<const N: usize> {
    pub src: [u8; N],
    pub dst: [u8; N],
    pub src_port: u16,
    pub dst_port: u16,
    pub protocol: u8,
    pub pad: [u8; 3],
}

impl<const N: usize> FlowKey<N> {
    /// The tuple of a packet that goes the other way.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// Value of `flows4` / `flows6` and of `udp_flows4` / `udp_flows6`: what to rewrite, and for whom.
///
/// Forward (client → service): the destination becomes `address:port`, the source `client:client_port`.
/// Reply (backend → client): the source becomes `address:port` (the service's), the destination `client:client_port`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow<const N: usize> {
    /// [`tag`] of the key: elements are recycled while a reader may hold them. The first word, for [`crate::words::copy_tagged`].
    pub tag: u32,
    /// Id of the backend; 0: a direct connection whose source port had to be translated.
    pub backend: u32,
    /// When the last packet was seen, seconds of `CLOCK_MONOTONIC`.
    pub seen_s: u32,
    /// When the first packet was seen, seconds of `CLOCK_MONOTONIC`.
    pub since_s: u32,
    /// TCP: the client's initial sequence number; SCTP: its initiate tag; UDP: 0.
    pub isn: u32,
    /// TCP: the sequence number that follows this direction's latest segment, of those that fit the segments before; else 0.
    pub next: u32,
    /// TCP: the acknowledgement number of the latest segment that fits. SCTP: the verification tag of this direction, and 1. UDP: 0.
    pub ack: u32,
    pub address: [u8; N],
    /// Forward: the source address as the backend sees it; the packet's own, unless the flow is masqueraded. Reply: the client's own.
    pub client: [u8; N],
    /// 0: the packet goes unchanged to the node of the backend `address`, in an outer header ([`service_flags::DSR`]).
    pub port: u16,
    /// Forward: the source port as the backend sees it. Reply: the client's own port.
    pub client_port: u16,
    /// Low 16 bits of the backend's generation.
    pub generation: u16,
    /// [`FlowState`] as a number.
    pub state: u8,
    /// [`flow_flags`].
    pub flags: u8,
    /// The link by which the packet leaves, past the host's stack, while `fast_path` says so ([`flow_link`]); 0: none. Of both entries of a
    /// flow, or of neither.
    pub link: u32,
    /// The link by which packets of this direction come that may take the fast path: the routing table has led back to their sender by it. Set
    /// with [`Self::link`].
    pub own_link: u32,
    /// TCP: bits of [`fin`]. Only packets of this direction write them.
    pub fin: u8,
    /// TCP: [`fin::SENT`] of the opposite direction, whose packets alone write it.
    pub opposite_fin: u8,
    /// TCP, SCTP: a bit of [`second`].
    pub second: u16,
}

impl<const N: usize> Flow<N> {
    /// All zeroes.
    // SAFETY: plain numbers.
    pub const ZERO: Self = unsafe { core::mem::zeroed() };
}

/// Bits of [`Flow::fin`].
pub mod fin {
    /// This direction has ended: its latest segment has a FIN.
    pub const SENT: u8 = 1;
    /// This direction has acknowledged the FIN of the opposite one.
    pub const ACKED: u8 = 2;
    /// A FIN came whose number fits nothing that is known, as behind a gap: [`Flow::next`](super::Flow::next) is what follows it, and is its sender's if
    /// the opposite direction acknowledges it.
    pub const CLAIMED: u8 = 4;
    /// What both directions have once the connection is over.
    pub const ALL: u8 = SENT | ACKED;
}

/// Bits of [`Flow::second`]: the client's tuple has a second handshake, beside its established connection or its handshake.
pub mod second {
    /// Original entry of an established connection: there is a second handshake. It may be over by now.
    pub const BESIDE: u16 = 1;
    /// Both entries of the second handshake.
    pub const OWN: u16 = 2;
    /// What [`OWN`] puts into the padding of the key of its original entry: no packet and no claim has it.
    pub const KEY: u8 = 2;
}

/// [`Flow::link`] in two parts: the index of the link, and whether the flow leads to another node.
pub mod flow_link {
    /// The bits of the index: of a pod's link, at whose other end the packet is handed over, or of the external one that it leaves by.
    pub const INDEX: u32 = 0x00ff_ffff;
    /// Of both entries of a flow that leads to another node.
    pub const TO_NODE: u32 = 1 << 24;

    /// Where the flow leads: 0, or [`TO_NODE`].
    #[inline(always)]
    #[must_use]
    pub const fn way(link: u32) -> u32 {
        link & !INDEX
    }

    #[inline(always)]
    #[must_use]
    pub const fn index(link: u32) -> u32 {
        link & INDEX
    }
}

numbered! {
    /// What the programs know of a flow: [`Flow::state`].
    FlowState: u8, flow_state {
        /// No answer yet.
        HalfOpen, HALF_OPEN = 1, "half-open";
        /// Answered.
        Open, OPEN = 2, "open";
        /// UDP: answered, and asked again after that.
        Stream, STREAM = 3, "stream";
        /// TCP, SCTP: over. Both FINs were acknowledged, or one end has reset the connection. Another connection may take its tuple.
        Closing, CLOSING = 4, "closing";
        /// The backend is gone: each side gets a RST at its next segment, if not from the agent before.
        Evicted, EVICTED = 5, "evicted";
        /// Another proxy's connection, from before the node's first start: the host's NAT translates it, and programs leave its packets alone. The
        /// agent removes the entries once conntrack has forgotten the connection.
        Adopted, ADOPTED = 6, "adopted";
        /// The connection is about to be given to the host's NAT: its packets are dropped until it is adopted, or for
        /// [`crate::limits::HOLD_S`].
        Held, HELD = 7, "held";
    }
}

impl<const N: usize> Flow<N> {
    /// Whether programs leave the connection to the host's NAT, or are about to.
    #[inline(always)]
    #[must_use]
    pub const fn is_given(&self) -> bool {
        self.state >= flow_state::ADOPTED
    }
}

/// Bits of [`Flow::flags`].
pub mod flow_flags {
    /// The entry of the reply direction (backend → client).
    pub const REPLY: u8 = 1;
    /// The client's own link has no program: the reply is rewritten at the first hook that sees it, and sent on from there.
    pub const EARLY: u8 = 2;
    /// A direct connection (no service) whose source port is translated, because a service flow owns its tuple.
    pub const DIRECT: u8 = 4;
    /// Forward: the reply entry was given to a direct UDP sender and must be written again.
    pub const REPLY_LOST: u8 = 8;
    /// The client is external, and neither this node nor another one: of IPv6, its network of 64 bits counts as one client.
    pub const EXTERNAL: u8 = 16;
    /// DSR: the client's packets come in an outer header from another node.
    pub const ENCAPSULATED: u8 = 32;
    /// The backend sees another source address than the client's own: one of this node, or, where the backend is the client itself,
    /// the service's.
    pub const MASQUERADED: u8 = 64;
    /// The flow is among its backend's [`Health::connections`].
    pub const COUNTED: u8 = 128;
}

/// Value of `traffic4` / `traffic6`, under the keys of `flows4` / `flows6`: counted with `--flow-counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// As in the [`Flow`]: counts of an earlier flow of the tuple are not this one's.
    pub since_s: u32,
    pub pad: u32,
    pub packets: u64,
    /// Of the network header and what follows it.
    pub bytes: u64,
}

/// Key of `fragments4` / `fragments6`: a datagram in fragments.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentKey<const N: usize> {
    pub src: [u8; N],
    pub dst: [u8; N],
    pub id: u32,
    pub protocol: u8,
    pub pad: [u8; 3],
}

/// Value of `fragments4` / `fragments6`: what only the first fragment says.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// [`fragment_tag`] of the key: LRU elements are recycled while a reader may hold them.
    pub tag: u32,
    pub src_port: u16,
    pub dst_port: u16,
    /// When the first fragment was seen, seconds of `CLOCK_MONOTONIC`.
    pub seen_s: u32,
}

/// A number that tells one tuple's flow entry from another's.
#[inline(always)]
pub fn tag<const N: usize>(key: &FlowKey<N>) -> u32 {
    let mut hash = mix_address(0x85eb_ca6b, &key.src);
    hash = mix_address(hash, &key.dst);
    hash = mix(hash, (key.src_port as u32) << 16 | key.dst_port as u32);
    mix(hash, key.protocol as u32)
}

/// A number that tells one datagram's fragments from another's.
#[inline(always)]
pub fn fragment_tag<const N: usize>(key: &FragmentKey<N>) -> u32 {
    let hash = mix_address(mix_address(0x27d4_eb2f, &key.src), &key.dst);
    mix(mix(hash, key.id), key.protocol as u32)
}

sizes! {
    FlowKey<N> = 16 | 40,
    Flow<N> = 56 | 80,
    Traffic = 24,
    FragmentKey<N> = 16 | 40,
    Fragment = 12,
}
