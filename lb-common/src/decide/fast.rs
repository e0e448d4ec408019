//! The fast path: packets between two pods of this node are handed over at the other end of a pod's link, past the host's stack.
//!
//! A flow gets the links of both directions with its entries, or none; then its packets are translated at the link of the pod that sends
//! them, answers too. Whether they are handed over is asked anew for each packet, and one that is not goes the usual way, where an answer
//! is translated at the client's link: exactly once either way.

use super::answer::rewrites;
use super::{Hook, Tables, Work};
use crate::abi::{Flow, SCTP, flow_flags};

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
    if flow.link != 0 && hook.has(Hook::FROM_CLIENT) { tables.link() } else { 0 }
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
    let is_own = flow.link != 0 && hook.has(Hook::FROM_CLIENT) && tables.is_own_link(sender);
    if is_own { tables.link() } else { 0 }
}

/// Whether the reply `work.packet` of the flow `work.flow` is rewritten at this hook; and if so, whether it is sent on from here.
#[inline(always)]
pub(super) fn replies<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> Option<bool> {
    let flow = &work.flow;
    let usual = rewrites(hook, flow.flags);
    let asks = usual.is_none() && hook.has(Hook::FROM_CLIENT) && flow.link != 0;
    if asks && tables.is_fast(flow.link, work.packet.key.protocol) { Some(false) } else { usual }
}
