//! Direct server return at XDP, on the backend's node (see `tc::dsr`).

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::xdp_md;
use lb_common::abi::network_flags;
use lb_common::decide::{self, Tables};

use crate::kernel::Kernel;
use crate::maps;
use crate::outer_header;
use crate::xdp::decision;
use crate::xdp::frame::bytes;
use crate::xdp::verdict::TRANSPORT_MASK;
use lb_common::parse::{ETHERNET, parse};

/// [`lb_common::stages::XdpStage::Decapsulate`]: decides over a packet for a backend of this node within its outer header.
#[inline(always)]
pub fn decapsulate<const N: usize>(context: *mut xdp_md) -> u32 {
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    let frame = bytes(context);
    let addresses_at = ETHERNET + if N == 4 { 12 } else { 8 };
    let work = &mut scratch.work;
    let read = frame.words(addresses_at, &mut work.packet.key.src).is_some()
        && frame.words(addresses_at + N, &mut work.chosen).is_some();
    let mut tables = Kernel::at(context.cast(), 0);
    // A packet of another sender than a node: tc tells it from others' tunnels.
    if !read || <Kernel as Tables<N>>::network(&mut tables, &work.packet.key.src) & network_flags::PEER == 0 {
        return XDP_PASS;
    }
    let Ok(offsets) = parse(frame, ETHERNET + outer_header::length::<N>(), &mut work.packet) else { return XDP_PASS };
    if !decide::is_tunnelled(&mut tables, work) {
        return XDP_PASS;
    }
    scratch.is_encapsulated = true;
    let transport = offsets.transport.wrapping_sub(outer_header::length::<N>()) & TRANSPORT_MASK;
    decision::look_up(context, scratch, transport)
}
