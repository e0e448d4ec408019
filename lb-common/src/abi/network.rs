//! Addresses, networks and links of the node and the cluster.

use super::sizes::sizes;
use crate::numbered::numbered;

/// Key of `vips4` / `vips6`: an address that services are reached by and that is not the node's own.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VipKey<const N: usize> {
    pub address: [u8; N],
}

/// Value of `vips4` / `vips6`: what becomes of a packet to this address that no frontend serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vip {
    /// [`vip_flags`].
    pub flags: u32,
}

/// Bits of [`Vip::flags`].
pub mod vip_flags {
    /// A port that no frontend serves is refused: the address is a cluster IP, or one of a load balancer.
    pub const REFUSE_UNSERVED: u32 = 1;
    /// An ICMP echo request is answered.
    pub const ECHO: u32 = 2;
}

/// Data of a key of `networks4` / `networks6` (longest prefix match): a network of which something is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkKey<const N: usize> {
    /// Network address; bits beyond the prefix are zero.
    pub address: [u8; N],
}

/// Value of `networks4` / `networks6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// [`network_flags`].
    pub flags: u32,
}

/// Bits of [`Network::flags`].
pub mod network_flags {
    /// Pods of the cluster, of this node or another one.
    pub const PODS: u32 = 1;
    /// An address of this node.
    pub const NODE: u32 = 2;
    /// An address of another node of the cluster.
    pub const PEER: u32 = 4;
    /// A service CIDR: packets to addresses here that no service has are dropped. Not set where a longer prefix of pods or nodes lies in it.
    pub const SERVICES: u32 = 8;
}

/// Value of `masquerade4` / `masquerade6`, by the index of the interface that leads to the backend; 0: of any other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Masquerade<const N: usize> {
    /// Addresses of this node, the sources that masqueraded packets get: the first one, and the others in turn where a flow finds no port
    /// at those before. Fewer than these come round again.
    pub addresses: [[u8; N]; MASQUERADE_ADDRESSES],
}

/// How many SNAT addresses this node has at one link, at most: a power of two.
pub const MASQUERADE_ADDRESSES: usize = 4;
const _: () = assert!(MASQUERADE_ADDRESSES.is_power_of_two());

impl<const N: usize> Masquerade<N> {
    /// The first address, and those to go on to. What is more than [`MASQUERADE_ADDRESSES`] is left out.
    #[must_use]
    pub fn new(first: [u8; N], others: &[[u8; N]]) -> Self {
        let count = (1 + others.len()).min(MASQUERADE_ADDRESSES);
        let nth = |turn: usize| (turn % count).checked_sub(1).and_then(|at| others.get(at)).copied();
        Self { addresses: core::array::from_fn(|turn| nth(turn).unwrap_or(first)) }
    }

    /// The source of a flow for which those before were tried in vain.
    #[inline(always)]
    #[must_use]
    pub const fn address(&self, turn: u32) -> &[u8; N] {
        &self.addresses[turn as usize & (MASQUERADE_ADDRESSES - 1)]
    }
}

/// Key of `links`: an interface index. Value: what the programs must know of the link.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Id of the peer's network namespace as this namespace names it (`IFLA_LINK_NETNSID`); -1: not known.
    pub peer_netns_id: i32,
    /// [`link_role`].
    pub role: u32,
    /// [`link_flags`].
    pub flags: u32,
}

/// Bits of [`Link::flags`].
pub mod link_flags {
    /// Frames that XDP redirects to this link leave by it: its driver sends them, or XDP is generic.
    pub const XDP_SENDS: u32 = 1;
    /// A pod's link with both programs, whose other end takes packets in its own namespace past this host's stack.
    pub const FAST_PATH: u32 = 2;
    /// An external link with Ethernet and both programs, by which packets of pods leave past this host's stack.
    pub const SENDS_ON: u32 = 4;
}

numbered! {
    /// What an interface is to the programs: [`Link::role`].
    LinkRole: u32, link_role {
        Pod, POD = 1, "pod";
        Bridge, BRIDGE = 2, "bridge";
        External, EXTERNAL = 3, "external";
        Tunnel, TUNNEL = 4, "tunnel";
    }
}

/// Key of `bridge_ports`: an address of the link layer, as a bridge knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgePortKey {
    /// Index of the bridge.
    pub bridge: u32,
    pub address: [u8; 6],
    pub pad: u16,
}

/// Value of `bridge_ports`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BridgePort {
    /// Index of the pod's link that the address is behind.
    pub link: u32,
}

/// Value of `peer_macs`, by index of a pod's link.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerMac {
    /// The address of the link's other end, as the host's neighbour table had it when a flow first led there.
    pub address: [u8; 6],
    pub pad: u16,
}

/// The word in `fast_path`: which flows have one, and until when.
pub mod fast_path {
    /// Between two pods of this node.
    pub const PODS: u32 = 1;
    /// From a pod of this node to another node.
    pub const NODES: u32 = 2;

    /// The word that permits it for flows of these kinds until a second of `CLOCK_MONOTONIC`; that of no kind is 0.
    #[must_use]
    pub const fn until(kinds: u32, second: u32) -> u32 {
        if kinds == 0 { 0 } else { second << 2 | kinds }
    }

    /// The kinds of flows that the word permits it for at this time.
    #[inline(always)]
    #[must_use]
    pub const fn at(word: u32, now_ns: u64) -> u32 {
        if now_ns < (word >> 2) as u64 * 1_000_000_000 { word & (PODS | NODES) } else { 0 }
    }
}

sizes! {
    VipKey<N> = 4 | 16,
    Vip = 4,
    NetworkKey<N> = 4 | 16,
    Network = 4,
    Masquerade<N> = 16 | 64,
    Link = 12,
    BridgePortKey = 12,
    BridgePort = 4,
    PeerMac = 8,
}
