//! Packets of a connection that the table of handshakes retains though its handshake is over: one that has ended, or an encapsulated one, of
//! which no reply passes this node.

use super::collision;
use super::commit::handshake as commit;
use super::fast_path;
use super::flow_tables::FlowTables;
use super::forward::{forwarded, is_routed};
use super::lifetime::{Standing, expired};
use super::packet::{Hook, Now};
use super::step::Step;
use super::verdict::Action;
use super::work::Work;
use crate::abi::flow_state;
use crate::outcome::Outcome;
use crate::state;

/// A packet of the connection in `work`.
#[inline(always)]
pub(super) fn packet<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now: Now,
) -> Step {
    let Work { packet, connection, verdict, .. } = &mut *work;
    if connection.is_reply() {
        reply(tables, work, hook, now);
        return Step::Decided;
    }
    let flow = &mut connection.original.flow;
    if !collision::translates(tables, packet, hook, flow.flags) {
        return Step::Decided;
    }
    let is_over =
        expired(tables, packet.key.protocol, flow, now) || (packet.opens() && flow.state == flow_state::CLOSING);
    let keeps = flow.state != flow_state::EVICTED && Standing::of(tables, flow, now).takes(packet.key.protocol, flow);
    if is_over || (packet.opens() && !keeps) {
        commit::remove(tables, work);
        return Step::Select;
    }
    if !keeps {
        verdict.evict(packet, flow.backend);
        return Step::Decided;
    }
    verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
    // No reply of an encapsulated connection passes that could prove its end. A client that goes on has not meant it.
    let state = match state::closes(packet.tcp_flags) {
        _ if flow.port != 0 => flow.state,
        true => flow_state::CLOSING,
        false if packet.payload != 0 => flow_state::OPEN,
        false => flow.state,
    };
    // An ended connection rests from its end on, whatever comes late.
    if flow.state != state || (state != flow_state::CLOSING && flow.seen_s != now.s) {
        flow.state = state;
        commit::retain(tables, work, now);
    }
    Step::Decided
}

/// A late packet of the backend.
#[inline(always)]
fn reply<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) {
    let Work { packet, connection, verdict, .. } = &mut *work;
    let flow = &connection.reply.flow;
    let Some(route) = fast_path::replies(tables, packet, flow, hook) else { return };
    if packet.accepts() || expired(tables, packet.key.protocol, flow, now) {
        // It answers a direct connection on these ports, of a client whose requests no hook can tell apart.
        return commit::remove(tables, work);
    }
    if !Standing::of(tables, flow, now).takes(packet.key.protocol, flow) {
        return verdict.evict(packet, flow.backend);
    }
    verdict.translate(Action::ToClient, flow, Outcome::Replied, route);
}
