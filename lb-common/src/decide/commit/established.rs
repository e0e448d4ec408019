//! Writes for established connections.

use crate::abi::{Flow, HalfOpen, MOST_MOVES, flow_flags, flow_state, half_open_flags};
use crate::decide::closing::{self, End, Numbers};
use crate::decide::connection::{Connection, Directions, leads_to, set_opposite};
use crate::decide::fast_path;
use crate::decide::flow_tables::{FlowTables, Keeping};
use crate::decide::lifetime::uncount;
use crate::decide::maps::FlowRef;
use crate::decide::packet::{Now, Packet};
use crate::decide::work::Work;
use crate::words;

/// Notes a packet in the entry of its direction: its numbers, and at most once a second its time. `true`: [`keep_entries`] is next.
#[inline(always)]
pub fn seen<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    entry: FlowRef<T, N>,
    packet: &Packet<N>,
    flow: &mut Flow<N>,
    now: Now,
    state: u8,
) -> bool {
    if let Some(Numbers { next, ack }) = closing::numbers(packet, flow) {
        tables.set_numbers(entry, flow.tag, next, ack);
        (flow.next, flow.ack) = (next, ack);
    }
    let flags = flow.flags & !flow_flags::REPLY_LOST;
    let is_new = state != flow.state || flow.seen_s != now.s || flags != flow.flags;
    if is_new {
        tables.touch(entry, flow.tag, now.s, state, flags);
        (flow.seen_s, flow.state, flow.flags) = (now.s, state, flags);
    }
    is_new || closing::may_end(packet, flow)
}

/// Marks the entry as evicted. It stays until the other side knows as well, or it expires.
#[inline(always)]
pub fn evict<const N: usize, T: FlowTables<N>>(tables: &mut T, entry: FlowRef<T, N>, flow: &Flow<N>, now: Now) {
    if flow.state != flow_state::EVICTED {
        tables.touch(entry, flow.tag, now.s, flow_state::EVICTED, flow.flags);
    }
}

/// Keeps both entries of an established connection alike, or removes them.
#[inline(always)]
pub fn keep_entries<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, keeping: Keeping) {
    work.connection.set_keys(&work.packet.key);
    if keeping == Keeping::Over {
        return remove(tables, work);
    }
    if keeping == Keeping::OffFastPath {
        leave_fast_path(tables, work);
    }
    if !sync(tables, work) {
        let link = fast_path::opposite_link(&work.connection.entry().flow);
        restore(tables, work, link);
    }
}

/// Neither entry has a link any more.
#[inline(always)]
fn leave_fast_path<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection, stored, verdict, .. } = &mut *work;
    let Directions { key, entry, opposite_key, .. } = connection.directions();
    entry.flow.link = 0;
    // A reply is translated where it would skip the client's link: this last one goes there.
    if entry.flow.flags & flow_flags::REPLY == 0 {
        verdict.link = 0;
    }
    for key in [key, opposite_key] {
        // Of another connection that has the tuple by now it costs nothing but time.
        if let Some(entry) = tables.flow(key, &mut stored.flow) {
            tables.change_flow(entry, stored.flow.tag, |flow| flow.link = 0);
        }
    }
}

