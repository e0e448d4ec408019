//! Packets of a known flow: to its backend, back to its client, or told that the backend is gone.

use super::{Action, Hook, Now, Packet, Tables, Verdict, pair_key};
use crate::abi::{Backend, Flow, TCP, backend_flags, flow_flags, flow_state, tag};
use crate::outcome::Outcome;
use crate::state;

/// What a known flow's packet came to.
pub(super) enum Known<const N: usize> {
    Decided(Verdict<N>),
    /// The flow is over: forget it and select anew, counted as this.
    Anew(Outcome),
}

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    entry: T::FlowRef,
    flow: &Flow<N>,
    now: Now,
) -> Known<N> {
    if flow.flags & flow_flags::REPLY != 0 {
        let early = hook.has(Hook::EARLY_REPLIES) && flow.flags & flow_flags::EARLY != 0;
        return Known::Decided(if early || hook.has(Hook::REPLIES) {
            reply(tables, packet, entry, flow, now, early)
        } else {
            Verdict::pass()
        });
    }
    // A translated packet looks like the direct one of the same tuple: only the client's own link can tell them apart.
    if !hook.has(Hook::REQUESTS) || (flow.flags & flow_flags::DIRECT != 0 && !hook.has(Hook::FROM_CLIENT)) {
        return Known::Decided(Verdict::pass());
    }
    match standing(tables, packet, hook, flow, now) {
        Standing::Stays(outcome) => Known::Decided(passed_on(tables, packet, hook, entry, flow, now, outcome)),
        Standing::Over(outcome) => Known::Anew(outcome),
        Standing::Gone => Known::Decided(evicted(tables, packet, entry, flow, now)),
        Standing::Elsewhere => Known::Decided(Verdict::bare(Action::Pass, Outcome::HandedToTc)),
    }
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
fn standing<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    flow: &Flow<N>,
    now: Now,
) -> Standing {
    let protocol = packet.key.protocol;
    let over = state::expired(flow, protocol, now.s) || flow.state == flow_state::CLOSING;
    let opens = protocol == TCP && state::opens(packet.tcp_flags);
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

/// Sends a client's packet on and keeps the flow's books.
#[inline(always)]
fn passed_on<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    entry: T::FlowRef,
    flow: &Flow<N>,
    now: Now,
    outcome: Outcome,
) -> Verdict<N> {
    let protocol = packet.key.protocol;
    let state = state::after_forward(flow.state, protocol, packet.tcp_flags);
    if state != flow.state || flow.seen_s != now.s || flow.flags & flow_flags::REPLY_LOST != 0 {
        tables.touch(entry, flow.tag, now.s, state, flow.flags & !flow_flags::REPLY_LOST);
        mend(tables, packet, flow, now, state);
    }
    Verdict {
        action: Action::ToBackend,
        outcome,
        route: hook.has(Hook::ROUTED),
        address: flow.address,
        port: flow.port,
        client_port: flow.client_port,
        service: 0,
        backend: flow.backend,
    }
}

/// A packet of the backend.
#[inline(always)]
fn reply<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    entry: T::FlowRef,
    flow: &Flow<N>,
    now: Now,
    early: bool,
) -> Verdict<N> {
    let protocol = packet.key.protocol;
    if flow.backend != 0 {
        let backend = tables.backend(flow.backend);
        if !matches!(&backend, Some(backend) if is_of(backend, flow) && state::keeps_flows(backend, now.ds)) {
            return evicted(tables, packet, entry, flow, now);
        }
    }
    let state = state::after_reply(flow.state, protocol, packet.tcp_flags);
    if state != flow.state || flow.seen_s != now.s {
        tables.touch(entry, flow.tag, now.s, state, flow.flags);
        mend(tables, packet, flow, now, state);
    }
    Verdict {
        action: Action::ToClient,
        outcome: Outcome::Replied,
        route: early,
        address: flow.address,
        port: flow.port,
        client_port: flow.client_port,
        service: 0,
        backend: flow.backend,
    }
}

/// Brings the other direction's entry up to date, and writes it again if it is missing. At most once a second and flow,
/// and when the state changes.
#[inline(always)]
fn mend<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>, flow: &Flow<N>, now: Now, state: u8) {
    let pair = pair_key(&packet.key, flow);
    if let Some((entry, other)) = tables.flow(&pair) {
        let ours = pair_key(&pair, &other) == packet.key && (other.flags ^ flow.flags) & flow_flags::REPLY != 0;
        // States only grow: what one direction learnt, the other keeps.
        if ours && other.state <= state {
            tables.touch(entry, other.tag, now.s, state, other.flags);
        }
        return;
    }
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    let (address, port, client_port) = if is_reply {
        (packet.key.src, packet.key.src_port, packet.key.dst_port)
    } else {
        (packet.key.dst, packet.key.dst_port, packet.key.src_port)
    };
    let other = Flow {
        tag: tag(&pair),
        backend: flow.backend,
        seen_s: now.s,
        address,
        port,
        client_port,
        generation: flow.generation,
        state,
        flags: (flow.flags & !flow_flags::REPLY_LOST) ^ flow_flags::REPLY,
    };
    // Lost again if the table is full: the next second tries once more.
    let _ = tables.insert_flow(&pair, &other, false);
}

/// The flow's backend is gone: nothing is forwarded any more, and this side is told.
#[inline(always)]
fn evicted<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    entry: T::FlowRef,
    flow: &Flow<N>,
    now: Now,
) -> Verdict<N> {
    // The entry stays as a tombstone until the other side is told too, or it times out.
    if flow.state != flow_state::EVICTED {
        tables.touch(entry, flow.tag, now.s, flow_state::EVICTED, flow.flags);
    }
    let tell = packet.key.protocol == TCP && packet.tcp_flags & state::tcp_flag::RST == 0;
    let action = if tell { Action::Refuse } else { Action::Drop };
    Verdict { backend: flow.backend, ..Verdict::bare(action, Outcome::Evicted) }
}

/// Whether the record under the flow's backend id still is the backend that the flow was made for.
#[inline(always)]
fn is_of<const N: usize>(backend: &Backend<N>, flow: &Flow<N>) -> bool {
    backend.generation as u16 == flow.generation
}
