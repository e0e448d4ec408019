//! Packets of a known flow: to its backend, back to its client, or told that the backend is gone.
//!
//! `work.flow` is the entry found under the packet's tuple, `work.pair_key` the key of the other direction. Short and inline: what is
//! seldom is another step.

use super::entries::{is_of, leads_to, pair_of, uncount};
use super::{Action, Hook, Now, Step, Tables, Work, fast};
use crate::abi::{UDP, flow_flags, flow_state};
use crate::outcome::Outcome;
use crate::state;

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: T::FlowRef,
) -> Step {
    let flags = work.flow.flags;
    let protocol = work.packet.key.protocol;
    let opens = protocol != UDP && state::opens(work.packet.tcp_flags);
    if flags & flow_flags::REPLY != 0 {
        let Some(route) = fast::replies(tables, work, hook) else { return Step::Decided };
        if protocol != UDP && state::accepts(work.packet.tcp_flags) {
            return Step::Syn;
        }
        return reply(tables, work, entry, route);
    }
    // A translated packet looks like the direct one of the same tuple: only the client's own link can tell them apart.
    if !hook.has(Hook::REQUESTS) || (flags & flow_flags::DIRECT != 0 && !hook.has(Hook::FROM_CLIENT)) {
        return Step::Decided;
    }
    if opens { Step::Syn } else { request(tables, work, hook, entry) }
}

/// A packet of the client that opens nothing.
#[inline(always)]
fn request<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, entry: T::FlowRef) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let protocol = work.packet.key.protocol;
    let flow = &work.flow;
    let mut outcome = Outcome::DirectTranslated;
    if flow.backend != 0 {
        let mut keeps = false;
        let mut moves = false;
        if let Some(backend) = tables.backend(flow.backend) {
            keeps = is_of(&backend, flow) && state::keeps_flows(&backend, now.ds) && flow.state != flow_state::EVICTED;
            moves = state::udp_moves(&backend);
        }
        if protocol != UDP {
            if !keeps {
                return evicted(tables, work, entry, now);
            }
        } else if !keeps || moves {
            work.beginning = Outcome::Moved;
            return Step::Anew;
        } else if state::expired(flow, tables.timeout_s(protocol, flow.state), now.s) {
            return Step::Anew;
        }
        outcome = Outcome::Forwarded;
    }
    let state = state::after_forward(work.flow.state, protocol, work.packet.tcp_flags);
    work.rewrite(Action::ToBackend, outcome, hook.has(Hook::ROUTED));
    keep_books(tables, work, entry, now, state)
}

/// A packet of the backend that accepts nothing.
#[inline(always)]
fn reply<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, entry: T::FlowRef, route: bool) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let protocol = work.packet.key.protocol;
    let flow = &work.flow;
    if protocol == UDP && state::expired(flow, tables.timeout_s(protocol, flow.state), now.s) {
        // An answer to a direct datagram on these ports, of a client whose requests no hook can tell apart.
        return Step::Forget;
    }
    if flow.backend != 0 {
        let backend = tables.backend(flow.backend);
        let keeps = matches!(&backend, Some(backend) if is_of(backend, flow) && state::keeps_flows(backend, now.ds));
        if !keeps || flow.state == flow_state::EVICTED {
            return evicted(tables, work, entry, now);
        }
    }
    let state = state::after_reply(work.flow.state, protocol, work.packet.tcp_flags);
    work.rewrite(Action::ToClient, Outcome::Replied, route);
    keep_books(tables, work, entry, now, state)
}

/// Writes time and state into this direction's entry, at most once a second and flow, and when the state changes. The other one's
/// follow in [`books`].
#[inline(always)]
fn keep_books<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    entry: T::FlowRef,
    now: Now,
    state: u8,
) -> Step {
    let flow = &mut work.flow;
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    let own_direction = if is_reply { flow_flags::BACKEND_ENDED } else { flow_flags::CLIENT_ENDED };
    let ended = state::ends(work.packet.key.protocol, work.packet.tcp_flags, own_direction);
    let flags = (flow.flags & !flow_flags::REPLY_LOST) | ended;
    if state == flow.state && flow.seen_s == now.s && flags == flow.flags {
        return Step::Decided;
    }
    tables.touch(entry, flow.tag, now.s, state, state::counted_after(flags));
    // What was counted stands here until the books are kept.
    (flow.seen_s, flow.state, flow.flags) = (now.s, state, flags);
    Step::Books
}

/// Writes time and state of this direction, `work.flow`, into the entry of the other one, and writes that again if it is missing.
#[inline(always)]
pub(super) fn books<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let flags = state::counted_after(work.flow.flags);
    if flags != work.flow.flags {
        uncount(tables, &work.flow);
        work.flow.flags = flags;
    }
    let (flow, other) = (&work.flow, &mut work.other);
    if let Some(entry) = tables.flow(&work.pair_key, other) {
        let ours =
            leads_to(&work.pair_key, other, &work.packet.key) && (other.flags ^ flow.flags) & flow_flags::REPLY != 0;
        // States only grow: what one direction learnt, the other keeps.
        if ours && other.state <= flow.state {
            let flags = state::counted_after(other.flags | flow.flags & flow_flags::ENDED);
            tables.touch(entry, other.tag, flow.seen_s, flow.state, flags);
        }
        return;
    }
    let link = fast::other_link(tables, &work.flow, &work.packet.key.src, hook);
    if link != work.flow.link && link == 0 {
        // Its own link is not known here: neither direction keeps one.
        work.flow.link = 0;
        let _ = tables.insert_flow(&work.packet.key, &work.flow, true);
    }
    pair_of(&work.packet.key, &work.flow, &work.pair_key, link, &mut work.pair);
    // Lost again if the table is full: the next second tries once more.
    let _ = tables.insert_flow(&work.pair_key, &work.pair, false);
}

/// The flow's backend is gone: nothing is forwarded any more, and this side is told.
#[inline(always)]
fn evicted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, entry: T::FlowRef, now: Now) -> Step {
    // The entry stays as a tombstone until the other side is told too, or it times out.
    if work.flow.state != flow_state::EVICTED {
        tables.touch(entry, work.flow.tag, now.s, flow_state::EVICTED, work.flow.flags);
    }
    tell(work);
    Step::Decided
}

/// Tells this side that the flow's backend is gone.
#[inline(always)]
pub(super) fn tell<const N: usize>(work: &mut Work<N>) {
    let tell = work.packet.key.protocol != UDP && work.packet.tcp_flags & state::tcp_flag::RST == 0;
    work.settle(if tell { Action::Refuse } else { Action::Drop }, Outcome::Evicted);
    work.verdict.backend = work.flow.backend;
}
