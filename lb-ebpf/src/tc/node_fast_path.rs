//! The fast path to other nodes: a pod's packet is sent out by an external link, past this host's forwarding.
//!
//! The FIB is asked for each packet. `bpf_redirect_neigh` would do that by itself with a link alone, but so the MTU of the route counts, and a route
//! that has changed is seen at once. A packet whose next hop is not as it was when the connection began takes the stack.

use aya_ebpf::bindings::{__sk_buff, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibQuery, bpf_redir_neigh};
use aya_ebpf::helpers::generated::{bpf_fib_lookup, bpf_redirect_neigh};
use lb_common::abi::{fast_path, flow_link};
use lb_common::decide::Work;
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::fast_path as pods;
use crate::features;
use crate::fib::{self, LONGEST};
use crate::maps;
use crate::nat::End;
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::nat;
use lb_common::parse::{Bytes, ETHERNET, IPV4_HEADER, IPV6_HEADER, Offsets};

/// `AF_INET`: the next hop of an IPv4 packet may be one of IPv6 (RFC 5549).
const INTERNET: u8 = 2;

/// [`lb_common::stages::TcStage::NodeFastPath`]: writes the request as its verdict says, and sends it out by the connection's external link,
/// or up the stack. Since Linux 5.10 (`bpf_redirect_neigh` with a next hop).
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let work = &scratch.work;
    let next_hop = next_hop(skb, work);
    let hops = u8::from(next_hop.is_some());
    if nat::one_end(skb, ETHERNET, work, End::Destination, hops).is_err() {
        return forward::lost();
    }
    let Some((link, mut next_hop)) = next_hop else { return NEXT };
    counters::outcome(Outcome::FastPath, Counter::Packet);
    pods::receive_as_host(skb);
    // SAFETY: a helper that reads its arguments, which live on this stack.
    unsafe { bpf_redirect_neigh(link, &raw mut next_hop, size_of::<bpf_redir_neigh>() as i32, 0) as i32 }
}

/// The next hop of the packet, and the link that leads to it; `None`: the stack is to forward it.
#[inline(always)]
fn next_hop<const N: usize>(skb: *mut __sk_buff, work: &Work<N>) -> Option<(u32, bpf_redir_neigh)> {
    let protocol = work.packet.key.protocol;
    if !pods::is_open(fast_path::NODES, features::coarse_ns()) || !pods::goes_on::<N>(skb, protocol) {
        return None;
    }
    let mut query = fib::query(&work.packet.key.src, &work.verdict.address, protocol);
    ask_as_the_stack(skb, work, &mut query)?;
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(skb.cast(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    // Too large, no neighbour yet, another link: the stack knows what to do.
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || query.ifindex != flow_link::index(work.verdict.link) {
        return None;
    }
    // SAFETY: all zeroes is a value of this type; the kernel has written the next hop of this family.
    unsafe {
        let mut next_hop: bpf_redir_neigh = core::mem::zeroed();
        next_hop.nh_family = u32::from(query.family);
        if query.family == INTERNET {
            next_hop.__bindgen_anon_1.ipv4_nh = query.__bindgen_anon_4.ipv4_dst;
        } else {
            next_hop.__bindgen_anon_1.ipv6_nh = query.__bindgen_anon_4.ipv6_dst;
        }
        Some((query.ifindex, next_hop))
    }
}

/// Writes into the query what else the stack would ask the routing table with, for this packet. `None`: nobody knows how long it is.
#[inline(always)]
fn ask_as_the_stack<const N: usize>(skb: *mut __sk_buff, work: &Work<N>, query: &mut FibQuery) -> Option<()> {
    (query.sport, query.dport) = (work.verdict.client_port.to_be(), work.verdict.port.to_be());
    let length = forward::wire_length(skb, &work.packet, offsets::<N>());
    if length == 0 || length > LONGEST {
        return None;
    }
    query.__bindgen_anon_1.tot_len = length as u16;
    // SAFETY: reads the context.
    let (bytes, ifindex) =
        unsafe { (Bytes { start: (*skb).data as usize, end: (*skb).data_end as usize, length: 0 }, (*skb).ifindex) };
    query.ifindex = ifindex;
    let first: [u8; 4] = bytes.read(ETHERNET)?;
    if N == 4 {
        query.__bindgen_anon_2.tos = first[1];
    } else {
        query.__bindgen_anon_2.flowinfo = u32::from_ne_bytes([first[0] & 0x0f, first[1], first[2], first[3]]);
    }
    Some(())
}

/// Where the headers of the packet are: no other is between, which was checked.
#[inline(always)]
const fn offsets<const N: usize>() -> Offsets {
    Offsets { network: ETHERNET, transport: ETHERNET + if N == 4 { IPV4_HEADER } else { IPV6_HEADER } }
}
