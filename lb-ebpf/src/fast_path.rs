//! The fast path: a packet is handed over at the other end of a pod's link, in the pod's namespace, past this host's stack.
//!
//! The programs check what the stack would have checked: the link is there and takes the packet, and the packet may go on. Once for each flow they
//! check that its ends are where the routing table says.

use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::bindings::{
    __sk_buff, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, BPF_NOEXIST, TC_ACT_SHOT,
    bpf_fib_lookup as FibQuery,
};
use aya_ebpf::helpers::generated::{
    bpf_check_mtu, bpf_fib_lookup, bpf_redirect_peer, bpf_skb_change_type, bpf_skb_store_bytes,
};
use lb_common::abi::{BridgePortKey, PeerMac, fast_path, flow_link, link_flags};
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::features::HAS_CHECK_MTU;
use crate::fib;
use crate::maps::{BRIDGE_PORTS, FAST_PATH, LINKS, PEER_MACS};
use lb_common::parse::{Bytes, ETHERNET};

/// Whether there is a fast path at all. Set at load: without, nothing of it is left in the programs.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static FAST_PATH_ON: Global<u8> = Global::new(1);

/// `skb->pkt_type` of a packet for this host.
pub const PACKET_HOST: u32 = 0;
/// `BPF_MTU_CHK_SEGS`: of several segments that the kernel has joined, each one is to fit.
const CHECK_SEGMENTS: u64 = 1;
/// The first byte of an IPv4 header without options, which the stack may refuse.
const WITHOUT_OPTIONS: u8 = 0x45;
/// The bits of the second word of an IPv4 header that say that the packet is a fragment, in its first two bytes.
const FRAGMENT: [u8; 2] = [0x3f, 0xff];

/// Whether flows of this kind (bits of [`fast_path`]) have a fast path at this time.
#[inline(always)]
pub fn is_open(kind: u32, now_ns: u64) -> bool {
    let Some(open) = FAST_PATH.get_ptr_mut(0) else { return false };
    // SAFETY: an element of an array, one whole word, which the agent writes.
    FAST_PATH_ON.load() != 0 && fast_path::at(unsafe { open.read_volatile() }, now_ns) & kind != 0
}

/// The kind of a flow with this link ([`lb_common::abi::Flow::link`]).
#[inline(always)]
fn kind(link: u32) -> u32 {
    if flow_link::way(link) == 0 { fast_path::PODS } else { fast_path::NODES }
}

/// The link to the backend, if a new flow from the client at the link `own` is to take the fast path; else 0.
///
/// The routing table must reach the backend by a pod's link of this node or by an external one, and the client by the link `own`. So a pod that sends
/// from another one's address gets none of its answers here.
#[inline(always)]
pub fn link<const N: usize>(context: *mut c_void, own: u32, client: &[u8; N], backend: &[u8; N], now_ns: u64) -> u32 {
    if !is_open(fast_path::PODS | fast_path::NODES, now_ns)
        || own > flow_link::INDEX
        || !has(own, link_flags::FAST_PATH)
    {
        return 0;
    }
    let link = towards(context, own, client, backend);
    let index = flow_link::index(link);
    if link == 0 || index == own || !is_open(kind(link), now_ns) || towards(context, index, backend, client) != own {
        return 0;
    }
    link
}

/// The link of the fast path towards an address ([`lb_common::abi::Flow::link`]): a pod's, which the pod has by itself or as the port of a bridge, or
/// an external one; 0: none.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
fn towards<const N: usize>(context: *mut c_void, came_by: u32, from: &[u8; N], to: &[u8; N]) -> u32 {
    let mut query = fib::query(from, to, 0);
    query.ifindex = came_by;
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(context, &raw mut query, size_of::<FibQuery>() as i32, 0) };
    let is_known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS);
    let link = query.ifindex;
    if (is_known || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH)) && has(link, link_flags::SENDS_ON) {
        return if link > flow_link::INDEX { 0 } else { link | flow_link::TO_NODE };
    }
    // A pod that is not known yet is the stack's to ask for.
    if !is_known {
        return 0;
    }
    let mut pod = link;
    if !has(link, link_flags::FAST_PATH) {
        // A bridge finds its port by the neighbour's address.
        let key = BridgePortKey { bridge: link, address: query.dmac, pad: 0 };
        // SAFETY: one word, copied at once.
        pod = unsafe { BRIDGE_PORTS.get(key) }.map_or(0, |port| port.link);
        if pod == 0 || !has(pod, link_flags::FAST_PATH) {
            return 0;
        }
    }
    if pod <= flow_link::INDEX && is_at(pod, query.dmac) { pod } else { 0 }
}

