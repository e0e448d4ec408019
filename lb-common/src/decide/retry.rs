//! SYN retry: another backend gets the SYN of a connection that nobody answers, or that its backend refused. The backends that were tried may
//! answer still: the first answer wins.

use super::client::{Client, serve_from};
use super::commit::{claim, handshake as commit};
use super::connection::{Connection, leads_to};
use super::flow_tables::FlowTables;
use super::frontend::{asked, frontend};
use super::outlier::{Worth, client_of};
use super::packet::{Hook, Now};
use super::search::{another, other_than};
use super::step::Step;
use super::tables::Tables;
use super::work::{Work, allocation};
use super::{forward, nat, outlier};
use crate::abi::{HalfOpen, MOST_MOVES, REFUSED_BY_LATEST, flow_flags, half_open_flags, service_flags};
use crate::outcome::Outcome;

/// SYNs that a backend is sent before a connection under client affinity leaves it.
const SEGMENTS_UNDER_AFFINITY: u8 = 3;

/// The step for a connection that nobody answers, or that its backend refused.
#[inline(always)]
pub fn retry<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let now = Now::from_ns(tables.now_ns());
    if work.connection.is_reply() {
        refused(tables, work, now);
    } else if !claim::heal(tables, work, now)
        && may_leave(tables, work, now)
        && (another(tables, work, false, now) || tried_before(tables, work, now))
    {
        return leave(tables, work, hook, now);
    } else {
        forward::forward(tables, work, hook, now);
    }
    Step::Decided
}

/// Whether the service lets the client's connection go to another backend now.
#[inline(always)]
fn may_leave<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    if !retries(tables, work) {
        return false;
    }
    let original = &work.connection.original;
    if work.pick.service.affinity_timeout_s == 0
        || original.moves != 0
        || original.segments >= SEGMENTS_UNDER_AFFINITY
        || original.refused & REFUSED_BY_LATEST != 0
    {
        return true;
    }
    let Some(backend) = tables.backend(original.flow.backend) else { return true };
    let client = client_of(&work.connection.original_key, &work.pick.service);
    let client = (client, work.packet.key.protocol);
    outlier::is_avoided(tables, original.flow.backend, backend.generation, client, now.s)
}

/// Whether the connection's service is there, whole, and retries. It stands in `work.pick` then, with the set that serves the client.
#[inline(always)]
fn retries<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { pick, connection, .. } = work;
    let is_external = connection.original.flow.flags & flow_flags::EXTERNAL != 0;
    let client = if is_external { Client::Outside } else { Client::Near };
    pick.client = client as u32;
    let service = &mut pick.service;
    if !frontend(tables, &asked(&connection.original_key), service) {
        return false;
    }
    serve_from(service, client);
    service.slot_count != 0 && service.flags & service_flags::NO_RETRY == 0
}

/// All were tried: whether one of them is worth another SYN, as the network may have lost the one before. Not one that has refused, and
/// none that is worth less than the latest.
#[inline(always)]
fn tried_before<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let original = &work.connection.original;
    let (latest, protocol) = (original.flow.backend, work.packet.key.protocol);
    let [first, second, third] = original.tried;
    let refused = |place: u8, id: u32| if original.refused & 1 << place != 0 { id } else { 0 };
    let avoid = [refused(0, first), refused(1, second), refused(2, third), latest];
    let latest_refused = original.refused & REFUSED_BY_LATEST != 0;
    if !other_than(tables, work, avoid, false, now) {
        return false;
    }
    let Some(backend) = tables.backend(latest) else { return true };
    let client = client_of(&work.connection.original_key, &work.pick.service);
    let worth = outlier::worth(tables, (latest, backend.generation, backend.flags), (client, protocol), now.s);
    let rank = if worth == Worth::ToProbe { Worth::Shunned } else { worth } as u32 + 1;
    latest_refused || work.pick.search.best >= rank
}

/// The backend has refused: the refusal is suppressed while another backend may take the connection.
#[inline(always)]
fn refused<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Connection { original_key, reply_key, original, reply, .. } = &mut work.connection;
    let backend = reply.flow.backend;
    let is_known = tables.half_open(original_key, original);
    let leads = is_known && leads_to(original_key, &original.flow, reply_key);
    let is_answered = original.flags & (half_open_flags::ANSWERED | half_open_flags::SECOND) != 0;
    let is_retried = is_known && original.moves != 0 && original.flow.isn == reply.flow.isn;
    if (is_known && !leads && (is_answered || !is_retried))
        || (!is_known && commit::is_established_elsewhere(tables, work))
    {
        commit::lose(tables, work);
        return work.verdict.late(&work.packet, backend);
    }
    if !is_known {
        return commit::remove(tables, work);
    }
    if is_answered {
        return;
    }
    let Connection { original, .. } = &mut work.connection;
    original.refused |= if leads { REFUSED_BY_LATEST } else { place(original, backend) };
    // Each backend that was tried has its bit.
    let asked = REFUSED_BY_LATEST | ((1 << (original.moves & 3)) - 1);
    let is_last = original.refused & asked == asked;
    let moves = original.flags & half_open_flags::MOVES != 0;
    let is_new_left = (original.moves as usize) < MOST_MOVES;
    if moves && retries(tables, work) && (!is_last || (is_new_left && another(tables, work, true, now))) {
        commit::suppress_refusal(tables, work);
        work.verdict.service = work.pick.service.id;
        return work.verdict.drop(Outcome::SuppressedRefusal);
    }
    commit::remove_refused(tables, work);
}

/// The bit of a backend that was tried; 0: it is not remembered.
#[inline(always)]
const fn place<const N: usize>(original: &HalfOpen<N>, backend: u32) -> u8 {
    let [first, second, third] = original.tried;
    ((first == backend) as u8) | ((second == backend) as u8) << 1 | ((third == backend) as u8) << 2
}

/// To the backend in `work.pick`.
#[inline(always)]
fn leave<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let original = &mut work.connection.original;
    remember(original, work.pick.slot.backend);
    original.segments = 1;
    original.flow.seen_s = now.s;
    nat::aim(work, hook);
    work.verdict.service = work.pick.service.id;
    work.allocation = allocation::RETRY | allocation::KEEP_PORT;
    if nat::source(tables, work) {
        return Step::Allocate;
    }
    work.verdict.drop(Outcome::DroppedNoAddress);
    Step::Decided
}

/// Puts the latest backend among those that were tried: where the next one was, if it was tried before, or behind them. The first of
/// them is forgotten if there is no room.
#[inline(always)]
fn remember<const N: usize>(original: &mut HalfOpen<N>, next: u32) {
    let (latest, bits) = (original.flow.backend, original.refused);
    let [first, second, third] = original.tried;
    let mut bit = place(original, next);
    let mut refused = bits & !REFUSED_BY_LATEST & !bit;
    if bit == 0 && original.moves as usize >= MOST_MOVES {
        (original.tried, refused, bit) = ([second, third, latest], refused >> 1, 1 << 2);
    } else {
        if bit == 0 {
            bit = 1 << original.moves;
            original.moves += 1;
        }
        original.tried = [
            if bit == 1 { latest } else { first },
            if bit == 1 << 1 { latest } else { second },
            if bit == 1 << 2 { latest } else { third },
        ];
    }
    original.refused = refused | if bits & REFUSED_BY_LATEST != 0 { bit } else { 0 };
}
