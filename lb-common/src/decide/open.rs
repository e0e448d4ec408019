//! Packets of no established connection: of a handshake, or of none.

use super::commit::{claim, handshake as commit};
use super::connection::leads_to;
use super::flow_tables::{Accepted, Established, FlowTables};
use super::forward::{forward, forwarded, is_routed};
use super::lifetime::Standing;
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::Tables;
use super::transition::{HandshakeOriginal, HandshakeReply};
use super::verdict::Action;
use super::work::{Work, allocation};
use super::{
    affinity, collision, connect_time, dsr, fast_path, handshake, outlier, retained, second, select, share, vip,
};
use crate::abi::{Flow, TCP, flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;

/// The step for a packet of no established connection that may be of a handshake.
///
/// An ICMP error that quotes the SYN sent to a backend counts as a RST, whether a router or the backend sent it. The caller shows it to this step as
/// that RST: the tuple reversed, the flags RST and ACK, the quoted sequence number + 1 acknowledged, and the verdict set to pass. Then
/// [`super::retry`], if that is next. What the verdict says afterwards holds for the error: dropped ([`Outcome::SuppressedRefusal`]), or passed on to
/// the client ([`Action::ToClient`]), or left alone.
#[inline(always)]
pub fn open<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let new = if hook.has(Hook::REQUESTS) { Step::Select } else { Step::Decided };
    let Work { packet, connection, stored, .. } = &mut *work;
    if !tables.half_open(&packet.key, stored) {
        return new;
    }
    // The reply tuple of an encapsulated connection has port 0: its backend answers from elsewhere.
    if packet.key.src_port == 0 && stored.flow.flags & flow_flags::REPLY != 0 {
        return new;
    }
    let is_retained = stored.flow.state != flow_state::HALF_OPEN;
    let takes_any = is_retained
        || stored.flags & half_open_flags::RESUMED != 0
        || (stored.flow.flags & flow_flags::REPLY != 0 && packet.is_for_reused_port(tables.source_ports()));
    // Any other segment establishes a connection, or belongs to none.
    if packet.is_midway() && !takes_any {
        return new;
    }
    connection.read_handshake(stored);
    connection.set_keys(&packet.key);
    let now = Now::from_ns(tables.now_ns());
    if is_retained {
        return retained::packet(tables, work, hook, now);
    }
    if connection.is_reply() {
        return answer(tables, work, hook, now);
    }
    if !collision::translates(tables, packet, hook, connection.original.flow.flags) {
        return Step::Decided;
    }
    match handshake::original(tables, packet, &mut connection.original, now) {
        transition @ (HandshakeOriginal::New | HandshakeOriginal::Move) => {
            commit::remove(tables, work);
            if transition == HandshakeOriginal::Move {
                work.beginning = Outcome::Moved;
            } else if second::follows(tables, work, now) {
                forward(tables, work, hook, now);
                return Step::Decided;
            }
            return Step::Select;
        }
        HandshakeOriginal::Retry => return Step::Retry,
        HandshakeOriginal::Other => return other(tables, work, hook, now),
        HandshakeOriginal::Forward if second::aborts(tables, work, hook, now) => {}
        HandshakeOriginal::Abort => {
            let flow = &work.connection.original.flow;
            work.verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
            commit::remove(tables, work);
            second::follows(tables, work, now);
        }
        HandshakeOriginal::Forward => forward(tables, work, hook, now),
    }
    Step::Decided
}

/// A SYN of another handshake than the one in `work.connection`: it begins beside that one. Of an encapsulated handshake the backend's own node
/// decides. That of a direct connection begins anew: it has come by its client's link.
#[inline(always)]
fn other<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let flow = &work.connection.original.flow;
    if flow.port == 0 || (flow.backend == 0 && tables.comes_by_its_link(&work.packet)) {
        commit::remove(tables, work);
        return Step::Select;
    }
    let may_begin = flow.backend != 0;
    second::syn(tables, work, hook, now, may_begin)
}

