//! Direct server return at XDP, on the first node (see `tc::dsr`): before the kernel joins segments, and with no room to be made in a socket
//! buffer.

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_adjust_head;
use lb_common::abi::hook;
use lb_common::map;

use crate::counters;
use crate::maps;
use crate::nat::Refused;
use crate::outer_header;
use crate::xdp::forward::{next_hop, one_hop_less, transmit};
use crate::xdp::frame::bytes;
use crate::xdp::verdict::{leave_known_to_tc, leave_to_tc, lost};
use lb_common::parse::{Bytes, ETHERNET, ETHERTYPE, hop_limit_at};

/// [`lb_common::stages::XdpStage::Encapsulate`]: sends the packet of the scratch record whole to the node of the backend that its verdict
/// names. Nothing is written before the next hop is known.
#[inline(always)]
pub fn encapsulate<const N: usize>(context: *mut xdp_md) -> u32 {
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    let work = &scratch.work;
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let Some(limit) = bytes(context).read::<u8>(ETHERNET + hop_limit_at::<N>()) else { return leave_to_tc() };
    let length = work.packet.length + outer_header::length::<N>() as u32;
    let hop = next_hop(context, &[0; N], &work.verdict.address, outer_header::protocol::<N>(), length);
    let Some(hop) = hop.filter(|_| limit > 1) else { return leave_known_to_tc(work, ifindex) };
    let Some(own) = maps::view::<map::Masquerade<N>>(&0) else { return leave_to_tc() };
    counters::packet(work, hook::XDP, ifindex, work.packet.length);
    let done = one_hop_less::<N>(bytes(context), ETHERNET, limit).and_then(|()| {
        // SAFETY: a helper on the program's own packet.
        if unsafe { bpf_xdp_adjust_head(context, -(outer_header::length::<N>() as i32)) } != 0 {
            return Err(Refused);
        }
        let frame = bytes(context);
        let ethertype: [u8; 2] = frame.read(outer_header::length::<N>() + ETHERTYPE).ok_or(Refused)?;
        let header = frame.at::<[u8; ETHERNET]>(0).ok_or(Refused)?;
        let mut new = [0u8; ETHERNET];
        new[0..6].copy_from_slice(&hop.destination);
        new[6..12].copy_from_slice(&hop.source);
        new[12..14].copy_from_slice(&ethertype);
        // SAFETY: within the packet, as `at` has checked.
        unsafe { *header = new };
        put_on(frame, work.packet.length, own.address(0), &work.verdict.address)
    });
    if done.is_err() { lost() } else { transmit(context, hop.ifindex) }
}

#[inline(always)]
fn put_on<const N: usize>(frame: Bytes, length: u32, src: &[u8; N], dst: &[u8; N]) -> Result<(), Refused> {
    if N == 4 {
        let header = frame.at(ETHERNET).ok_or(Refused)?;
        // SAFETY: within the packet, as `at` has checked.
        unsafe { *header = outer_header::v4(length, src, dst) };
    } else {
        let header = frame.at(ETHERNET).ok_or(Refused)?;
        // SAFETY: as above.
        unsafe { *header = outer_header::v6(length, src, dst) };
    }
    Ok(())
}
