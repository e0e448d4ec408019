//! One packet at XDP, from outside. Towards a backend of this node it goes up the stack, rewritten; towards another node, or back from
//! one to an external client, it leaves from here. What cannot be finished here is left to tc, unmodified.

mod decapsulate;
mod decision;
mod encapsulate;
mod forward;
pub mod frame;
mod nat;
mod route;
mod stages;
mod verdict;

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use lb_common::stages::XdpStage;
use lb_common::words;

use crate::maps;
use crate::tail_call;
use frame::{bytes, is_outer};
use lb_common::parse::{ETHERNET, ETHERTYPE, IPV4, IPV6, Offsets, parse};

/// XDP on an external link.
#[xdp]
pub fn xdp_node(context: XdpContext) -> u32 {
    let context = context.ctx;
    match bytes(context).read::<[u8; 2]>(ETHERTYPE).map(u16::from_be_bytes) {
        Some(IPV4) => family::<4>(context),
        Some(IPV6) => family::<16>(context),
        _ => XDP_PASS,
    }
}

#[inline(always)]
fn family<const N: usize>(context: *mut xdp_md) -> u32 {
    // What cannot be read here, tc can: it may pull the rest in. It counts, too.
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    words::clear_address(&mut scratch.work.chosen);
    scratch.is_encapsulated = false;
    if let Ok(Offsets { transport, .. }) = parse(bytes(context), ETHERNET, &mut scratch.work.packet) {
        return decision::look_up(context, scratch, transport);
    }
    if is_outer::<N>(bytes(context)) {
        return tail_call::xdp::<N>(context, XdpStage::Decapsulate, XDP_PASS);
    }
    XDP_PASS
}