/// Writes time and state of the packet's direction into the opposite entry, and ends the connection if the packet does. `false`: the opposite
/// entry is missing, and [`restore`] is next.
#[inline(always)]
fn sync<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { packet, connection, stored, .. } = &mut *work;
    let Directions { key, entry: HalfOpen { flow, .. }, opposite_key, .. } = connection.directions();
    let stored = &mut stored.flow;
    let Some(opposite) = tables.flow(opposite_key, stored) else { return false };
    if !leads_to(opposite_key, stored, key) || (stored.flags ^ flow.flags) & flow_flags::REPLY == 0 {
        return true;
    }
    // States only grow: what one direction learnt, the other keeps. That a client of TCP or SCTP sends does not show that its backend does.
    if stored.state <= flow.state {
        let is_shown = packet.is_udp() || flow.flags & flow_flags::REPLY != 0;
        let seen_s = if is_shown { flow.seen_s } else { stored.seen_s };
        tables.touch(opposite, stored.tag, seen_s, flow.state, stored.flags);
    }
    if !closing::may_end(packet, flow) {
        return true;
    }
    let change = closing::end(packet, flow, stored);
    if change == End::Nothing {
        return true;
    }
    tables.set_opposite_fin(opposite, stored.tag, closing::shown(flow.fin));
    let Some(own) = tables.flow(key, stored) else { return true };
    tables.set_end(own, flow.tag, flow);
    // Read once more: the opposite end may have acknowledged on another CPU, which has not seen this either.
    let is_there = tables.flow(opposite_key, stored).is_some();
    if is_there && (change == End::Reset || closing::are_over(flow.fin, stored.fin)) {
        let link = stored.link;
        end(tables, work, link);
    }
    true
}

/// The connection has ended: both entries leave for the table of handshakes, where late segments find them, and where they keep the reply
/// tuple from others for a while ([`TUPLE_REST_S`](crate::limits::TUPLE_REST_S)). `link` is the opposite entry's.
///
/// They are written there before they are removed here: a reader finds them in one of the two.
#[inline(always)]
fn end<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, link: u32) {
    let Directions { key, entry, opposite_key, opposite } = work.connection.directions();
    uncount(tables, key, &entry.flow);
    entry.flow.state = flow_state::CLOSING;
    entry.flow.flags &= !flow_flags::COUNTED;
    set_opposite(key, &entry.flow, opposite_key, link, &mut opposite.flow);
    for (key, entry) in [(key, entry), (opposite_key, opposite)] {
        without_numbers(entry);
        // Another connection's claim of the reply tuple stays; what the client asks for meanwhile is forgotten.
        let _ = tables.insert_half_open(key, entry, entry.flow.flags & flow_flags::REPLY == 0);
        tables.remove_flow(key);
    }
}

/// Nothing is known of the connection's segments any more.
#[inline(always)]
fn without_numbers<const N: usize>(entry: &mut HalfOpen<N>) {
    (entry.tried, entry.answers) = ([0; MOST_MOVES], [0; 2]);
    (entry.segments, entry.moves, entry.flags, entry.refused) = (0, 0, 0, 0);
    let flow = &mut entry.flow;
    (flow.next, flow.ack, flow.fin, flow.opposite_fin, flow.second) = (0, 0, 0, 0, 0);
}

/// Writes the opposite entry of an established connection, which is missing, with this link.
#[inline(always)]
fn restore<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, link: u32) {
    let Directions { key, entry, opposite_key, opposite } = work.connection.directions();
    set_opposite(key, &entry.flow, opposite_key, link, &mut opposite.flow);
    // Lost again if the table is full: the next second tries once more.
    let _ = tables.insert_flow(opposite_key, &opposite.flow, false);
}

/// Removes both entries of an established connection.
#[inline(always)]
fn remove<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Directions { key, entry, opposite_key, .. } = work.connection.directions();
    let stored = &mut work.stored.flow;
    uncount(tables, key, &entry.flow);
    if tables.flow(opposite_key, stored).is_some() && leads_to(opposite_key, stored, key) {
        tables.remove_flow(opposite_key);
    }
    tables.remove_flow(key);
}

/// Reads the note of the first segment of the client that the reply direction has left unanswered, or begins it with this one, in
/// `work.stored`. `true`: the note is new, and to be written. `if_lost`: whether the backend counts as heard where the reply entry is missing.
#[inline(always)]
fn note<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, if_lost: bool, now: Now) -> bool {
    let Work { connection: Connection { original_key: key, reply_key, original, reply, .. }, stored, .. } = work;
    let is_known = tables.half_open(key, stored) && stored.flags & half_open_flags::SECOND != 0;
    let is_heard = if tables.flow(reply_key, &mut reply.flow).is_some() && leads_to(reply_key, &reply.flow, key) {
        reply.flow.seen_s >= stored.flow.since_s
    } else {
        if_lost
    };
    if is_known && (!is_heard || stored.flow.since_s == now.s) {
        return false;
    }
    words::clear(stored);
    words::copy(&original.flow, &mut stored.flow);
    stored.flow.state = flow_state::HALF_OPEN;
    (stored.flow.since_s, stored.flow.seen_s) = (now.s, now.s);
    stored.flags = half_open_flags::SECOND;
    true
}

