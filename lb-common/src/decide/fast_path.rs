//! The fast path: packets of a connection between two pods pass the host's stack by, whether both are of this node or the backend is beyond
//! an external link.
//!
//! A connection gets the links of both directions with its entries, or none. Its packets are then translated where they come to this node
//! first, replies too: at the link of the pod that sends them, or at the external one. Whether they take the fast path from there is asked
//! anew for each packet. One that does not takes the host's stack, where a reply is translated at the client's link: exactly once either way.

use super::packet::{Hook, Packet};
use super::tables::Tables;
use super::work::Work;
use crate::abi::{Flow, SCTP, flow_flags, flow_link};

/// Sets the links of a new connection, if it takes the fast path; its entries are not written yet, and its original one has none.
#[inline(always)]
pub(super) fn lead<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    const OTHERWISE: u8 = flow_flags::EARLY | flow_flags::DIRECT | flow_flags::MASQUERADED;
    let (key, flow) = (&work.packet.key, &mut work.connection.original.flow);
    if hook.has(Hook::FROM_CLIENT) && flow.flags & OTHERWISE == 0 && flow.backend != 0 && key.protocol != SCTP {
        flow.link = tables.fast_link(&key.src, &flow.address);
        if flow.link != 0 {
            flow.own_link = tables.link();
        }
    }
}

/// The link of the opposite direction of a connection, whose entry this is; 0: none. A forged sender changes nothing in it.
#[inline(always)]
pub(super) const fn opposite_link<const N: usize>(flow: &Flow<N>) -> u32 {
    if flow.link == 0 { 0 } else { flow.own_link | flow_link::way(flow.link) }
}

/// Whether this is the link by which packets of the entry's direction come, and take the fast path.
#[inline(always)]
fn comes_its_way<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, hook: Hook) -> bool {
    hook.has(Hook::FAST_PATH) && flow.own_link == tables.link()
}

/// Whether the reply is translated at this hook; and if so, whether it is routed from here.
#[inline(always)]
pub(super) fn replies<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    flow: &Flow<N>,
    hook: Hook,
) -> Option<bool> {
    let usual = hook.translates_replies(flow.flags);
    let asks = usual.is_none() && flow.link != 0 && comes_its_way(tables, flow, hook);
    if asks && tables.is_fast(flow.link, packet.key.protocol) { Some(false) } else { usual }
}