/// Whether the neighbour is the one that packets are handed over to at the other end of the link: the first that was met there. Behind a pod
/// that bridges its link onward there may be several, and only one address fits into a frame.
#[inline(always)]
fn is_at(link: u32, address: [u8; 6]) -> bool {
    let new = PeerMac { address, pad: 0 };
    // SAFETY: copied at once; never written again.
    match unsafe { PEER_MACS.get(link) } {
        Some(known) => known.address == address,
        None => PEER_MACS.insert(link, new, u64::from(BPF_NOEXIST)).is_ok(),
    }
}

/// Whether the link has this flag.
#[inline(always)]
fn has(ifindex: u32, flag: u32) -> bool {
    // SAFETY: copied at once; a link's record is replaced as a whole.
    unsafe { LINKS.get(ifindex) }.is_some_and(|link| link.flags & flag != 0)
}

/// The link-layer address at the other end of a pod's link; all zero: none. A number: of an `Option` without a value the compiler may copy
/// what nobody has written, which the verifier refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer(u64);

impl Peer {
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// The other end of a pod's link, if the packet may be handed over there now.
///
/// Since Linux 5.12 (`bpf_check_mtu`).
#[inline(always)]
pub fn takes<const N: usize>(skb: *mut __sk_buff, link: u32, protocol: u8, now_ns: u64) -> Peer {
    // SAFETY: reads the context. What has a tag is not for this link, but for a VLAN on it.
    let is_tagged = flow_link::way(link) != 0 && unsafe { (*skb).vlan_present } != 0;
    if HAS_CHECK_MTU.load() == 0 || !is_open(kind(link), now_ns) || is_tagged || !goes_on::<N>(skb, protocol) {
        return Peer::NONE;
    }
    let mut mtu = 0_u32;
    // SAFETY: a helper on the program's own packet; the number lives on this stack.
    let fits = unsafe { bpf_check_mtu(skb.cast(), flow_link::index(link), &raw mut mtu, 0, CHECK_SEGMENTS) == 0 };
    if fits { peer(link) } else { Peer::NONE }
}

/// The other end of a pod's link.
#[inline(always)]
pub fn peer(link: u32) -> Peer {
    // SAFETY: copied at once; never written again.
    let Some(peer) = (unsafe { PEER_MACS.get(flow_link::index(link)) }) else { return Peer::NONE };
    let [a, b, c, d, e, f] = peer.address;
    Peer(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]))
}

/// Whether the packet is a whole one of the protocol, with no other header between, and has hops left.
#[inline(always)]
pub fn goes_on<const N: usize>(skb: *mut __sk_buff, protocol: u8) -> bool {
    // SAFETY: reads the context.
    let bytes = unsafe { Bytes { start: (*skb).data as usize, end: (*skb).data_end as usize, length: 0 } };
    if N == 4 {
        let Some([first]) = bytes.read::<[u8; 1]>(ETHERNET) else { return false };
        let Some([high, low, hops, next]) = bytes.read::<[u8; 4]>(ETHERNET + 6) else { return false };
        first == WITHOUT_OPTIONS && high & FRAGMENT[0] == 0 && low & FRAGMENT[1] == 0 && hops > 1 && next == protocol
    } else {
        let Some([next, hops]) = bytes.read::<[u8; 2]>(ETHERNET + 6) else { return false };
        hops > 1 && next == protocol
    }
}

/// Hands the packet over, which is written and has one hop less; gives the verdict at tc. Since Linux 5.10 (`bpf_redirect_peer`).
#[inline(always)]
pub fn send(skb: *mut __sk_buff, link: u32, peer: Peer) -> i32 {
    // SAFETY: helpers on the program's own packet; the array is as long as is said.
    unsafe {
        if bpf_skb_store_bytes(skb, 0, (&raw const peer.0).cast(), 6, 0) != 0 {
            counters::outcome(Outcome::DroppedRewrite, Counter::Packet);
            return TC_ACT_SHOT;
        }
        counters::outcome(Outcome::FastPath, Counter::Packet);
        receive_as_host(skb);
        bpf_redirect_peer(flow_link::index(link), 0) as i32
    }
}

/// Makes the packet one that is addressed to this host: a bridge's port gets packets that are addressed to the bridge.
#[inline(always)]
pub fn receive_as_host(skb: *mut __sk_buff) {
    // SAFETY: reads the context; a helper on the program's own packet.
    unsafe {
        if (*skb).pkt_type != PACKET_HOST {
            bpf_skb_change_type(skb, PACKET_HOST);
        }
    }
}
