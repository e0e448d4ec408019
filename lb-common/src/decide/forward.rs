//! A packet of the original direction goes to its backend.

use super::commit::handshake as commit;
use super::fast_path;
use super::flow_tables::FlowTables;
use super::packet::{Hook, Now};
use super::verdict::Action;
use super::work::Work;
use crate::abi::{Flow, flow_flags, half_open_flags};
use crate::outcome::Outcome;

/// What a packet of the original direction counts as.
#[inline(always)]
pub(super) const fn forwarded<const N: usize>(flow: &Flow<N>) -> Outcome {
    if flow.backend == 0 { Outcome::DirectTranslated } else { Outcome::Forwarded }
}

/// Whether a packet of the original direction is routed from this hook. A direct connection's was routed to where it goes.
#[inline(always)]
pub(super) const fn is_routed<const N: usize>(flow: &Flow<N>, hook: Hook) -> bool {
    hook.has(Hook::ROUTED) && flow.backend != 0
}

/// The packet goes to the handshake's backend.
#[inline(always)]
pub(super) fn forward<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) {
    let Work { packet, connection, .. } = &mut *work;
    let original = &mut connection.original;
    let is_lost = original.flow.flags & flow_flags::REPLY_LOST != 0;
    let counts = packet.opens() || (!packet.is_udp() && original.flags & half_open_flags::RESUMED != 0);
    // Datagrams may be many: their time is written once a second. A RST of the client changes nothing.
    if counts || (packet.is_udp() && (is_lost || original.flow.seen_s != now.s)) {
        original.flow.seen_s = now.s;
        original.flow.flags &= !flow_flags::REPLY_LOST;
        let link = fast_path::opposite_link(&original.flow);
        connection.derive_reply(link);
        commit::refresh(tables, work, now);
    }
    let flow = &work.connection.original.flow;
    work.verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
}
