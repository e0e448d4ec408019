//! The fast path: packets of a flow between two pods pass the host's stack by, whether both are of this node or the backend is beyond an
//! external link.
//!
//! A flow gets the links of both directions with its entries, or none; then its packets are translated where they come to this node first,
//! answers too: at the link of the pod that sends them, or at the external one. Whether they go on from there is asked anew for each packet,
//! and one that does not goes the usual way, where an answer is translated at the client's link: exactly once either way.

use super::answer::rewrites;
use super::{Hook, Tables, Work};
use crate::abi::{Flow, SCTP, flow_flags, flow_link};

/// Sets the link of the new flow in `work.half`, whose entries are not written yet.
#[inline(always)]
pub(super) fn lead<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    const OTHERWISE: u8 = flow_flags::EARLY | flow_flags::DIRECT | flow_flags::MASQUERADED;
    let (key, flow) = (&work.packet.key, &mut work.half.flow);
    flow.link = 0;
    if hook.has(Hook::FROM_CLIENT) && flow.flags & OTHERWISE == 0 && flow.backend != 0 && key.protocol != SCTP {
        flow.link = tables.fast_link(&key.src, &flow.address);
    }
}

/// The link of the other direction's entry of a new flow, whose link [`lead`] has set: the one that this packet came by.
#[inline(always)]
pub(super) fn came_by<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, hook: Hook) -> u32 {
    if flow.link != 0 && hook.has(Hook::FROM_CLIENT) { tables.link() | flow_link::way(flow.link) } else { 0 }
}

/// The link of the other direction's entry of a flow that is there: the one that this packet came by. 0: none, or it did not come by its
/// sender's own: whoever else sends in its name gets nothing of what is meant for it.
#[inline(always)]
pub(super) fn other_link<const N: usize, T: Tables<N>>(
    tables: &mut T,
    flow: &Flow<N>,
    sender: &[u8; N],
    hook: Hook,
) -> u32 {
    let is_own = flow.link != 0 && comes_its_way(tables, flow, hook) && tables.is_own_link(sender);
    if is_own { tables.link() | flow_link::way(flow.link) } else { 0 }
}

/// Whether this is a link by which packets of the entry's direction come, and go on past the host's stack. A pod's own link is not looked at
/// more closely here.
#[inline(always)]
fn comes_its_way<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, hook: Hook) -> bool {
    // Of a flow to another node, answers come from beyond: by the link that the flow leads to, as the reverse path filter would have it.
    let from_beyond = flow.flags & flow_flags::REPLY != 0 && flow_link::way(flow.link) != 0;
    if !hook.has(Hook::HANDS_OVER) || from_beyond != hook.has(Hook::FROM_OUTSIDE) {
        return false;
    }
    !from_beyond || flow_link::beyond(tables.link()) == flow_link::way(flow.link)
}

/// Whether the reply `work.packet` of the flow `work.flow` is rewritten at this hook; and if so, whether it is sent on from here.
#[inline(always)]
pub(super) fn replies<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> Option<bool> {
    let flow = &work.flow;
    let usual = rewrites(hook, flow.flags);
    let asks = usual.is_none() && flow.link != 0 && comes_its_way(tables, flow, hook);
    if asks && tables.is_fast(flow.link, work.packet.key.protocol) { Some(false) } else { usual }
}
