//! A second handshake on the tuple of a client whose first connection goes on.
//!
//! A SYN with another initial sequence number may be a client's that has restarted, or anybody's. It ends nothing. The backend that has the tuple
//! answers it by a challenge ACK (RFC 5961, section 4), at which a client that has restarted sends a RST with numbers that fit. Where that does not
//! happen, a second handshake begins with a source port of its own, so that its answers and those of the first connection are distinguished. Only the
//! client's own segment, which acknowledges the answer, replaces the first connection.

use super::commit::{handshake as commit, second as entries};
use super::flow_tables::FlowTables;
use super::forward::{forward, forwarded, is_routed};
use super::handshake;
use super::lifetime::{Standing, expired};
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::Tables;
use super::verdict::Action;
use super::work::Work;
use crate::abi::{half_open_flags, second_key};
use crate::limits::SECOND_HANDSHAKE_S;
use crate::outcome::Outcome;
use crate::words;

/// A SYN with another initial sequence number than the connection or handshake in `work.connection`. `may_begin`: a second handshake may begin.
#[inline(always)]
pub(super) fn syn<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now: Now,
    may_begin: bool,
) -> Step {
    let is_known = read(tables, work, now) && Standing::of(tables, &work.stored.flow, now).keeps;
    let (stored, packet) = (&work.stored, &work.packet);
    let is_own = is_known && stored.flow.isn == packet.seq;
    let is_answered = stored.flags & half_open_flags::ANSWERED != 0;
    if is_own && (is_answered || stored.flow.seen_s == now.s) {
        take(work);
        forward(tables, work, hook, now);
        return Step::Decided;
    }
    // An answered one has its time. Until it is answered, the latest SYN has the place: that of the client itself is answered at once.
    let is_held = is_known && is_answered && now.s.wrapping_sub(stored.flow.seen_s) <= SECOND_HANDSHAKE_S;
    if is_own || (may_begin && !is_held) {
        work.beginning = Outcome::SecondHandshake;
        return Step::Select;
    }
    let flow = &work.connection.original.flow;
    work.verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
    Step::Decided
}

/// Any other segment of a client whose established connection, in `work.connection`, has a second handshake. [`Step::Draining`]: it is of the
/// established connection.
#[inline(always)]
pub(super) fn segment<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now: Now,
) -> Step {
    if !read(tables, work, now) {
        entries::mark(tables, work, 0);
    } else if work.packet.is_midway() && handshake::completes(tables, &work.packet, &work.stored, now) {
        return Step::MidStream;
    } else if resets(tables, work, hook) {
        return Step::Decided;
    }
    Step::Draining
}

/// Whether the client's segment completes a second handshake, whose original entry is in `work.stored` then.
#[inline(always)]
pub(super) fn completes<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    work.packet.is_midway() && read(tables, work, now) && handshake::completes(tables, &work.packet, &work.stored, now)
}

/// Whether the client's segment ends the second handshake: the client wants no connection of what was answered.
#[inline(always)]
pub(super) fn aborts<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now: Now,
) -> bool {
    work.packet.resets() && read(tables, work, now) && resets(tables, work, hook)
}

/// The client's first handshake is over: its second one, if there is one, takes its place. `true`: the packet is the SYN of that one, which is in
/// `work.connection` then.
#[inline(always)]
pub(super) fn follows<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    if !read(tables, work, now) || !Standing::of(tables, &work.stored.flow, now).keeps {
        return false;
    }
    entries::promote(tables, work);
    take(work);
    work.packet.opens() && work.packet.seq == work.connection.original.flow.isn
}

/// As [`aborts`], of the entry in `work.stored`.
#[inline(always)]
fn resets<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> bool {
    if !handshake::is_reset(&work.packet, &work.stored) {
        return false;
    }
    take(work);
    let flow = &work.connection.original.flow;
    work.verdict.translate(Action::ToBackend, flow, forwarded(flow), is_routed(flow, hook));
    commit::remove(tables, work);
    true
}

/// Reads the original entry of the second handshake to `work.stored`. `false`: there is none, or nobody remembers it.
#[inline(always)]
fn read<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let Work { packet, stored, stored_key, .. } = work;
    words::copy(&packet.key, stored_key);
    second_key(stored_key);
    let is_found = tables.half_open(stored_key, stored);
    stored_key.pad = [0; 3];
    is_found && !expired(tables, packet.key.protocol, &stored.flow, now)
}

/// Makes the second handshake, whose original entry was read, the packet's connection.
#[inline(always)]
fn take<const N: usize>(work: &mut Work<N>) {
    let Work { packet, connection, stored, .. } = work;
    connection.read_handshake(stored);
    connection.set_keys(&packet.key);
}
