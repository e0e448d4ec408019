//! Sends a packet on: back where it came from, or out by the routing table.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    TC_ACT_SHOT, bpf_fib_lookup as FibQuery, xdp_md,
};
use aya_ebpf::helpers::generated::{
    bpf_fib_lookup, bpf_l3_csum_replace, bpf_redirect, bpf_redirect_neigh, bpf_skb_change_head, bpf_skb_change_type,
    bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use lb_common::abi::{FlowKey, TCP, link_flags};
use lb_common::decide::Packet;
use lb_common::outcome::Outcome;

use crate::aside::Spot;
use crate::count::{self, Counter};
use crate::maps::LINKS;
use crate::parse::{ETHERNET, Offsets, UDP_HEADER};
use crate::rewrite::Refused;
use crate::skb::{load, store};

/// Verdicts at tc. `NEXT` (TCX_NEXT, and TC_ACT_UNSPEC for clsact) leaves the packet to the programs behind us.
pub const NEXT: i32 = -1;
pub const DROP: i32 = TC_ACT_SHOT;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `skb->pkt_type` of a packet for this host.
pub const PACKET_HOST: u32 = 0;
/// `gso_size` of a packet whose segments have lengths of their own (SCTP).
const GSO_BY_FRAGMENTS: u32 = 0xffff;
/// Longest packet that a length field of 16 bits can tell.
pub const LONGEST: u32 = 65_535;

/// Sends the packet back over the link that it came by: out of it at ingress, into it at egress.
#[inline(always)]
pub fn back(skb: *mut __sk_buff, network: usize, ingress: bool) -> i32 {
    if network != 0 && swap_ethernet(skb).is_err() {
        return DROP;
    }
    let flags = if ingress { 0 } else { u64::from(BPF_F_INGRESS) };
    // SAFETY: reads the context, calls a helper.
    unsafe { bpf_redirect((*skb).ifindex, flags) as i32 }
}

#[inline(always)]
fn swap_ethernet(skb: *mut __sk_buff) -> Result<(), ()> {
    let mut old = [0u8; 12];
    // SAFETY: the helpers check against the packet; the arrays live on the stack.
    unsafe {
        if bpf_skb_load_bytes(skb.cast(), 0, old.as_mut_ptr().cast(), 12) != 0 {
            return Err(());
        }
        let mut new = [0u8; 12];
        new[0..6].copy_from_slice(&[old[6], old[7], old[8], old[9], old[10], old[11]]);
        new[6..12].copy_from_slice(&[old[0], old[1], old[2], old[3], old[4], old[5]]);
        if bpf_skb_store_bytes(skb, 0, new.as_ptr().cast(), 12, 0) != 0 {
            return Err(());
        }
    }
    Ok(())
}

/// No verdicts at tc: a packet that is not sent on as it is, and whose sender may be told why.
pub const TOO_BIG: i32 = -104;
pub const EXPIRED: i32 = -105;

/// Sends a packet of known length on, written as it is to be, by the routing table; up the stack if it is for this host.
///
/// Since Linux 5.10 (`bpf_redirect_neigh`).
#[inline(always)]
pub fn route<const N: usize>(skb: *mut __sk_buff, key: &FlowKey<N>, length: u32, spot: Spot) -> i32 {
    if is_expired::<N>(skb, spot) {
        return dropped(EXPIRED);
    }
    let next = next(skb, &key.src, &key.dst, key.protocol, length);
    if next < 0 { dropped(TOO_BIG) } else { send::<N>(skb, next as u32, spot.network as u32, spot.ingress) }
}

/// Drops a packet whose sender is not told.
#[inline(always)]
pub fn dropped(why: i32) -> i32 {
    count::outcome(if why == TOO_BIG { Outcome::RefusedTooBig } else { Outcome::DroppedHopLimit }, Counter::Packet);
    DROP
}

/// Sends a packet, written as it is to be, out by the link that [`next`] gave.
#[inline(never)]
pub fn send<const N: usize>(skb: *mut __sk_buff, ifindex: u32, network: u32, ingress: bool) -> i32 {
    let network = network as usize;
    if ifindex == 0 {
        // For this host: at ingress the stack delivers it. At egress it would leave: turn it round.
        return if ingress { NEXT } else { back(skb, network, false) };
    }
    // At egress the stack has counted the hop already.
    if ingress && hop::<N>(skb, network).is_err() {
        return lost();
    }
    // The helper takes a link-layer header off before it puts the new one on, and drops a packet that has none.
    // SAFETY: a helper on the program's own packet.
    if network == 0 && unsafe { bpf_skb_change_head(skb, ETHERNET as u32, 0) } != 0 {
        return lost();
    }
    // SAFETY: helpers on the program's own packet.
    unsafe {
        // A bridge hands on packets that were addressed to another MAC; the neighbour layer would drop them.
        bpf_skb_change_type(skb, PACKET_HOST);
        bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32
    }
}

/// Drops a packet that the kernel refused to write or to send.
#[inline(always)]
pub fn lost() -> i32 {
    count::outcome(Outcome::DroppedRewrite, Counter::Packet);
    DROP
}

/// Whether the packet, if it is sent on from here, was to come no further. At egress the stack has seen to that.
#[inline(always)]
pub fn is_expired<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> bool {
    let mut limit = [0u8; 1];
    spot.ingress && (load(skb, spot.network + hop_limit_at::<N>(), &mut limit).is_err() || limit[0] <= 1)
}

/// Takes a hop off the packet's limit, which is more than one.
#[inline(always)]
pub fn hop<const N: usize>(skb: *mut __sk_buff, network: usize) -> Result<(), Refused> {
    let at = network + hop_limit_at::<N>();
    let mut limit = [0u8; 2];
    load(skb, at, &mut limit)?;
    let [left, protocol] = limit;
    let left = left.wrapping_sub(1);
    if N == 4 {
        let (old, new) = (u64::from(u16::from_ne_bytes(limit)), u64::from(u16::from_ne_bytes([left, protocol])));
        // SAFETY: the helper checks the offset against the packet.
        if unsafe { bpf_l3_csum_replace(skb, network as u32 + 10, old, new, 2) } != 0 {
            return Err(Refused);
        }
    }
    store(skb, at, &[left])
}

/// Where the hop limit stands in the network header.
#[inline(always)]
pub const fn hop_limit_at<const N: usize>() -> usize {
    if N == 4 { 8 } else { 7 }
}

/// Where a frame goes from XDP, and its link-layer addresses there.
pub struct Way {
    pub ifindex: u32,
    pub destination: [u8; 6],
    pub source: [u8; 6],
}

/// The way of a packet of so many bytes to its destination; `None`: the stack is asked, for it has no neighbour yet, is not to forward,
/// must fragment, or takes the packet itself.
#[inline(always)]
pub fn way<const N: usize>(
    context: *mut xdp_md,
    src: &[u8; N],
    dst: &[u8; N],
    protocol: u8,
    length: u32,
) -> Option<Way> {
    let mut query = query(src, dst, protocol);
    query.__bindgen_anon_1.tot_len = u16::try_from(length).ok()?;
    // SAFETY: reads the context.
    let came_by = unsafe { (*context).ingress_ifindex };
    query.ifindex = came_by;
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(context.cast::<c_void>(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || !(query.ifindex == came_by || sends(query.ifindex)) {
        return None;
    }
    Some(Way { ifindex: query.ifindex, destination: query.dmac, source: query.smac })
}

/// Whether a frame that XDP redirects to the link leaves by it.
#[inline(always)]
fn sends(ifindex: u32) -> bool {
    // SAFETY: one word, copied at once.
    unsafe { LINKS.get(ifindex) }.is_some_and(|link| link.flags & link_flags::XDP_SENDS != 0)
}

/// The index of the link towards an address of which nothing else is known; 0: there is none.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn link_to<const N: usize>(context: *mut c_void, ifindex: u32, address: &[u8; N]) -> u32 {
    let mut query = query(&[0; N], address, 0);
    query.ifindex = ifindex;
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(context, &raw mut query, size_of::<FibQuery>() as i32, 0) };
    // Too big for the link, it is the link none the less.
    let known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS)
        || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH)
        || found == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED);
    if known { query.ifindex } else { 0 }
}

