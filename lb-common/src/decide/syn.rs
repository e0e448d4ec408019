//! A SYN of a client on the tuple of an answered flow, and what answers one: a duplicate, or another connection on the same ports.
//!
//! `work.flow` is the entry found under the packet's tuple, `work.pair_key` the key of the other direction.

use super::entries::{forget, kept_by, leads_to};
use super::{Action, Hook, Now, Step, Tables, Work, fast, health, known};
use crate::abi::{flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;
use crate::{state, words};

/// With this SYN of another connection, which the backend has not accepted, the flow is given up.
const LAST_SEGMENT: u8 = 3;

#[inline(always)]
pub(super) fn syn<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    if work.flow.flags & flow_flags::REPLY != 0 {
        accepted(tables, work, hook, now)
    } else {
        asked(tables, work, hook, now)
    }
}

/// The client's SYN.
#[inline(always)]
fn asked<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let flow = &work.flow;
    let timeout_s = tables.timeout_s(work.packet.key.protocol, flow.state);
    let other = flow.isn != work.packet.seq;
    let over = state::expired(flow, timeout_s, now.s) || flow.state == flow_state::EVICTED;
    if over || (other && flow.state == flow_state::CLOSING) {
        return Step::Anew;
    }
    let direct = flow.backend == 0;
    if !direct {
        let Some(generation) = kept_by(tables, &work.flow, now) else { return Step::Anew };
        if other && health::is_suspect(tables, work.flow.backend, generation) {
            return Step::Anew;
        }
    }
    if other && !second(tables, work, now) {
        return Step::Anew;
    }
    let outcome = if direct { Outcome::DirectTranslated } else { Outcome::Forwarded };
    work.rewrite(Action::ToBackend, outcome, hook.has(Hook::ROUTED));
    Step::Decided
}

/// Remembers a SYN of another connection on the flow's tuple. `false`: it was asked for often enough.
#[inline(always)]
fn second<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let asked_before = tables.half_open(&work.packet.key, &mut work.half)
        && work.half.flags & half_open_flags::SECOND != 0
        && work.half.flow.isn == work.packet.seq;
    if asked_before {
        work.half.segments = work.half.segments.saturating_add(1);
        if work.half.segments >= LAST_SEGMENT {
            tables.remove_half_open(&work.packet.key);
            return false;
        }
    } else {
        words::clear(&mut work.half);
        words::copy(&work.flow, &mut work.half.flow);
        work.half.flow.isn = work.packet.seq;
        work.half.flow.state = flow_state::HALF_OPEN;
        work.half.flow.since_s = now.s;
        work.half.segments = 1;
        work.half.flags = half_open_flags::SECOND;
    }
    work.half.flow.seen_s = now.s;
    // Not remembered, it is the first one again next time.
    let _ = tables.insert_half_open(&work.packet.key, &work.half, true);
    true
}

/// The backend accepts a connection on the tuple: the flow's, once more, or another one.
#[inline(always)]
fn accepted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let Some(route) = fast::replies(tables, work, hook) else { return Step::Decided };
    let timeout_s = tables.timeout_s(work.packet.key.protocol, work.flow.state);
    if state::yields(&work.flow, timeout_s, now.s) {
        // It answers a direct connection on these ports, of a client whose requests no hook can tell apart: a service flow that
        // begins anew would have written its entries anew.
        forget(tables, work);
        return Step::Decided;
    }
    let mut generation = 0;
    if work.flow.backend != 0 {
        let Some(kept) = kept_by(tables, &work.flow, now) else {
            known::tell(work);
            return Step::Decided;
        };
        generation = kept;
    }
    work.rewrite(Action::ToClient, Outcome::Replied, route);
    let takes_over = tables.half_open(&work.pair_key, &mut work.pair_half)
        && work.pair_half.flags & half_open_flags::SECOND != 0
        && work.pair_half.flow.isn.wrapping_add(1) == work.packet.ack
        && leads_to(&work.pair_key, &work.pair_half.flow, &work.packet.key);
    if takes_over {
        take_over(tables, work, generation, now);
    }
    Step::Decided
}

/// The flow is the other connection's from now on: its backend has accepted it in the old one's place.
#[inline(always)]
fn take_over<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, generation: u32, now: Now) {
    let flow = &mut work.flow;
    flow.isn = work.pair_half.flow.isn;
    flow.since_s = now.s;
    flow.seen_s = now.s;
    flow.state = flow_state::OPEN;
    flow.flags &= !flow_flags::ENDED;
    // The SYN was remembered with the flow's own link.
    let link = work.pair_half.flow.link;
    super::entries::pair_of(&work.packet.key, &work.flow, &work.pair_key, link, &mut work.pair);
    // Both exist: they are written over. What fails is healed by the next packets.
    let _ = tables.insert_flow(&work.pair_key, &work.pair, true);
    let _ = tables.insert_flow(&work.packet.key, &work.flow, true);
    tables.remove_half_open(&work.pair_key);
    if generation != 0 {
        health::answered(tables, work.flow.backend, generation, now);
    }
}
