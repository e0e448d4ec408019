//! Sends a packet on: back where it came from, or out by the routing table.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, TC_ACT_SHOT,
    bpf_fib_lookup as FibQuery,
};
use aya_ebpf::helpers::generated::{
    bpf_fib_lookup, bpf_redirect, bpf_redirect_neigh, bpf_skb_change_head, bpf_skb_change_type, bpf_skb_load_bytes,
    bpf_skb_store_bytes,
};
use lb_common::abi::FlowKey;

use crate::parse::ETHERNET;

/// Verdicts at tc. `NEXT` (TCX_NEXT, and TC_ACT_UNSPEC for clsact) leaves the packet to the programs behind us.
pub const NEXT: i32 = -1;
pub const DROP: i32 = TC_ACT_SHOT;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `skb->pkt_type` of a packet for this host.
const PACKET_HOST: u32 = 0;

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

/// Sends a rewritten packet out by the routing table, resolving the neighbour; up the stack if it is for this host.
///
/// Since Linux 5.10 (`bpf_redirect_neigh`).
#[inline(never)]
pub fn route<const N: usize>(skb: *mut __sk_buff, key: &FlowKey<N>, network: usize, ingress: bool) -> i32 {
    let Some(ifindex) = next_link(skb, key) else {
        // For this host: at ingress the stack delivers it. At egress it would leave: turn it round.
        return if ingress { NEXT } else { back(skb, network, false) };
    };
    // The helper takes a link-layer header off before it puts the new one on, and drops a packet that has none.
    // SAFETY: a helper on the program's own packet.
    if network == 0 && unsafe { bpf_skb_change_head(skb, ETHERNET as u32, 0) } != 0 {
        return DROP;
    }
    // SAFETY: helpers on the program's own packet.
    unsafe {
        // A bridge hands on packets that were addressed to another MAC; the neighbour layer would drop them.
        bpf_skb_change_type(skb, PACKET_HOST);
        bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32
    }
}

/// The link towards the packet's destination; `None` if it is an address of this host, or unreachable.
#[inline(always)]
fn next_link<const N: usize>(skb: *mut __sk_buff, key: &FlowKey<N>) -> Option<u32> {
    // SAFETY: zeroes are a valid query; the union's members are written for the family at hand.
    let mut query: FibQuery = unsafe { core::mem::zeroed() };
    query.family = if N == 4 { AF_INET } else { AF_INET6 };
    query.l4_protocol = key.protocol;
    // SAFETY: reads the context.
    query.ifindex = unsafe { (*skb).ifindex };
    if N == 4 {
        query.__bindgen_anon_3.ipv4_src = u32::from_ne_bytes([key.src[0], key.src[1], key.src[2], key.src[3]]);
        query.__bindgen_anon_4.ipv4_dst = u32::from_ne_bytes([key.dst[0], key.dst[1], key.dst[2], key.dst[3]]);
    } else {
        query.__bindgen_anon_3.ipv6_src = words(&key.src);
        query.__bindgen_anon_4.ipv6_dst = words(&key.dst);
    }
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(skb.cast::<c_void>(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    let known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS) || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
    known.then_some(query.ifindex)
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
