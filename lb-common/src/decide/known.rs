//! Packets of a known flow: to its backend, back to its client, or told that the backend is gone.
//!
//! `work.flow` is the entry found under the packet's tuple, `work.pair_key` the key of the other direction.

use super::{Action, Hook, Now, Step, Tables, Work, pair_key};
use crate::abi::{Backend, Flow, TCP, backend_flags, flow_flags, flow_state, tag};
use crate::outcome::Outcome;
use crate::state;

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    entry: T::FlowRef,
) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let flags = work.flow.flags;
    if flags & flow_flags::REPLY != 0 {
        let early = hook.has(Hook::EARLY_REPLIES) && flags & flow_flags::EARLY != 0;
        if early || hook.has(Hook::REPLIES) {
            if is_left_over(tables, work, now) {
                return Step::Forget;
            }
            return reply(tables, work, entry, now, early);
        }
        return Step::Decided;
    }
    // A translated packet looks like the direct one of the same tuple: only the client's own link can tell them apart.
    if !hook.has(Hook::REQUESTS) || (flags & flow_flags::DIRECT != 0 && !hook.has(Hook::FROM_CLIENT)) {
        return Step::Decided;
    }
    match standing(tables, work, hook, now) {
        Standing::Stays(outcome) => {
            let state = state::after_forward(work.flow.state, work.packet.key.protocol, work.packet.tcp_flags);
            work.rewrite(Action::ToBackend, outcome, hook.has(Hook::ROUTED));
            return keep_books(tables, work, entry, now, state);
        }
        Standing::Over(outcome) => {
            work.beginning = outcome;
            return Step::Anew;
        }
        Standing::Gone => evicted(tables, work, entry, now),
        Standing::Elsewhere => work.settle(Action::Pass, Outcome::HandedToTc),
    }
    Step::Decided
}

/// How a flow stands when its client's packet arrives.
enum Standing {
    Stays(Outcome),
    /// Finished, expired, or free to move.
    Over(Outcome),
    /// Its backend is gone, and the protocol has no way to move.
    Gone,
    /// Its backend is not on this node, and the hook serves only those.
    Elsewhere,
}

#[inline(always)]
fn standing<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook, now: Now) -> Standing {
    let flow = &work.flow;
    let protocol = work.packet.key.protocol;
    let timeout_s = tables.timeout_s(protocol, flow.state);
    let over = state::expired(flow, timeout_s, now.s) || flow.state == flow_state::CLOSING;
    let opens = protocol == TCP && state::opens(work.packet.tcp_flags);
    if flow.backend == 0 {
        return if opens && over {
            Standing::Over(Outcome::Selected)
        } else {
            Standing::Stays(Outcome::DirectTranslated)
        };
    }
    let Some(backend) = tables.backend(flow.backend) else { return Standing::Over(Outcome::Moved) };
    let keeps = is_of(&backend, flow) && state::keeps_flows(&backend, now.ds);
    if protocol == TCP {
        if opens && (over || !keeps || flow.state == flow_state::EVICTED) {
            return Standing::Over(Outcome::Selected);
        }
        if !keeps {
            return Standing::Gone;
        }
    } else if !keeps || state::udp_moves(&backend) {
        return Standing::Over(Outcome::Moved);
    } else if over {
        return Standing::Over(Outcome::Selected);
    }
    if hook.has(Hook::LOCAL_ONLY) && backend.flags & backend_flags::LOCAL == 0 {
        return Standing::Elsewhere;
    }
    Standing::Stays(Outcome::Forwarded)
}

/// Whether this answer belongs to a direct connection on the ports of a service flow that is over, of a client whose requests no
/// hook can tell apart: a service flow that begins anew would have written its entries anew.
#[inline(always)]
fn is_left_over<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, now: Now) -> bool {
    let protocol = work.packet.key.protocol;
    (protocol != TCP || state::accepts(work.packet.tcp_flags))
        && state::yields(&work.flow, tables.timeout_s(protocol, work.flow.state), now.s)
}

/// A packet of the backend.
#[inline(always)]
fn reply<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    entry: T::FlowRef,
    now: Now,
    early: bool,
) -> Step {
    if work.flow.backend != 0 {
        let backend = tables.backend(work.flow.backend);
        if !matches!(&backend, Some(backend) if is_of(backend, &work.flow) && state::keeps_flows(backend, now.ds)) {
            evicted(tables, work, entry, now);
            return Step::Decided;
        }
    }
    let state = state::after_reply(work.flow.state, work.packet.key.protocol, work.packet.tcp_flags);
    work.rewrite(Action::ToClient, Outcome::Replied, early);
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
    tables.touch(entry, flow.tag, now.s, state, flags);
    (flow.seen_s, flow.state, flow.flags) = (now.s, state, flags);
    Step::Books
}

/// Writes time and state of this direction, `work.flow`, into the entry of the other one, and writes that again if it is missing.
#[inline(always)]
pub(super) fn books<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    let (flow, other) = (&work.flow, &mut work.other);
    if let Some(entry) = tables.flow(&work.pair_key, other) {
        let ours =
            pair_key(&work.pair_key, other) == work.packet.key && (other.flags ^ flow.flags) & flow_flags::REPLY != 0;
        // States only grow: what one direction learnt, the other keeps.
        if ours && other.state <= flow.state {
            let flags = other.flags | flow.flags & flow_flags::ENDED;
            tables.touch(entry, other.tag, flow.seen_s, flow.state, flags);
        }
        return;
    }
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    let key = &work.packet.key;
    let pair = &mut work.pair;
    *pair = *flow;
    pair.tag = tag(&work.pair_key);
    pair.address = if is_reply { key.src } else { key.dst };
    pair.port = if is_reply { key.src_port } else { key.dst_port };
    pair.client_port = if is_reply { key.dst_port } else { key.src_port };
    pair.flags = flow.flags ^ flow_flags::REPLY;
    // Lost again if the table is full: the next second tries once more.
    let _ = tables.insert_flow(&work.pair_key, &work.pair, false);
}

/// The flow's backend is gone: nothing is forwarded any more, and this side is told.
#[inline(always)]
fn evicted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, entry: T::FlowRef, now: Now) {
    // The entry stays as a tombstone until the other side is told too, or it times out.
    if work.flow.state != flow_state::EVICTED {
        tables.touch(entry, work.flow.tag, now.s, flow_state::EVICTED, work.flow.flags);
    }
    let tell = work.packet.key.protocol == TCP && work.packet.tcp_flags & state::tcp_flag::RST == 0;
    work.settle(if tell { Action::Refuse } else { Action::Drop }, Outcome::Evicted);
    work.verdict.backend = work.flow.backend;
}

/// Whether the record under the flow's backend id still is the backend that the flow was made for.
#[inline(always)]
pub(super) fn is_of<const N: usize>(backend: &Backend<N>, flow: &Flow<N>) -> bool {
    backend.generation as u16 == flow.generation
}