/// What comes back for a handshake.
#[inline(always)]
fn answer<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let Work { packet, connection, verdict, .. } = &mut *work;
    let flow = &mut connection.reply.flow;
    let Some(route) = fast_path::replies(tables, packet, flow, hook) else { return Step::Decided };
    let backend = Standing::of(tables, flow, now);
    let transition = handshake::reply(tables, packet, &connection.reply, backend, now);
    if matches!(transition, HandshakeReply::Accept | HandshakeReply::Establish) {
        connect_time::end(tables, &connection.reply);
    }
    match transition {
        HandshakeReply::Over => {
            commit::remove(tables, work);
            return Step::Decided;
        }
        HandshakeReply::Late => {
            verdict.late(packet, connection.reply.flow.backend);
            if packet.accepts() {
                learn(tables, &connection.reply.flow, backend.generation, now);
            }
            return Step::Decided;
        }
        HandshakeReply::Evict => {
            verdict.evict(packet, connection.reply.flow.backend);
            return Step::Decided;
        }
        HandshakeReply::Reply
        | HandshakeReply::Abort
        | HandshakeReply::Retry
        | HandshakeReply::Accept
        | HandshakeReply::Establish => {
            verdict.translate(Action::ToClient, &connection.reply.flow, Outcome::Replied, route);
        }
    }
    match transition {
        HandshakeReply::Abort => commit::remove(tables, work),
        HandshakeReply::Retry => return Step::Retry,
        HandshakeReply::Accept => accept(tables, work, backend.generation, now),
        // The client itself is refused at its next SYN.
        HandshakeReply::Establish
            if backend.generation != 0
                && !packet.is_udp()
                && share::is_exceeded(tables, &connection.reply.flow.client, connection.reply.flow.flags) =>
        {
            verdict.late(packet, connection.reply.flow.backend);
            verdict.outcome = Outcome::RefusedClientShare;
        }
        HandshakeReply::Establish => {
            connection.reply.flow.state = flow_state::OPEN;
            match establish(tables, work, backend.generation, now) {
                Established::Yes if backend.generation != 0 => {
                    outlier::answered(tables, work.connection.reply.flow.backend, backend.generation, now);
                }
                // Two datagrams that came at once have each made a reply entry, and the client waits for both answers.
                Established::Late if work.packet.is_udp() => {}
                Established::Yes => {}
                Established::Late => work.verdict.late(&work.packet, work.connection.reply.flow.backend),
                Established::Full => {
                    commit::undo(tables, work);
                    work.verdict.drop(Outcome::DroppedTableFull);
                }
            }
        }
        HandshakeReply::Reply | HandshakeReply::Over | HandshakeReply::Late | HandshakeReply::Evict => {}
    }
    Step::Decided
}

/// The backend accepts the connection.
#[inline(always)]
fn accept<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, generation: u32, now: Now) {
    let accepted = tables.accept(work, now.s);
    let Work { packet, connection, verdict, .. } = &mut *work;
    let flow = &connection.reply.flow;
    match accepted {
        Accepted::Late => {
            verdict.late(packet, flow.backend);
            commit::lose(tables, work);
        }
        // The backend answers once more.
        Accepted::Full => return verdict.drop(Outcome::DroppedTableFull),
        Accepted::Established => return,
        Accepted::Missing => {
            let link = fast_path::opposite_link(flow);
            commit::restore_original(tables, work, link);
        }
        Accepted::First if connection.original.tried[0] != 0 => tables.note_tried(work, now.ds),
        Accepted::First | Accepted::Again => {}
    }
    learn(tables, &work.connection.reply.flow, generation, now);
}

/// A backend has answered. Of a second handshake nothing is learnt: anybody may have begun it.
#[inline(always)]
fn learn<const N: usize, T: FlowTables<N>>(tables: &mut T, reply: &Flow<N>, generation: u32, now: Now) {
    if reply.second == 0 {
        outlier::answered(tables, reply.backend, generation, now);
    }
}

/// Establishes the connection: by the reply, or by the client's own segment.
#[inline(always)]
fn establish<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    generation: u32,
    now: Now,
) -> Established {
    let Work { packet, connection, stored, .. } = &mut *work;
    let is_reply = connection.is_reply();
    let (flow, opposite_key) = if is_reply {
        (&connection.reply.flow, &connection.original_key)
    } else {
        (&connection.original.flow, &connection.reply_key)
    };
    // The original entry says which backend the connection is with; either entry, by which link the opposite direction goes.
    let is_known = (is_reply || flow.link != 0)
        && tables.half_open(opposite_key, stored)
        && stored.flags & half_open_flags::SECOND == 0;
    // No answer establishes a connection that was retried: the client's segment does.
    let is_contested = is_reply && stored.moves != 0;
    let link = if is_known && !is_contested && leads_to(opposite_key, &stored.flow, &packet.key) {
        stored.flow.link
    } else if is_known && is_reply {
        return Established::Late;
    } else {
        fast_path::opposite_link(flow)
    };
    let established = tables.establish(work, link, generation, now.s);
    if established == Established::Yes && generation != 0 {
        affinity::established(tables, work, generation, now.ds);
    }
    established
}

