//! Packets of an established connection. Short and inline: what is rare is another step.

use super::commit::established as commit;
use super::fast_path;
use super::lifetime::{Standing, expired, is_over};
use super::packet::{Hook, Now, Packet};
use super::step::Step;
use super::tables::{FlowTables, Tables};
use super::transition::Transition;
use super::verdict::Action;
use super::work::Work;
use crate::abi::{Flow, flow_state};
use crate::outcome::Outcome;
use crate::state;

/// A packet whose connection's entry was just read, under `entry`.
#[inline(always)]
pub(super) fn established<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: T::FlowRef,
) -> Step {
    if work.connection.is_reply() { reply(tables, work, hook, entry) } else { original(tables, work, hook, entry) }
}

#[inline(always)]
fn original<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: T::FlowRef,
) -> Step {
    let Work { packet, connection, verdict, .. } = work;
    let flow = &mut connection.original.flow;
    if !hook.translates(flow.flags) {
        return Step::Decided;
    }
    if packet.opens() {
        return Step::Syn;
    }
    let now = Now::from_ns(tables.now_ns());
    match of_original(tables, packet, flow, now) {
        Transition::Evict => {
            commit::evict(tables, entry, flow, now);
            verdict.evict(packet, flow.backend);
            return Step::Decided;
        }
        Transition::Move => {
            work.beginning = Outcome::Moved;
            return Step::Reselect;
        }
        Transition::New => return Step::Reselect,
        _ => {}
    }
    verdict.translate(Action::ToBackend, flow, forwarded(flow), hook.has(Hook::ROUTED));
    let state = state::after_forward(flow.state, packet.key.protocol);
    if commit::seen(tables, entry, packet, flow, now, state) { Step::Refresh } else { Step::Decided }
}

#[inline(always)]
fn reply<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, entry: T::FlowRef) -> Step {
    let Work { packet, connection, verdict, .. } = work;
    let flow = &mut connection.reply.flow;
    let Some(route) = fast_path::replies(tables, packet, flow, hook) else { return Step::Decided };
    let now = Now::from_ns(tables.now_ns());
    match of_reply(tables, packet, flow, now) {
        Transition::Evict => {
            commit::evict(tables, entry, flow, now);
            verdict.evict(packet, flow.backend);
            return Step::Decided;
        }
        Transition::Over => return Step::Remove,
        _ => {}
    }
    verdict.translate(Action::ToClient, flow, Outcome::Replied, route);
    let state = flow.state;
    if commit::seen(tables, entry, packet, flow, now, state) { Step::Refresh } else { Step::Decided }
}

/// A packet of the client that is no SYN.
#[inline(always)]
fn of_original<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    flow: &Flow<N>,
    now: Now,
) -> Transition {
    if flow.backend == 0 {
        return Transition::Forward;
    }
    let backend = Standing::of(tables, flow, now);
    let keeps = backend.keeps && flow.state != flow_state::EVICTED;
    match packet.is_udp() {
        false if keeps => Transition::Forward,
        false => Transition::Evict,
        true if !keeps || backend.moves => Transition::Move,
        true if expired(tables, packet.key.protocol, flow, now) => Transition::New,
        true => Transition::Forward,
    }
}

/// A packet of the backend.
#[inline(always)]
fn of_reply<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>, flow: &Flow<N>, now: Now) -> Transition {
    let is_over = if packet.is_udp() {
        expired(tables, packet.key.protocol, flow, now)
    } else {
        packet.accepts() && is_over(tables, packet.key.protocol, flow, now)
    };
    if is_over {
        // It answers a direct connection on these ports, of a client whose requests no hook can tell apart: a service's connection
        // that begins anew would have written its entries anew.
        return Transition::Over;
    }
    if flow.backend != 0 && (!Standing::of(tables, flow, now).keeps || flow.state == flow_state::EVICTED) {
        return Transition::Evict;
    }
    Transition::Reply
}

/// What a packet of the original direction counts as.
#[inline(always)]
pub(super) const fn forwarded<const N: usize>(flow: &Flow<N>) -> Outcome {
    if flow.backend == 0 { Outcome::DirectTranslated } else { Outcome::Forwarded }
}

/// The step that keeps both entries alike, moves them as the connection has ended, or removes them.
#[inline(always)]
pub fn keep<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, _: Hook, step: Step) -> Step {
    work.connection.set_keys(&work.packet.key);
    if step == Step::Refresh {
        if !commit::sync(tables, work) {
            let flow = &work.connection.entry().flow;
            let link = fast_path::opposite_link(flow);
            commit::restore(tables, work, link);
        }
        return Step::Decided;
    }
    commit::remove(tables, work);
    if step == Step::Reselect { Step::Select } else { Step::Decided }
}

/// The step for a SYN of the client on the tuple of an established connection. It goes to the backend, which answers with a challenge ACK
/// (RFC 5961, section 4).
#[inline(always)]
pub fn syn<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    work.connection.set_keys(&work.packet.key);
    let now = Now::from_ns(tables.now_ns());
    match of_syn(tables, &work.packet, &work.connection.original.flow, now) {
        Transition::Reopen if commit::reopen(tables, work, now) => {}
        Transition::Forward => {}
        _ => return Step::Reselect,
    }
    let flow = &work.connection.original.flow;
    work.verdict.translate(Action::ToBackend, flow, forwarded(flow), hook.has(Hook::ROUTED));
    Step::Decided
}

/// A SYN of the client: the connection's own once more, or that of another one.
#[inline(always)]
fn of_syn<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>, flow: &Flow<N>, now: Now) -> Transition {
    let is_other = flow.isn != packet.seq;
    let evicted = flow.state == flow_state::EVICTED;
    if evicted || (is_other && flow.state == flow_state::CLOSING) || expired(tables, packet.key.protocol, flow, now) {
        return Transition::New;
    }
    if !Standing::of(tables, flow, now).keeps {
        return Transition::New;
    }
    if is_other { Transition::Reopen } else { Transition::Forward }
}
