//! A connection that nobody answers, or that its backend refused, and another backend for it.
//!
//! By the client's SYN `work.half` is its entry; by the backend's refusal it is the reply entry, and the client's is looked up.

use super::entries::{forget_half, leads_to};
use super::place::{aim, answer_half, placing};
use super::search::another;
use super::select::frontend;
use super::{Action, Hook, Now, Step, Tables, Work, health, opening};
use crate::abi::{MOST_MOVES, ServiceKey, flow_flags, half_open_flags, service_flags};
use crate::outcome::Outcome;
use crate::words;

/// SYNs that a backend is sent before a flow under client affinity leaves it.
const SEGMENTS_UNDER_AFFINITY: u8 = 3;

#[inline(always)]
pub(super) fn retry<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    if work.flow.flags & flow_flags::REPLY != 0 {
        refused(tables, work, now);
    } else if may_leave(tables, work) && another(tables, work, false, now) {
        leave(work, hook, now);
        return Step::Place;
    } else {
        opening::stay(tables, work, hook, now);
    }
    Step::Decided
}

/// Whether the service lets the client's flow go to another backend now.
#[inline(always)]
fn may_leave<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    words::copy(&work.packet.key, &mut work.owner);
    if !retries(tables, work) {
        return false;
    }
    let half = &work.half;
    if work.pick.service.affinity_timeout_s == 0
        || half.moves != 0
        || half.segments >= SEGMENTS_UNDER_AFFINITY
        || half.flags & half_open_flags::REFUSED != 0
    {
        return true;
    }
    let Some(backend) = tables.backend(half.flow.backend) else { return true };
    health::is_suspect(tables, half.flow.backend, backend.generation)
}

/// Whether the service of the client's tuple `work.owner` is there, whole, and lets connections move. It stands in `work.pick` then.
#[inline(always)]
fn retries<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let key = &work.owner;
    let asked = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    frontend(tables, &asked, &mut work.pick.service) && work.pick.service.flags & service_flags::NO_RETRY == 0
}

/// The backend has refused: the client is not told while another one may take the connection.
#[inline(always)]
fn refused<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    words::copy(&work.pair_key, &mut work.owner);
    let found = tables.half_open(&work.owner, &mut work.pair_half)
        && leads_to(&work.owner, &work.pair_half.flow, &work.packet.key);
    let half = &work.pair_half;
    let moves = found && half.flags & half_open_flags::MOVES != 0 && (half.moves as usize) < MOST_MOVES;
    if moves && retries(tables, work) {
        // The search looks at the client's entry.
        words::copy(&work.pair_half, &mut work.half);
        if another(tables, work, true, now) {
            work.pair_half.flags |= half_open_flags::REFUSED;
            if tables.insert_half_open(&work.owner, &work.pair_half, true).is_ok() {
                work.verdict.service = work.pick.service.id;
                return work.settle(Action::Drop, Outcome::WithheldRefusal);
            }
        }
    }
    forget_half(tables, work);
}

/// To the backend in `work.pick`. The answers' entry of the one before stays, so that a late answer is known as one.
#[inline(always)]
fn leave<const N: usize>(work: &mut Work<N>, hook: Hook, now: Now) {
    answer_half(work, 0);
    words::copy(&work.pair_key, &mut work.left_key);
    words::copy(&work.pair_half, &mut work.left);
    work.left.flags = half_open_flags::LEFT;
    let half = &mut work.half;
    match half.moves {
        0 => half.tried[0] = half.flow.backend,
        1 => half.tried[1] = half.flow.backend,
        _ => half.tried[2] = half.flow.backend,
    }
    half.moves = half.moves.saturating_add(1);
    half.segments = 1;
    half.flags &= !half_open_flags::REFUSED;
    half.flow.seen_s = now.s;
    aim(work, hook);
    work.verdict.service = work.pick.service.id;
    work.placing = placing::MOVED | placing::KEEP_PORT;
}
