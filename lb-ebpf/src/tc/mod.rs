//! The programs at tc.
//!
//! An entry program holds the hot path: a packet of an established connection, or one that is no service's.

mod decision;
mod dsr;
mod dsr_icmp;
mod echo;
pub mod forward;
mod fragments;
pub mod headers;
mod icmp;
mod icmp_error;
mod nat;
mod node_fast_path;
mod own_packet;
mod refuse;
mod route;
mod sctp;
pub mod skb;
mod slow_path;
mod stages;
mod transport;
pub mod verdict;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_pull_data;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use lb_common::abi::hook;
use lb_common::decide::{Hook, Step, begin};
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;
use lb_common::words;

use crate::counters::{self, Counter};
use crate::kernel::Kernel;
use crate::maps;
use crate::scratch::AttachPoint;
use crate::tail_call;
use forward::NEXT;
use lb_common::parse::{Bytes, IPV4, IPV6, Offsets, Other, TCP_HEADER, parse};

/// An attach point, known at compile time.
trait Point {
    const POINT: AttachPoint;
}

macro_rules! entry {
    ($(#[$meta:meta])* $name:ident, $point:ident, $hook:expr, $id:expr, $has_ethernet:expr, $is_ingress:expr) => {
        struct $point;
        impl Point for $point {
            const POINT: AttachPoint = AttachPoint::new($hook, $id, $has_ethernet, $is_ingress);
        }
        $(#[$meta])*
        #[classifier]
        #[inline(always)] // A tail call from another function than the program itself loses its verdict.
        pub fn $name(context: TcContext) -> i32 {
            handle::<$point>(context.skb.skb)
        }
    };
}

entry!(
    /// Ingress of a pod's link: what the pod sends.
    pod_in, PodIn, Hook::POD_IN, hook::POD_IN, true, true
);
entry!(
    /// Egress of a pod's link: what the pod receives.
    pod_out, PodOut, Hook::POD_OUT, hook::POD_OUT, true, false
);
entry!(
    /// Ingress of a bridge: pods whose own link has no program yet.
    bridge_in, BridgeIn, Hook::BRIDGE_IN, hook::BRIDGE_IN, true, true
);
entry!(
    /// Ingress of an external or tunnel link.
    node_in, NodeIn, Hook::NODE_IN, hook::NODE_IN, true, true
);
entry!(
    /// Egress of an external or tunnel link.
    node_out, NodeOut, Hook::NODE_OUT, hook::NODE_OUT, true, false
);
entry!(
    /// Ingress of a link without link-layer header.
    node_in_l3, NodeInL3, Hook::NODE_IN_L3, hook::NODE_IN, false, true
);
entry!(
    /// Egress of a link without link-layer header.
    node_out_l3, NodeOutL3, Hook::NODE_OUT, hook::NODE_OUT, false, false
);

#[inline(always)]
fn handle<P: Point>(skb: *mut __sk_buff) -> i32 {
    // SAFETY: reads the context.
    match u16::from_be(unsafe { (*skb).protocol } as u16) {
        IPV4 => family::<4, P>(skb),
        IPV6 => family::<16, P>(skb),
        _ => NEXT,
    }
}

/// Handles a packet of one address family.
#[inline(always)]
fn family<const N: usize, P: Point>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    words::clear_address(&mut scratch.work.chosen);
    let Ok(offsets) = read(skb, P::POINT.network(), &mut scratch.work.packet) else {
        scratch.enter(P::POINT, 0);
        return tail_call::tc::<N>(skb, TcStage::Parse, NEXT);
    };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    match begin::<N, Kernel>(&mut tables, &mut scratch.work, P::POINT.hook()) {
        Step::Unrelated => {
            counters::outcome(Outcome::Passed, Counter::Packet);
            NEXT
        }
        Step::Decided => {
            verdict::count(skb, &scratch.work, P::POINT);
            verdict::act(skb, scratch, P::POINT, offsets, &mut tables)
        }
        step => {
            scratch.enter(P::POINT, offsets.transport);
            decision::go_on(skb, scratch, step)
        }
    }
}

/// The longest headers that are read: IPv4 with all its options and TCP without; IPv6 takes as much.
const LONGEST_HEADERS: usize = 60 + TCP_HEADER;

#[inline(always)]
fn read<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    packet: &mut lb_common::decide::Packet<N>,
) -> Result<Offsets, Other> {
    let offsets = parse(bytes(skb), network, packet);
    let Err(Other::Short) = offsets else { return offsets };
    // SAFETY: reads the context, calls a helper on the program's own packet. What does not fit is not there.
    unsafe { bpf_skb_pull_data(skb, (*skb).len.min((network + LONGEST_HEADERS) as u32)) };
    parse(bytes(skb), network, packet)
}

#[inline(always)]
fn bytes(skb: *mut __sk_buff) -> Bytes {
    // SAFETY: reads the context.
    unsafe { Bytes { start: (*skb).data as usize, end: (*skb).data_end as usize, length: (*skb).len } }
}
