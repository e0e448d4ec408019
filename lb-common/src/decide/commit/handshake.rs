//! Writes for handshakes.

use super::claim::{Claimed, claim};
use super::second;
use crate::abi::{Flow, HalfOpen, flow_flags, flow_state, half_open_flags, is_second};
use crate::decide::closing;
use crate::decide::connection::{Connection, Directions, leads_to, set_opposite};
use crate::decide::flow_tables::{Accepted, Established, FlowTables};
use crate::decide::lifetime::{is_over, uncount};
use crate::decide::maps::NotInserted;
use crate::decide::packet::Now;
use crate::decide::share;
use crate::decide::work::Work;
use crate::words;

/// The client asks again: notes it in both entries of the handshake, and writes the one that is missing.
#[inline(always)]
pub fn refresh<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Work { packet, connection: Connection { original_key, reply_key, original, reply, .. }, stored, .. } = work;
    let is_udp = packet.is_udp();
    let backend = original.flow.backend;
    // An answer that another CPU notes at this moment stays.
    if is_udp || !tables.ask_again(original_key, backend, original.segments, now.s) {
        let _ = tables.insert_half_open(original_key, original, is_udp);
    }
    // Another connection may hold the tuple since the entry was lost.
    let taken = tables.flow(reply_key, &mut stored.flow).is_some()
        || (tables.half_open(reply_key, stored) && !leads_to(reply_key, &stored.flow, original_key));
    if !taken && (is_udp || !tables.ask_again(reply_key, backend, 0, now.s)) {
        let _ = tables.insert_half_open(reply_key, reply, is_udp);
    }
}

/// Notes the answer of the backend in both entries of a handshake.
///
/// The programs have it as a function that is verified once and by itself ([`FlowTables::accept`]).
#[inline(always)]
pub fn accept<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now_s: u32) -> Accepted {
    let now = Now::from_ds(now_s.saturating_mul(10));
    let Connection { original_key, reply_key, original, reply, .. } = &mut work.connection;
    let (stored, number) = (&mut work.stored.flow, work.packet.seq);
    let key = &mut work.stored_key;
    let is_known = tables.half_open(original_key, original);
    // Several backends may answer: with the original entry lost, it is not known that there is but one.
    let mut needs_claim = reply.flags & half_open_flags::MOVES != 0;
    if is_known {
        let leads = leads_to(original_key, &original.flow, reply_key);
        let is_answered = original.flags & half_open_flags::ANSWERED != 0;
        let is_retried = original.moves != 0 && !is_answered && original.flow.isn == reply.flow.isn;
        if original.flags & half_open_flags::SECOND != 0 || !(leads || is_retried) {
            return Accepted::Late;
        }
        needs_claim = is_retried;
    } else if is_second(original_key) {
        words::copy(original_key, key);
        key.pad = [0; 3];
        // Else that is the first connection, which goes on.
        if tables.flow(key, stored).is_some() && stored.isn == reply.flow.isn {
            return if leads_to(key, stored, reply_key) { Accepted::Established } else { Accepted::Late };
        }
    } else if tables.flow(original_key, stored).is_some() {
        if leads_to(original_key, stored, reply_key) {
            return Accepted::Established;
        }
        if !is_over(tables, original_key.protocol, stored, now) {
            return Accepted::Late;
        }
        uncount(tables, original_key, stored);
        tables.remove_flow(original_key);
    }
    let first = reply.flags & half_open_flags::ANSWERED == 0;
    if first || (reply.answers[0] != number && reply.answers[1] != number) {
        reply.answers = [number, if first { number } else { reply.answers[0] }];
        reply.flags |= half_open_flags::ANSWERED;
        tables.mark_answered(reply_key, reply.flow.backend, reply.answers);
    }
    if !is_known {
        words::clear(original);
    } else if !needs_claim {
        if first {
            // Before the next look-up: see `claim::settle`.
            tables.fence();
        }
        // Else a retry moves it at this moment.
        if tables.mark_answered(original_key, reply.flow.backend, reply.answers) {
            return if first { Accepted::First } else { Accepted::Again };
        }
        needs_claim = true;
    }
    if !needs_claim {
        return Accepted::Missing;
    }
    match claim(tables, work, now) {
        Claimed::Won if is_known => Accepted::First,
        Claimed::Won | Claimed::Again => Accepted::Again,
        Claimed::Lost => Accepted::Late,
        Claimed::Full => Accepted::Full,
    }
}

/// Writes the original entry of an answered handshake, which is missing, with this link.
#[inline(always)]
pub fn restore_original<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, link: u32) {
    let Connection { original_key, reply_key, original, reply, .. } = &mut work.connection;
    words::clear(original);
    set_opposite(reply_key, &reply.flow, original_key, link, &mut original.flow);
    original.flags = half_open_flags::ANSWERED | reply.flags & half_open_flags::AFFINITY;
    original.answers = reply.answers;
    original.flow.second = reply.flow.second;
    // Lost if the table is full: the client asks once more.
    let _ = tables.insert_half_open(original_key, original, false);
}