/// Notes a SYN of another connection on the tuple of an established one. `false`: the reply direction has been silent since the first of
/// several such SYNs. That proves nothing, but the backend has sent no challenge ACK either.
#[inline(always)]
pub fn reopen<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    /// With this SYN, at least a second after the one before, a second handshake may begin.
    const LAST_SYN: u8 = 3;
    let is_new = note(tables, work, false, now);
    let Work { connection: Connection { original_key: key, .. }, stored, .. } = work;
    if !is_new && stored.segments != 0 && stored.flow.seen_s == now.s {
        return true;
    }
    stored.segments = stored.segments.saturating_add(1);
    if stored.segments >= LAST_SYN {
        tables.remove_half_open(key);
        return false;
    }
    stored.flow.seen_s = now.s;
    // Not remembered, it is the first one again next time.
    let _ = tables.insert_half_open(key, stored, true);
    true
}

/// Notes a segment of the client that must be answered. For how many seconds the backend has left it, or one before it, unanswered.
///
/// Only new data of the backend, or an acknowledgement that moves, answers a segment that the backend has not acknowledged: it may send its own
/// segments again and hear nothing. Whatever it sends answers a probe, and what it has acknowledged before.
#[inline(always)]
pub fn await_answer<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> u32 {
    let Work { packet, connection: Connection { original_key: key, reply_key, original, reply, .. }, stored, .. } =
        work;
    let is_read = tables.half_open(key, stored);
    // SYNs are counted in the same place: anybody sends them. Compared as one word, since Linux 5.10 walks the rest once for each condition.
    let note = u32::from_ne_bytes([stored.segments, stored.moves, stored.flags, stored.refused]);
    let is_known = is_read && note == u32::from_ne_bytes([0, 0, half_open_flags::SECOND, 0]);
    // A missing entry is written anew right after.
    let is_there = tables.flow(reply_key, &mut reply.flow).is_some() && leads_to(reply_key, &reply.flow, key);
    let flow = &reply.flow;
    let is_heard = !is_there || is_answered(stored, flow);
    if is_known && (!is_heard || stored.flow.since_s == now.s) {
        return now.s.saturating_sub(stored.flow.since_s);
    }
    words::clear(stored);
    words::copy(&original.flow, &mut stored.flow);
    stored.flow.state = flow_state::HALF_OPEN;
    (stored.flow.since_s, stored.flow.seen_s) = (now.s, now.s);
    stored.flags = half_open_flags::SECOND;
    if is_there && closing::is_unacknowledged(packet, flow) {
        stored.answers = [flow.next, flow.ack];
    }
    let _ = tables.insert_half_open(key, stored, true);
    0
}

/// Whether the reply direction has answered what is noted: since then, or, where its numbers are noted, by others.
#[inline(always)]
fn is_answered<const N: usize>(note: &HalfOpen<N>, reply: &Flow<N>) -> bool {
    let [next, ack] = note.answers;
    if next == 0 && ack == 0 {
        return reply.seen_s >= note.flow.since_s;
    }
    closing::is_after(reply.next, next) || closing::is_after(reply.ack, ack)
}

/// Marks both entries as evicted: the backend may come to life again.
#[inline(always)]
pub fn give_up<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Work { connection: Connection { original_key, reply_key, .. }, stored, .. } = work;
    tables.remove_half_open(original_key);
    for (key, opposite_key) in [(&*original_key, &*reply_key), (&*reply_key, &*original_key)] {
        if let Some(entry) = tables.flow(key, &mut stored.flow)
            && leads_to(key, &stored.flow, opposite_key)
        {
            evict(tables, entry, &stored.flow, now);
        }
    }
}
