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

/// Sets the link of a new connection, whose entries are not written yet.
#[inline(always)]
pub(super) fn lead<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    const OTHERWISE: u8 = flow_flags::EARLY | flow_flags::DIRECT | flow_flags::MASQUERADED;
    let (key, flow) = (&work.packet.key, &mut work.connection.original.flow);
    flow.link = 0;
    if hook.has(Hook::FROM_CLIENT) && flow.flags & OTHERWISE == 0 && flow.backend != 0 && key.protocol != SCTP {
        flow.link = tables.fast_link(&key.src, &flow.address);
    }
}

/// The link of a new connection's reply direction, once [`lead`] has set the original one: the link that this packet came by.
#[inline(always)]
pub(super) fn reply_link<const N: usize, T: Tables<N>>(tables: &mut T, original: &Flow<N>, hook: Hook) -> u32 {
    if original.link != 0 && hook.has(Hook::FROM_CLIENT) { tables.link() | flow_link::way(original.link) } else { 0 }
}

/// The link of the opposite direction of a connection that is there: the link that this packet came by. 0: none, or not its sender's own
/// link. A forged sender gets nothing of what the real one is sent.
#[inline(always)]
pub(super) fn opposite_link<const N: usize, T: Tables<N>>(
    tables: &mut T,
    flow: &Flow<N>,
    sender: &[u8; N],
    hook: Hook,
) -> u32 {
    let is_own = flow.link != 0 && comes_its_way(tables, flow, hook) && tables.is_own_link(sender);
    if is_own { tables.link() | flow_link::way(flow.link) } else { 0 }
}

/// Whether this is a link by which packets of the entry's direction come, and take the fast path. A pod's own link is not looked at
/// more closely here.
#[inline(always)]
fn comes_its_way<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, hook: Hook) -> bool {
    // Replies of a connection to another node come by the link that it leads to, as the reverse path filter would have it.
    let is_external = flow.flags & flow_flags::REPLY != 0 && flow_link::way(flow.link) != 0;
    if !hook.has(Hook::FAST_PATH) || is_external != hook.has(Hook::FROM_OUTSIDE) {
        return false;
    }
    !is_external || flow_link::beyond(tables.link()) == flow_link::way(flow.link)
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
