//! Packets of a connection that the table of handshakes retains though its handshake is over: an encapsulated one, of which no reply
//! passes this node.

use super::commit::handshake as commit;
use super::established::forwarded;
use super::lifetime::{Standing, expired};
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::FlowTables;
use super::verdict::Action;
use super::work::Work;
use crate::abi::flow_state;

/// A packet of the connection in `work`.
#[inline(always)]
pub(super) fn packet<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now: Now,
) -> Step {
    let Work { packet, connection, verdict, .. } = &mut *work;
    let is_reply = connection.is_reply();
    let flow = &mut connection.original.flow;
    if is_reply || !hook.translates(flow.flags) {
        return Step::Decided;
    }
    // The backend's own word is not to be seen here: it gets the SYN of another connection, too, and no FIN or RST is proven.
    let is_over = expired(tables, packet.key.protocol, flow, now);
    let keeps = flow.state != flow_state::EVICTED && Standing::of(tables, flow, now).keeps;
    if is_over || (packet.opens() && !keeps) {
        commit::remove(tables, work);
        return Step::Select;
    }
    if !keeps {
        verdict.evict(packet, flow.backend);
        return Step::Decided;
    }
    verdict.translate(Action::ToBackend, flow, forwarded(flow), hook.has(Hook::ROUTED));
    if flow.seen_s != now.s {
        commit::retain(tables, work, now);
    }
    Step::Decided
}
