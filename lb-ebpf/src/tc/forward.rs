//! Sends a packet on: back where it came from, or out by the routing table.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    TC_ACT_SHOT, bpf_fib_lookup as FibQuery,
};
use aya_ebpf::helpers::generated::{
    bpf_fib_lookup, bpf_l3_csum_replace, bpf_redirect, bpf_redirect_neigh, bpf_skb_change_head, bpf_skb_change_type,
    bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use lb_common::abi::TCP;
use lb_common::decide::Packet;
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::fast_path::PACKET_HOST;
use crate::fib::{self, LONGEST};
use crate::nat::Refused;
use crate::scratch::{AttachPoint, Unsent};
use crate::tc::skb::{load, store};
use lb_common::parse::{ETHERNET, Offsets, UDP_HEADER, hop_limit_at};

/// Verdicts at tc. `NEXT` (TCX_NEXT, and TC_ACT_UNSPEC for clsact) leaves the packet to the programs behind us.
pub const NEXT: i32 = -1;
pub const DROP: i32 = TC_ACT_SHOT;

/// `gso_size` of a packet whose segments have lengths of their own (SCTP).
const GSO_BY_FRAGMENTS: u32 = 0xffff;

/// Drops a packet that the kernel refused to write or to send.
#[inline(always)]
pub fn lost() -> i32 {
    counters::outcome(Outcome::DroppedRewrite, Counter::Packet);
    DROP
}

/// Drops a packet whose sender is not told why.
#[inline(always)]
pub fn dropped(why: Unsent) -> i32 {
    let outcome = if why == Unsent::Expired { Outcome::DroppedHopLimit } else { Outcome::RefusedTooBig };
    counters::outcome(outcome, Counter::Packet);
    DROP
}

/// Sends the packet back over the link that it came by: out of it at ingress, into it at egress.
#[inline(always)]
pub fn back(skb: *mut __sk_buff, point: AttachPoint) -> i32 {
    if point.network() != 0 && swap_ethernet(skb).is_err() {
        return DROP;
    }
    let flags = if point.is_ingress { 0 } else { u64::from(BPF_F_INGRESS) };
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

/// Where the routing table sends a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// It is for this host, or has no route.
    Host,
    /// Out by this link.
    Link(u32),
    /// It is longer than this, which is the most that its route takes.
    TooBig(u32),
}

/// Where a packet of so many bytes (0: not known) goes. Since Linux 5.12 the answer names the route's MTU.
#[inline(always)]
pub fn next_hop<const N: usize>(
    skb: *mut __sk_buff,
    src: &[u8; N],
    dst: &[u8; N],
    protocol: u8,
    length: u32,
) -> NextHop {
    let mut query = fib::query(src, dst, protocol);
    // No packet of the wire is longer than the field can tell.
    query.__bindgen_anon_1.tot_len = if length > LONGEST { 0 } else { length as u16 };
    // SAFETY: reads the context.
    query.ifindex = unsafe { (*skb).ifindex };
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(skb.cast::<c_void>(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    if found == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED) {
        // SAFETY: two names of the same number, in and out.
        return NextHop::TooBig(u32::from(unsafe { query.__bindgen_anon_1.mtu_result }));
    }
    let is_known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS) || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
    if is_known && query.ifindex != 0 { NextHop::Link(query.ifindex) } else { NextHop::Host }
}

/// Sends a packet, written as it is to be, out by a link. Since Linux 5.10 (`bpf_redirect_neigh`).
#[inline(always)]
pub fn transmit<const N: usize>(skb: *mut __sk_buff, link: u32, point: AttachPoint) -> i32 {
    let network = point.network();
    // At egress the stack has counted the hop already.
    if point.is_ingress && one_hop_less::<N>(skb, network).is_err() {
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
        bpf_redirect_neigh(link, core::ptr::null_mut(), 0, 0) as i32
    }
}

/// Gives this host a packet: at ingress the stack delivers it; at egress it would leave, and is turned round.
#[inline(always)]
pub fn deliver(skb: *mut __sk_buff, point: AttachPoint) -> i32 {
    if point.is_ingress { NEXT } else { back(skb, point) }
}

/// Sends a packet of known length on, written as it is to be, by the routing table; up the stack if it is for this host. The sender of one
/// that cannot go on is not told.
#[inline(always)]
pub fn route<const N: usize>(
    skb: *mut __sk_buff,
    (src, dst): (&[u8; N], &[u8; N]),
    protocol: u8,
    length: u32,
    point: AttachPoint,
) -> i32 {
    if is_expired::<N>(skb, point) {
        return dropped(Unsent::Expired);
    }
    match next_hop(skb, src, dst, protocol, length) {
        NextHop::TooBig(_) => dropped(Unsent::TooBig),
        NextHop::Host => deliver(skb, point),
        NextHop::Link(link) => transmit::<N>(skb, link, point),
    }
}

/// Whether the packet, if it is sent on from here, was to come no further. At egress the stack has seen to that.
#[inline(always)]
pub fn is_expired<const N: usize>(skb: *mut __sk_buff, point: AttachPoint) -> bool {
    let mut limit = [0u8; 1];
    point.is_ingress && (load(skb, point.network() + hop_limit_at::<N>(), &mut limit).is_err() || limit[0] <= 1)
}

/// Takes a hop off the packet's limit, which is more than one.
#[inline(always)]
pub fn one_hop_less<const N: usize>(skb: *mut __sk_buff, network: usize) -> Result<(), Refused> {
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
