//! Packets of an established connection. Short and inline: what is rare is another step.

use super::adopted;
use super::closing;
use super::collision;
use super::commit::established as commit;
use super::fast_path;
use super::flow_tables::{FlowTables, Keeping};
use super::forward::{forwarded, is_routed};
use super::lifetime::{Standing, expired, is_over};
use super::maps::FlowRef;
use super::packet::{Hook, Now, Packet};
use super::second;
use super::step::Step;
use super::tables::Tables;
use super::transition::{EstablishedOriginal, EstablishedReply, EstablishedSyn};
use super::verdict::Action;
use super::work::Work;
use crate::abi::{Flow, flow_flags, flow_link, flow_state};
use crate::limits::ANSWER_TIMEOUT_S;
use crate::outcome::Outcome;
use crate::state;
use crate::words;

/// A packet whose connection's entry was just read, under `entry`.
#[inline(always)]
pub(super) fn packet<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: FlowRef<T, N>,
) -> Step {
    if work.connection.is_reply() {
        reply::<N, T, false>(tables, work, hook, entry)
    } else {
        original::<N, T, false>(tables, work, hook, entry)
    }
}

/// What [`super::begin`] has left to do for a packet on the tuple of an established connection. Any other step is returned as it is.
#[inline(always)]
pub fn established<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    mut step: Step,
) -> Step {
    if step == Step::Syn {
        step = syn(tables, work, hook);
    }
    if step == Step::Draining {
        step = draining(tables, work, hook);
    }
    if step == Step::Adopted {
        return adopted::packet(tables, work, hook);
    }
    if !matches!(step, Step::Refresh | Step::Remove | Step::Reselect) {
        return step;
    }
    let keeping = if step != Step::Refresh {
        Keeping::Over
    } else if leaves_fast_path(tables, work) {
        Keeping::OffFastPath
    } else {
        Keeping::Alike
    };
    tables.keep_entries(work, keeping);
    if step == Step::Reselect { Step::Select } else { Step::Decided }
}

/// A packet of a connection between two pods of this node, of each direction one in a second, asks the routing table. If that leads elsewhere by now,
/// or nowhere, the connection takes the stack from here on. Those to other nodes ask with each request.
#[inline(always)]
fn leaves_fast_path<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { packet, connection, stored_key, .. } = work;
    let flow = &connection.entry().flow;
    let link = flow.link;
    if link == 0 || flow_link::way(link) != 0 || flow.own_link != tables.link() {
        return false;
    }
    // As the stack sees the packet: only its destination is translated. Copied, since Linux 5.10 would walk all that follows for each of the two.
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    words::address(if is_reply { &packet.key.dst } else { &flow.address }, &mut stored_key.dst);
    !tables.leads_by(&packet.key.src, &stored_key.dst, link)
}

/// A packet of an established connection whose backend drains. All that a drain asks is asked here: no other packet pays for it.
#[inline(always)]
fn draining<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let Some(entry) = tables.connection(&work.packet.key, &mut work.connection) else { return Step::Handshake };
    if work.connection.is_reply() {
        return reply::<N, T, true>(tables, work, hook, entry);
    }
    let step = original::<N, T, true>(tables, work, hook, entry);
    if step == Step::Draining { unanswered(tables, work) } else { step }
}

/// `DRAINS`: the backend is known to drain.
#[inline(always)]
fn original<const N: usize, T: FlowTables<N>, const DRAINS: bool>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: FlowRef<T, N>,
) -> Step {
    let Work { packet, connection, verdict, .. } = work;
    let flow = &mut connection.original.flow;
    if flow.is_given() {
        return Step::Adopted;
    }
    if !collision::translates(tables, packet, hook, flow.flags) {
        return Step::Decided;
    }
    if packet.opens() || (!DRAINS && flow.second != 0) {
        return Step::Syn;
    }
    let now = Now::from_ns(tables.now_ns());
    let transition = of_original::<N, T, DRAINS>(tables, packet, flow, now);
    match transition {
        EstablishedOriginal::Evict => {
            commit::evict(tables, entry, flow, now);
            verdict.evict(packet, flow.backend);
            return Step::Decided;
        }
        EstablishedOriginal::Move => {
            work.beginning = Outcome::Moved;
            return Step::Reselect;
        }
        EstablishedOriginal::New => return Step::Reselect,
        EstablishedOriginal::Drain if !DRAINS => return Step::Draining,
        EstablishedOriginal::Drain | EstablishedOriginal::Forward => {}
    }
    verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
    let state = state::after_forward(flow.state, packet.key.protocol);
    let is_new = commit::seen(tables, entry, packet, flow, now, state);
    if transition == EstablishedOriginal::Drain {
        Step::Draining
    } else if is_new {
        Step::Refresh
    } else {
        Step::Decided
    }
}

#[inline(always)]
fn reply<const N: usize, T: FlowTables<N>, const DRAINS: bool>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: FlowRef<T, N>,
) -> Step {
    let Work { packet, connection, verdict, .. } = work;
    let flow = &mut connection.reply.flow;
    if flow.is_given() {
        return Step::Adopted;
    }
    let Some(route) = fast_path::replies(tables, packet, flow, hook) else { return Step::Decided };
    let now = Now::from_ns(tables.now_ns());
    match of_reply::<N, T, DRAINS>(tables, packet, flow, now) {
        EstablishedReply::Evict => {
            commit::evict(tables, entry, flow, now);
            verdict.evict(packet, flow.backend);
            return Step::Decided;
        }
        EstablishedReply::Over => return Step::Remove,
        EstablishedReply::Drain => return Step::Draining,
        EstablishedReply::Reply => {}
    }
    verdict.translate(Action::ToClient, flow, Outcome::Replied, route);
    let state = flow.state;
    if commit::seen(tables, entry, packet, flow, now, state) { Step::Refresh } else { Step::Decided }
}

