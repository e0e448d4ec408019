//! SYN retry: another backend takes a connection that nobody answers, or that its backend refused.

use super::commit::handshake as commit;
use super::connection::{Connection, leads_to};
use super::frontend::{asked, frontend};
use super::packet::{Hook, Now};
use super::search::another;
use super::step::Step;
use super::tables::{FlowTables, Tables};
use super::work::{Work, allocation};
use super::{nat, open, outlier};
use crate::abi::{MOST_MOVES, half_open_flags, service_flags};
use crate::outcome::Outcome;

/// SYNs that a backend is sent before a connection under client affinity leaves it.
const SEGMENTS_UNDER_AFFINITY: u8 = 3;

/// The step for a connection that nobody answers, or that its backend refused.
#[inline(always)]
pub fn retry<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let now = Now::from_ns(tables.now_ns());
    if work.connection.is_reply() {
        refused(tables, work, now);
    } else if may_leave(tables, work) && another(tables, work, false, now) {
        leave(work, hook, now);
        return Step::Allocate;
    } else {
        open::forward(tables, work, hook, now);
    }
    Step::Decided
}

/// Whether the service lets the client's connection go to another backend now.
#[inline(always)]
fn may_leave<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if !retries(tables, work) {
        return false;
    }
    let original = &work.connection.original;
    if work.pick.service.affinity_timeout_s == 0
        || original.moves != 0
        || original.segments >= SEGMENTS_UNDER_AFFINITY
        || original.flags & half_open_flags::REFUSED != 0
    {
        return true;
    }
    let Some(backend) = tables.backend(original.flow.backend) else { return true };
    outlier::is_suspect(tables, original.flow.backend, backend.generation)
}

/// Whether the connection's service is there, whole, and retries. It stands in `work.pick` then.
#[inline(always)]
fn retries<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let service = &mut work.pick.service;
    frontend(tables, &asked(&work.connection.original_key), service)
        && service.slot_count != 0
        && service.flags & service_flags::NO_RETRY == 0
}

/// The backend has refused: the refusal is suppressed while another backend may take the connection.
#[inline(always)]
fn refused<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Connection { original_key, reply_key, original, .. } = &mut work.connection;
    let moves = tables.half_open(original_key, original)
        && leads_to(original_key, &original.flow, reply_key)
        && original.flags & half_open_flags::MOVES != 0
        && (original.moves as usize) < MOST_MOVES;
    if moves && retries(tables, work) && another(tables, work, true, now) && commit::suppress_refusal(tables, work) {
        work.verdict.service = work.pick.service.id;
        return work.verdict.drop(Outcome::WithheldRefusal);
    }
    commit::remove(tables, work);
}

/// To the backend in `work.pick`.
#[inline(always)]
fn leave<const N: usize>(work: &mut Work<N>, hook: Hook, now: Now) {
    let original = &mut work.connection.original;
    match original.moves {
        0 => original.tried[0] = original.flow.backend,
        1 => original.tried[1] = original.flow.backend,
        _ => original.tried[2] = original.flow.backend,
    }
    original.moves = original.moves.saturating_add(1);
    original.segments = 1;
    original.flags &= !half_open_flags::REFUSED;
    original.flow.seen_s = now.s;
    nat::aim(work, hook);
    work.verdict.service = work.pick.service.id;
    work.allocation = allocation::RETRY | allocation::KEEP_PORT;
}