/// Makes the handshake an established connection: both entries change tables. The entry of the packet's direction is as it is to be, but
/// for its time; `link` is that of the opposite direction.
///
/// Other CPUs may retry the connection, or establish it with another backend. The CPU that writes the original entry first decides. A second handshake
/// replaces what stands there.
///
/// The programs have it as a function that is verified once and by itself ([`FlowTables::establish`]).
#[inline(always)]
pub fn establish<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    link: u32,
    generation: u32,
    now_s: u32,
) -> Established {
    let now = Now::from_ds(now_s.saturating_mul(10));
    let Work { packet, connection, stored: HalfOpen { flow: stored, .. }, stored_key, .. } = work;
    let is_reply = connection.is_reply();
    let Directions { key, entry: HalfOpen { flow, .. }, opposite_key, opposite } = connection.directions();
    if link == 0 {
        flow.link = 0;
    }
    flow.seen_s = now.s;
    if generation != 0 {
        flow.flags |= flow_flags::COUNTED;
    }
    flow.second = 0;
    closing::begin(packet, flow);
    set_opposite(key, flow, opposite_key, link, &mut opposite.flow);
    // What the backend has acknowledged so far, or the client of its answer.
    opposite.flow.ack = if is_reply { flow.next } else { flow.isn.wrapping_add(1) };
    let mut is_new = true;
    if is_second(&connection.original_key) {
        match second::replace(tables, connection, stored, stored_key) {
            Some(replaced) => is_new = replaced,
            None => return Established::Full,
        }
    } else {
        match write(tables, connection, stored, now) {
            Written::New => {}
            Written::Again => is_new = false,
            Written::Late => return Established::Late,
            Written::Full => return Established::Full,
        }
    }
    let Connection { original_key, reply_key, original, .. } = connection;
    tables.remove_half_open(original_key);
    tables.remove_half_open(reply_key);
    tables.opened(now.s);
    if is_new {
        share::count(tables, original_key, &original.flow, 1);
    }
    if is_new && original.flow.flags & flow_flags::COUNTED != 0 {
        tables.count_connection(original.flow.backend, generation, 1);
    }
    Established::Yes
}

/// What became of the entries of a connection that is established.
enum Written {
    New,
    /// Another CPU has written them.
    Again,
    /// The tuple is another connection's by now.
    Late,
    Full,
}

/// Writes both entries, unless the client's tuple is another connection's.
#[inline(always)]
fn write<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    connection: &Connection<N>,
    stored: &mut Flow<N>,
    now: Now,
) -> Written {
    let Connection { original_key, reply_key, original, reply, .. } = connection;
    let mut written = Written::New;
    match tables.insert_flow(original_key, &original.flow, false) {
        Ok(()) => {}
        Err(NotInserted::Full) => return Written::Full,
        Err(NotInserted::Exists) => {
            if tables.flow(original_key, stored).is_some() {
                if leads_to(original_key, stored, reply_key) {
                    written = Written::Again;
                } else if is_over(tables, original_key.protocol, stored, now) {
                    uncount(tables, original_key, stored);
                } else {
                    return Written::Late;
                }
            }
            if tables.insert_flow(original_key, &original.flow, true).is_err() {
                return Written::Full;
            }
        }
    }
    if tables.insert_flow(reply_key, &reply.flow, true).is_err() { Written::Full } else { written }
}

/// Retains a connection here whose handshake is over, as no reply of it passes: notes its latest packet.
#[inline(always)]
pub fn retain<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Connection { original_key, original, .. } = &mut work.connection;
    original.flow.seen_s = now.s;
    let _ = tables.insert_half_open(original_key, original, true);
}

/// Removes what [`establish`] has written before it found the table full: half a connection would answer nobody.
#[inline(never)]
pub fn undo<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    tables.remove_flow(&work.connection.original_key);
}

/// The client's own segment is refused: marks the reply entry, so that the backend, which accepts the connection once more, is refused as well.
#[inline(never)]
pub fn refuse<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Connection { reply_key, original, .. } = &work.connection;
    tables.mark(reply_key, original.flow.backend, half_open_flags::LOST);
}

/// Notes in the original entry which backends have refused. Not noted if a retry writes the entry at this moment.
#[inline(always)]
pub fn suppress_refusal<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Connection { original_key, original, .. } = &mut work.connection;
    if work.packet.is_error {
        tables.mark(original_key, original.flow.backend, half_open_flags::EXCUSED);
    }
    tables.mark_refused(original_key, original.flow.backend, original.refused);
}

/// Notes that a backend has lost the connection: nothing of it reaches the client.
#[inline(always)]
pub fn lose<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Connection { reply_key, reply, .. } = &work.connection;
    tables.mark(reply_key, reply.flow.backend, half_open_flags::LOST);
}

/// Whether an established connection on the client's tuple is with another backend than the reply entry's.
#[inline(always)]
pub fn is_established_elsewhere<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { connection: Connection { original_key, reply_key, .. }, stored, .. } = work;
    tables.flow(original_key, &mut stored.flow).is_some() && !leads_to(original_key, &stored.flow, reply_key)
}

/// Removes the entries of a handshake that a backend has refused, and no other one can take.
#[inline(always)]
pub fn remove_refused<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    tables.remove_half_open(&work.connection.original_key);
    tables.remove_half_open(&work.connection.reply_key);
}

/// Removes both entries of a handshake. Of a connection that has ended, whose client begins another one, the reply entry stays: its tuple rests.
#[inline(never)]
pub fn remove<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection, stored, .. } = work;
    let Directions { key, opposite_key, .. } = connection.directions();
    if tables.half_open(opposite_key, stored)
        && leads_to(opposite_key, &stored.flow, key)
        && (stored.flow.state != flow_state::CLOSING || stored.flow.flags & flow_flags::REPLY == 0)
    {
        tables.remove_half_open(opposite_key);
    }
    tables.remove_half_open(key);
}
