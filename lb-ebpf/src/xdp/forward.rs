//! Where a frame goes from XDP.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibQuery, xdp_action::XDP_TX, xdp_md};
use aya_ebpf::helpers::generated::{bpf_fib_lookup, bpf_redirect};
use lb_common::abi::link_flags;
use lb_common::checksum;

use crate::fib;
use crate::maps::LINKS;
use crate::nat::Refused;
use lb_common::parse::{Bytes, hop_limit_at};

/// The link that a frame leaves by, and its link-layer addresses there.
pub struct NextHop {
    pub ifindex: u32,
    pub destination: [u8; 6],
    pub source: [u8; 6],
}

/// The next hop of a packet of so many bytes; `None`: the stack is asked, for it has no neighbour yet, is not to forward, must fragment, or
/// takes the packet itself.
#[inline(always)]
pub fn next_hop<const N: usize>(
    context: *mut xdp_md,
    src: &[u8; N],
    dst: &[u8; N],
    protocol: u8,
    length: u32,
) -> Option<NextHop> {
    let mut query = fib::query(src, dst, protocol);
    query.__bindgen_anon_1.tot_len = u16::try_from(length).ok()?;
    // SAFETY: reads the context.
    let came_by = unsafe { (*context).ingress_ifindex };
    query.ifindex = came_by;
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(context.cast::<c_void>(), &raw mut query, size_of::<FibQuery>() as i32, 0) };
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || !(query.ifindex == came_by || sends(query.ifindex)) {
        return None;
    }
    Some(NextHop { ifindex: query.ifindex, destination: query.dmac, source: query.smac })
}

/// Whether a frame that XDP redirects to the link leaves by it.
#[inline(always)]
fn sends(ifindex: u32) -> bool {
    // SAFETY: one word, copied at once.
    unsafe { LINKS.get(ifindex) }.is_some_and(|link| link.flags & link_flags::XDP_SENDS != 0)
}

/// Sends the frame, which is written, out by a link; gives the verdict at XDP.
#[inline(always)]
pub fn transmit(context: *mut xdp_md, link: u32) -> u32 {
    // SAFETY: reads the context; a helper that reads its arguments.
    unsafe { if link == (*context).ingress_ifindex { XDP_TX } else { bpf_redirect(link, 0) as u32 } }
}

/// Takes a hop off the packet's limit, which is not the last one.
#[inline(always)]
pub fn one_hop_less<const N: usize>(bytes: Bytes, network: usize, limit: u8) -> Result<(), Refused> {
    let hops = bytes.at::<u8>(network + hop_limit_at::<N>()).ok_or(Refused)?;
    let sum = if N == 4 { Some(bytes.at::<[u8; 2]>(network + 10).ok_or(Refused)?) } else { None };
    // SAFETY: all within the packet, as `at` has checked.
    unsafe {
        hops.write(limit - 1);
        if let Some(sum) = sum {
            // The limit is the upper half of its word.
            let (old, new) = (u32::from(limit) << 8, u32::from(limit - 1) << 8);
            sum.write(checksum::replace(u16::from_be_bytes(sum.read()), old, new).to_be_bytes());
        }
    }
    Ok(())
}