/// The step for a client's segment of a service, but of no established connection: it completes a handshake; or it belongs to none, for which
/// the verdict is in `work` already.
#[inline(always)]
pub fn complete<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let is_handshake = tables.half_open(&work.packet.key, &mut work.stored);
    if is_handshake && work.stored.moves != 0 && work.stored.flags & half_open_flags::ANSWERED == 0 {
        claim::read(tables, work);
    }
    let is_first = is_handshake && handshake::completes(tables, &work.packet, &work.stored, now);
    if !is_first && !second::completes(tables, work, now) {
        // Also where another handshake of the client is left, beside which this one was established.
        if is_established(tables, work, hook, now) {
            return Step::Decided;
        }
        if dsr::follow(tables, work, hook, now.ds) {
            return resume(tables, work, hook);
        }
        if !is_handshake && is_adopted(tables, work, hook, now) {
            work.verdict.settle(Action::Pass, Outcome::PassedAdoption);
        } else if !is_handshake && is_nodes(tables, work, hook) {
            work.verdict.settle(Action::Pass, Outcome::Passed);
        }
        return Step::Decided;
    }
    let Work { packet, connection, stored, verdict, .. } = &mut *work;
    connection.read_handshake(stored);
    connection.set_keys(&packet.key);
    let flow = &mut connection.original.flow;
    let backend = Standing::of(tables, flow, now);
    if !backend.keeps || flow.backend == 0 {
        verdict.refuse(packet, Outcome::Evicted);
        return Step::Decided;
    }
    flow.state = flow_state::OPEN;
    if flow.port == 0 {
        verdict.translate(Action::ToBackend, flow, Outcome::Forwarded, true);
        commit::retain(tables, work, now);
        return Step::Decided;
    }
    if share::is_exceeded(tables, &packet.key.src, flow.flags) {
        commit::refuse(tables, work);
        work.verdict.refuse(&work.packet, Outcome::RefusedClientShare);
        return Step::Decided;
    }
    match establish(tables, work, backend.generation, now) {
        Established::Yes => {
            if work.connection.original.flags & half_open_flags::CLAIMED != 0 {
                claim::release(tables, work);
            }
            let flow = &work.connection.original.flow;
            work.verdict.translate(Action::ToBackend, flow, Outcome::Forwarded, hook.has(Hook::ROUTED));
        }
        // The client sends it once more.
        Established::Full => {
            commit::undo(tables, work);
            work.verdict.drop(Outcome::DroppedTableFull);
        }
        Established::Late => work.verdict.refuse(&work.packet, Outcome::RefusedNoFlow),
    }
    Step::Decided
}

/// Whether another CPU has established the connection since it was looked up. A request may overtake the acknowledgement that does so: the client's
/// kernel sends the one from where the process runs, and the other from where the answer came in.
#[inline(always)]
fn is_established<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> bool {
    let Work { packet, connection, verdict, .. } = work;
    let is_there = tables.connection(&packet.key, connection).is_some();
    let flow = &connection.original.flow;
    if !is_there
        || connection.is_reply()
        || flow.backend == 0
        || flow.state == flow_state::EVICTED
        || !Standing::of(tables, flow, now).takes(packet.key.protocol, flow)
    {
        return false;
    }
    verdict.translate(Action::ToBackend, flow, Outcome::Forwarded, hook.has(Hook::ROUTED));
    true
}

/// Whether a segment that is to be refused is left to the host's stack. Its NAT has had its turn with what is routed already, and knows
/// nothing of what another node has chosen a backend for.
#[inline(always)]
fn is_adopted<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook, now: Now) -> bool {
    !hook.has(Hook::ROUTED)
        && !work.is_chosen()
        && matches!(work.verdict.action, Action::Refuse | Action::Drop)
        && tables.adopts(now.s)
}

/// Whether a segment from outside, of no connection that the tables hold, is for the node's stack: a process of the node, or a pod whose source the node
/// translates, may have the number of a node port as its own port. The stack refuses what it does not know. Nobody else has a service's address.
#[inline(always)]
fn is_nodes<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> bool {
    hook.has(Hook::FROM_OUTSIDE)
        && !work.is_chosen()
        && matches!(work.verdict.action, Action::Refuse | Action::Drop)
        && !vip::is_vip(tables, &work.packet.key.dst)
}

/// The connection gets its entries anew, with the backend in `work.pick`: its SYN went there. The backend's reply to the segment shows
/// whether it knows the connection. If not, that is a RST, which establishes nothing.
#[inline(always)]
fn resume<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let step = select::found(tables, work, hook);
    work.allocation |= allocation::BY_TUPLE;
    work.beginning = Outcome::Resumed;
    let original = &mut work.connection.original;
    original.flags = original.flags & half_open_flags::AFFINITY | half_open_flags::RESUMED;
    if work.packet.key.protocol == TCP {
        original.flow.isn = work.packet.seq.wrapping_sub(1);
    }
    step
}
