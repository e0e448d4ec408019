//! Packets whose addresses are both translated, and that leave from XDP.

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::xdp_md;
use lb_common::abi::hook;

use crate::counters;
use crate::maps;
use crate::nat::{End, Refused, ends};
use crate::xdp::forward::{NextHop, next_hop, one_hop_less, transmit};
use crate::xdp::frame::bytes;
use crate::xdp::nat;
use crate::xdp::verdict::{leave_known_to_tc, leave_to_tc, lost, transport};
use lb_common::parse::{Bytes, ETHERNET, Offsets, hop_limit_at};

/// [`lb_common::stages::XdpStage::Route`]: sends the packet of the scratch record out from here, if its next hop is known. Nothing is
/// written before that.
#[inline(always)]
pub fn run<const N: usize>(context: *mut xdp_md) -> u32 {
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    let offsets = Offsets { network: ETHERNET, transport: transport(scratch) };
    let work = &scratch.work;
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let (src, dst) = ends(&work.verdict);
    let Some(limit) = bytes(context).read::<u8>(ETHERNET + hop_limit_at::<N>()) else { return leave_to_tc() };
    let hop = next_hop(context, src, dst, work.packet.key.protocol, work.packet.length);
    let Some(hop) = hop.filter(|_| limit > 1) else { return leave_known_to_tc(work, ifindex) };
    counters::packet(work, hook::XDP, ifindex, work.packet.length);
    let done = nat::both_ends(bytes(context), offsets, work, End::of(work))
        .and_then(|()| link_layer::<N>(bytes(context), limit, &hop));
    if done.is_err() { lost() } else { transmit(context, hop.ifindex) }
}

/// Writes the frame's new link-layer addresses, and takes a hop off its limit.
#[inline(always)]
fn link_layer<const N: usize>(bytes: Bytes, limit: u8, hop: &NextHop) -> Result<(), Refused> {
    let frame = bytes.at::<[[u8; 6]; 2]>(0).ok_or(Refused)?;
    // SAFETY: within the packet, as `at` has checked.
    unsafe {
        (*frame)[0] = hop.destination;
        (*frame)[1] = hop.source;
    }
    one_hop_less::<N>(bytes, ETHERNET, limit)
}
