//! The fast path to other nodes: a pod's packet is sent out by an external link, past this host's forwarding.
//!
//! The kernel is asked for the way of each packet: what its helper would do by itself with a link alone, but with the MTU of the route, and
//! a route that has moved is seen at once. Whatever is not as it was when the flow began is left to the stack.

use aya_ebpf::bindings::{__sk_buff, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibQuery, bpf_redir_neigh};
use aya_ebpf::helpers::generated::{bpf_fib_lookup, bpf_redirect_neigh, bpf_skb_change_type};
use lb_common::abi::{fast_path, flow_link};
use lb_common::decide::Work;
use lb_common::outcome::Outcome;

use crate::PodIn;
use crate::aside::Spot;
use crate::count::{self, Counter};
use crate::fast;
use crate::forward::{self, LONGEST, NEXT, PACKET_HOST};
use crate::maps::Family;
use crate::parse::{Bytes, ETHERNET, IPV4_HEADER, IPV6_HEADER, Offsets};
use crate::rewrite::End;
use crate::rewrite_tc;
use crate::tables::Kernel;

/// `AF_INET`: the next hop of an IPv4 packet may be one of IPv6 (RFC 5549).
const INTERNET: u8 = 2;

/// Writes the request of the scratch record as its verdict says, and sends it out by the flow's external link, if it may go there now; gives
/// the verdict at tc. Else nothing is written: [`NEXT`]. A *global* function, as the steps are. Since Linux 5.10 (`bpf_redirect_neigh` with a next hop).
#[inline(always)]
pub fn send<const N: usize>(skb: *mut __sk_buff) -> i32 {
    if N == 4 { beyond4(skb) } else { beyond6(skb) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn beyond4(skb: *mut __sk_buff) -> i32 {
    send_on::<4>(skb)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn beyond6(skb: *mut __sk_buff) -> i32 {
    send_on::<16>(skb)
}

#[inline(always)]
fn send_on<const N: usize>(skb: *mut __sk_buff) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return NEXT };
    if !fast::is_open(fast_path::NODES) || !fast::goes_on::<N>(skb, work.packet.key.protocol) {
        return NEXT;
    }
    let mut query = forward::query(&work.packet.key.src, &work.verdict.address, work.packet.key.protocol);
    if ask_as_the_stack(skb, work, &mut query).is_none() {
        return NEXT;
    }
    // SAFETY: the query lives on this stack and its size is told.
    let found = unsafe { bpf_fib_lookup(skb.cast(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    // Too large, no neighbour yet, another link: the stack knows what to do.
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || query.ifindex != flow_link::index(work.verdict.link) {
        return NEXT;
    }
    let verdict = rewrite_tc::rewrite(skb, Spot::number::<PodIn>(), offsets::<N>(), work, End::Destination, 1);
    if verdict != rewrite_tc::DONE {
        return verdict;
    }
    count::outcome(Outcome::FastPath, Counter::Packet);
    // SAFETY: all zeroes is a value of this type.
    let mut next: bpf_redir_neigh = unsafe { core::mem::zeroed() };
    next.nh_family = u32::from(query.family);
    // SAFETY: the kernel has written the next hop of this family; helpers on the program's own packet.
    unsafe {
        if query.family == INTERNET {
            next.__bindgen_anon_1.ipv4_nh = query.__bindgen_anon_4.ipv4_dst;
        } else {
            next.__bindgen_anon_1.ipv6_nh = query.__bindgen_anon_4.ipv6_dst;
        }
        // A bridge's port gets packets that are addressed to the bridge.
        if (*skb).pkt_type != PACKET_HOST {
            bpf_skb_change_type(skb, PACKET_HOST);
        }
        bpf_redirect_neigh(query.ifindex, &raw mut next, size_of::<bpf_redir_neigh>() as i32, 0) as i32
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

/// Where the headers of the packet stand: no other stands between, which was looked at.
#[inline(always)]
const fn offsets<const N: usize>() -> Offsets {
    Offsets { network: ETHERNET, transport: ETHERNET + if N == 4 { IPV4_HEADER } else { IPV6_HEADER } }
}
