//! The fast path: a packet is handed over at the other end of a pod's link, in the pod's namespace, past this host's stack.
//!
//! What the stack would have looked at is looked at here: that the link is there and takes the packet, that the packet may go on, and
//! once for each flow that its ends are where the routing table says.

use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::bindings::{__sk_buff, BPF_FIB_LKUP_RET_SUCCESS, BPF_NOEXIST, bpf_fib_lookup as FibQuery};
use aya_ebpf::helpers::generated::{bpf_check_mtu, bpf_fib_lookup, bpf_redirect_peer, bpf_skb_change_type};
use lb_common::abi::{BridgePortKey, PeerMac, link_flags};
use lb_common::outcome::Outcome;

use crate::count::{self, Counter};
use crate::forward::{self, PACKET_HOST};
use crate::maps::{BRIDGE_PORTS, FAST_PATH, LINKS, PEER_MACS};
use crate::parse::{Bytes, ETHERNET};
use crate::skb::store;
use crate::tables::Kernel;

/// Whether there is a fast path at all. Set at load: without, nothing of it is left in the programs.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static FAST_PATH_ON: Global<u8> = Global::new(1);

/// `BPF_MTU_CHK_SEGS`: of several segments that the kernel has joined, each one is to fit.
const CHECK_SEGMENTS: u64 = 1;
/// The first byte of an IPv4 header without options, which the stack may refuse.
const WITHOUT_OPTIONS: u8 = 0x45;
/// The bits of the second word of an IPv4 header that say that the packet is a fragment, in its first two bytes.
const FRAGMENT: [u8; 2] = [0x3f, 0xff];

/// Whether there is a fast path at this moment.
#[inline(always)]
fn is_open() -> bool {
    let Some(open) = FAST_PATH.get_ptr_mut(0) else { return false };
    // SAFETY: an element of an array, one whole word, which the agent writes.
    FAST_PATH_ON.load() != 0 && unsafe { open.read_volatile() } != 0
}

/// The link of the backend, if a new flow from the client at the link `kernel.ifindex` is to take the fast path; else 0.
///
/// Both must be pods' links of this node, by which the routing table reaches the two: a pod that sends from another one's address gets
/// none of its answers here.
#[inline(always)]
pub fn link<const N: usize>(kernel: &Kernel, client: &[u8; N], backend: &[u8; N]) -> u32 {
    if !is_open() || !hands_over(kernel.ifindex) {
        return 0;
    }
    let link = to_pod(kernel.context, kernel.ifindex, backend);
    if link == 0 || link == kernel.ifindex || to_pod(kernel.context, link, client) != kernel.ifindex {
        return 0;
    }
    link
}

/// Whether the packet's sender is at the link that it came by, as the routing table has it.
#[inline(always)]
pub fn is_own<const N: usize>(kernel: &Kernel, sender: &[u8; N]) -> bool {
    is_open() && to_pod(kernel.context, kernel.ifindex, sender) == kernel.ifindex
}

/// The link of the pod that has the address, by itself or as the port of a bridge; 0: none that packets are handed over by.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
fn to_pod<const N: usize>(context: *mut c_void, ifindex: u32, address: &[u8; N]) -> u32 {
    let mut query = forward::query(&[0; N], address, 0);
    query.ifindex = ifindex;
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(context, &raw mut query, size_of::<FibQuery>() as i32, 0) };
    // A neighbour that is not known yet is the stack's to ask for.
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) {
        return 0;
    }
    if hands_over(query.ifindex) {
        return if is_at(query.ifindex, query.dmac) { query.ifindex } else { 0 };
    }
    // A bridge finds its port by the neighbour's address.
    let key = BridgePortKey { bridge: query.ifindex, address: query.dmac, pad: 0 };
    // SAFETY: one word, copied at once.
    let port = unsafe { BRIDGE_PORTS.get(key) }.map_or(0, |port| port.link);
    if port != 0 && hands_over(port) && is_at(port, query.dmac) { port } else { 0 }
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

/// Whether packets are handed over at the other end of the link.
#[inline(always)]
fn hands_over(ifindex: u32) -> bool {
    // SAFETY: copied at once; a link's record is replaced as a whole.
    unsafe { LINKS.get(ifindex) }.is_some_and(|link| link.flags & link_flags::HANDS_OVER != 0)
}

/// The address at the other end of another pod's link, if the packet, seen at a pod's link, may be handed over there now.
///
/// Since Linux 5.12 (`bpf_check_mtu`).
#[inline(always)]
pub fn takes<const N: usize>(skb: *mut __sk_buff, link: u32, protocol: u8) -> Option<[u8; 6]> {
    if !is_open() || !goes_on::<N>(skb, protocol) {
        return None;
    }
    let peer = peer(link)?;
    let mut mtu = 0_u32;
    // SAFETY: a helper on the program's own packet; the number lives on this stack.
    let fits = unsafe { bpf_check_mtu(skb.cast(), link, &raw mut mtu, 0, CHECK_SEGMENTS) == 0 };
    fits.then_some(peer)
}

/// The address at the other end of a pod's link.
#[inline(always)]
pub fn peer(link: u32) -> Option<[u8; 6]> {
    // SAFETY: copied at once; never written again.
    unsafe { PEER_MACS.get(link) }.map(|peer| peer.address)
}

/// Whether the packet is a whole one of the protocol, with no other header between, and has hops left.
#[inline(always)]
fn goes_on<const N: usize>(skb: *mut __sk_buff, protocol: u8) -> bool {
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
pub fn send(skb: *mut __sk_buff, link: u32, peer: [u8; 6]) -> i32 {
    if store(skb, 0, &peer).is_err() {
        return forward::lost();
    }
    count::outcome(Outcome::FastPath, Counter::Packet);
    // SAFETY: helpers on the program's own packet.
    unsafe {
        // A bridge's port gets packets that are addressed to the bridge.
        if (*skb).pkt_type != PACKET_HOST {
            bpf_skb_change_type(skb, PACKET_HOST);
        }
        bpf_redirect_peer(link, 0) as i32
    }
}