/// A packet of the client that is no SYN. [`EstablishedOriginal::Drain`]: the backend drains; where that is known, it must answer, too.
#[inline(always)]
fn of_original<const N: usize, T: Tables<N>, const DRAINS: bool>(
    tables: &mut T,
    packet: &Packet<N>,
    flow: &Flow<N>,
    now: Now,
) -> EstablishedOriginal {
    if flow.backend == 0 {
        return EstablishedOriginal::Forward;
    }
    let backend = Standing::of(tables, flow, now);
    if !DRAINS && backend.drain_ds != 0 {
        return EstablishedOriginal::Drain;
    }
    let takes = if DRAINS { backend.takes(packet.key.protocol, flow) } else { backend.lasts };
    let keeps = takes && flow.state != flow_state::EVICTED;
    match packet.is_udp() {
        false if keeps && DRAINS && backend.drain_ds != 0 && closing::asks(packet, flow) => EstablishedOriginal::Drain,
        false if keeps => EstablishedOriginal::Forward,
        false => EstablishedOriginal::Evict,
        true if !keeps || backend.moves => EstablishedOriginal::Move,
        true if expired(tables, packet.key.protocol, flow, now) => EstablishedOriginal::New,
        true => EstablishedOriginal::Forward,
    }
}

/// A packet of the backend.
#[inline(always)]
fn of_reply<const N: usize, T: Tables<N>, const DRAINS: bool>(
    tables: &mut T,
    packet: &Packet<N>,
    flow: &Flow<N>,
    now: Now,
) -> EstablishedReply {
    let is_over = if packet.is_udp() {
        expired(tables, packet.key.protocol, flow, now)
    } else {
        packet.accepts() && is_over(tables, packet.key.protocol, flow, now)
    };
    if is_over {
        // It answers a direct connection on these ports, of a client whose requests no hook can tell apart: a service's connection
        // that begins anew would have written its entries anew.
        return EstablishedReply::Over;
    }
    if flow.backend == 0 {
        return EstablishedReply::Reply;
    }
    let backend = Standing::of(tables, flow, now);
    if !DRAINS && backend.drain_ds != 0 {
        return EstablishedReply::Drain;
    }
    let takes = if DRAINS { backend.takes(packet.key.protocol, flow) } else { backend.lasts };
    if !takes || flow.state == flow_state::EVICTED { EstablishedReply::Evict } else { EstablishedReply::Reply }
}

/// A SYN of the client on the tuple of an established connection: it goes to the backend, which answers with a challenge ACK (RFC 5961, section 4).
/// Or any segment, while a second handshake stands beside the connection.
#[inline(always)]
fn syn<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    if !work.packet.opens() {
        return second::segment(tables, work, hook, now);
    }
    work.connection.set_keys(&work.packet.key);
    match of_syn(tables, &work.packet, &work.connection.original.flow, now) {
        EstablishedSyn::Reopen => {
            let is_silent = !commit::reopen(tables, work, now);
            let flow = &work.connection.original.flow;
            if flow.backend != 0 && (is_silent || flow.second != 0) {
                return second::syn(tables, work, hook, now, is_silent);
            }
            // A direct connection: only the client itself begins it anew.
            if is_silent && tables.comes_by_its_link(&work.packet) {
                return Step::Reselect;
            }
        }
        EstablishedSyn::Forward => {}
        EstablishedSyn::New => return Step::Reselect,
    }
    let flow = &work.connection.original.flow;
    work.verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
    Step::Decided
}

/// A SYN of the client: the connection's own once more, or that of another one.
#[inline(always)]
fn of_syn<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    flow: &Flow<N>,
    now: Now,
) -> EstablishedSyn {
    let is_other = flow.isn != packet.seq;
    let evicted = flow.state == flow_state::EVICTED;
    if evicted || (is_other && flow.state == flow_state::CLOSING) || expired(tables, packet.key.protocol, flow, now) {
        return EstablishedSyn::New;
    }
    if !Standing::of(tables, flow, now).takes(packet.key.protocol, flow) {
        return EstablishedSyn::New;
    }
    if is_other { EstablishedSyn::Reopen } else { EstablishedSyn::Forward }
}

/// A segment of the client that its backend, which drains, must answer: once the drain period is over, a segment that has stayed unanswered for
/// too long ends the connection.
///
/// Segments are noted from the begin of the drain on: a backend that died long before the end of the period is found out at once.
#[inline(always)]
fn unanswered<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> Step {
    work.connection.set_keys(&work.packet.key);
    let now = Now::from_ns(tables.now_ns());
    let silent_s = commit::await_answer(tables, work, now);
    let flow = &work.connection.original.flow;
    if silent_s <= ANSWER_TIMEOUT_S || Standing::of(tables, flow, now).keeps {
        return Step::Refresh;
    }
    let backend = flow.backend;
    commit::give_up(tables, work, now);
    work.verdict.evict(&work.packet, backend);
    Step::Decided
}