#[inline(always)]
pub fn query<const N: usize>(src: &[u8; N], dst: &[u8; N], protocol: u8) -> FibQuery {
    // SAFETY: zeroes are a valid query; the union's members are written for the family at hand.
    let mut query: FibQuery = unsafe { core::mem::zeroed() };
    query.family = if N == 4 { AF_INET } else { AF_INET6 };
    query.l4_protocol = protocol;
    if N == 4 {
        query.__bindgen_anon_3.ipv4_src = u32::from_ne_bytes([src[0], src[1], src[2], src[3]]);
        query.__bindgen_anon_4.ipv4_dst = u32::from_ne_bytes([dst[0], dst[1], dst[2], dst[3]]);
    } else {
        query.__bindgen_anon_3.ipv6_src = words(src);
        query.__bindgen_anon_4.ipv6_dst = words(dst);
    }
    query
}

/// The link by which a packet of so many bytes leaves; 0: none, for it is for this host or has no way. Below 0: it is too big, and
/// this is the most that its way takes, negated.
///
/// A function of its own: off the stack of those that ask. Since Linux 5.12 the answer tells the way's MTU.
#[inline(never)]
pub fn next<const N: usize>(skb: *mut __sk_buff, src: &[u8; N], dst: &[u8; N], protocol: u8, length: u32) -> i32 {
    let mut query = query(src, dst, protocol);
    // No packet of the wire is longer than the field can tell.
    query.__bindgen_anon_1.tot_len = if length > LONGEST { 0 } else { length as u16 };
    // SAFETY: reads the context.
    query.ifindex = unsafe { (*skb).ifindex };
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(skb.cast::<c_void>(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    if found == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED) {
        // SAFETY: two names of the same number, in and out.
        return -i32::from(unsafe { query.__bindgen_anon_1.mtu_result });
    }
    let known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS) || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
    if known { query.ifindex as i32 } else { 0 }
}

/// How long the packet is on the wire, from its network header on: of several segments that the kernel has joined, the longest.
/// 0: not known.
#[inline(always)]
pub fn wire_length<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> u32 {
    // SAFETY: reads the context.
    let payload = unsafe { (*skb).gso_size };
    if payload == 0 {
        return packet.length;
    }
    if payload == GSO_BY_FRAGMENTS {
        return 0;
    }
    let mut words = [(UDP_HEADER as u8 / 4) << 4];
    if packet.key.protocol == TCP && load(skb, offsets.transport + 12, &mut words).is_err() {
        return 0;
    }
    (offsets.transport - offsets.network) as u32 + u32::from(words[0] >> 4) * 4 + payload
}

#[inline(always)]
fn words<const N: usize>(address: &[u8; N]) -> [u32; 4] {
    let mut words = [0u32; 4];
    let mut i = 0;
    while i < 4 && 4 * i + 3 < N {
        let at = 4 * i;
        words[i] = u32::from_ne_bytes([address[at], address[at + 1], address[at + 2], address[at + 3]]);
        i += 1;
    }
    words
}
