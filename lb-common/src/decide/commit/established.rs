//! Writes for established connections.

use crate::abi::{Flow, flow_flags, flow_state, half_open_flags};
use crate::decide::connection::{Connection, Directions, leads_to, set_opposite};
use crate::decide::lifetime::uncount;
use crate::decide::packet::Now;
use crate::decide::tables::FlowTables;
use crate::decide::work::Work;
use crate::{state, words};

/// Notes a packet in the entry of its direction, at most once a second, and when something changes. `true`: [`sync`] is next.
#[inline(always)]
pub fn seen<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    entry: T::FlowRef,
    flow: &mut Flow<N>,
    now: Now,
    state: u8,
    ended: u8,
) -> bool {
    let flags = (flow.flags & !flow_flags::REPLY_LOST) | ended;
    if state == flow.state && flow.seen_s == now.s && flags == flow.flags {
        return false;
    }
    tables.touch(entry, flow.tag, now.s, state, state::counted_after(flags));
    // The flag of a counted connection stays here until `sync`.
    (flow.seen_s, flow.state, flow.flags) = (now.s, state, flags);
    true
}

/// Marks the entry as evicted. It stays until the other side knows as well, or it expires.
#[inline(always)]
pub fn evict<const N: usize, T: FlowTables<N>>(tables: &mut T, entry: T::FlowRef, flow: &Flow<N>, now: Now) {
    if flow.state != flow_state::EVICTED {
        tables.touch(entry, flow.tag, now.s, flow_state::EVICTED, flow.flags);
    }
}

/// Writes time and state of the packet's direction into the opposite entry. `false`: it is missing, and [`restore`] is next.
#[inline(always)]
pub fn sync<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Directions { key, entry, opposite_key, .. } = work.connection.directions();
    let stored = &mut work.stored.flow;
    let flow = &mut entry.flow;
    let flags = state::counted_after(flow.flags);
    if flags != flow.flags {
        uncount(tables, flow);
        flow.flags = flags;
    }
    let Some(entry) = tables.flow(opposite_key, stored) else { return false };
    let ours = leads_to(opposite_key, stored, key) && (stored.flags ^ flow.flags) & flow_flags::REPLY != 0;
    // States only grow: what one direction learnt, the other keeps.
    if ours && stored.state <= flow.state {
        let flags = state::counted_after(stored.flags | flow.flags & flow_flags::ENDED);
        tables.touch(entry, stored.tag, flow.seen_s, flow.state, flags);
    }
    true
}

/// Writes the opposite entry of an established connection, which is missing, with this link.
#[inline(always)]
pub fn restore<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, link: u32) {
    let Directions { key, entry, opposite_key, opposite } = work.connection.directions();
    let flow = &mut entry.flow;
    if link != flow.link && link == 0 {
        // The packet's link is not known here: neither direction keeps one.
        flow.link = 0;
        let _ = tables.insert_flow(key, flow, true);
    }
    set_opposite(key, flow, opposite_key, link, &mut opposite.flow);
    // Lost again if the table is full: the next second tries once more.
    let _ = tables.insert_flow(opposite_key, &opposite.flow, false);
}

/// Removes both entries of an established connection.
#[inline(always)]
pub fn remove<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Directions { key, entry, opposite_key, .. } = work.connection.directions();
    let stored = &mut work.stored.flow;
    uncount(tables, &entry.flow);
    if tables.flow(opposite_key, stored).is_some() && leads_to(opposite_key, stored, key) {
        tables.remove_flow(opposite_key);
    }
    tables.remove_flow(key);
}

/// Remembers a SYN of another connection on the tuple of an established one. `false`: the backend left it unanswered often enough.
#[inline(always)]
pub fn reopen<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    /// With this SYN, which the backend has not accepted, the established connection is given up.
    const LAST_SYN: u8 = 3;
    let Work { packet, connection, stored, .. } = work;
    let key = &connection.original_key;
    let asked_before =
        tables.half_open(key, stored) && stored.flags & half_open_flags::SECOND != 0 && stored.flow.isn == packet.seq;
    if asked_before {
        stored.segments = stored.segments.saturating_add(1);
        if stored.segments >= LAST_SYN {
            tables.remove_half_open(key);
            return false;
        }
    } else {
        words::clear(stored);
        words::copy(&connection.original.flow, &mut stored.flow);
        stored.flow.isn = packet.seq;
        stored.flow.state = flow_state::HALF_OPEN;
        stored.flow.since_s = now.s;
        stored.segments = 1;
        stored.flags = half_open_flags::SECOND;
    }
    stored.flow.seen_s = now.s;
    // Not remembered, it is the first one again next time.
    let _ = tables.insert_half_open(key, stored, true);
    true
}

/// The backend has accepted the other connection, whose SYN is in `stored`: the entries are that one's from now on.
#[inline(always)]
pub fn replace<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Connection { original_key, reply_key, original, reply, .. } = &mut work.connection;
    let syn = &work.stored.flow;
    let flow = &mut reply.flow;
    flow.isn = syn.isn;
    flow.since_s = now.s;
    flow.seen_s = now.s;
    flow.state = flow_state::OPEN;
    flow.flags &= !flow_flags::ENDED;
    // The SYN was remembered with the original direction's own link.
    set_opposite(reply_key, flow, original_key, syn.link, &mut original.flow);
    // Both exist: they are written over. What fails is healed by the next packets.
    let _ = tables.insert_flow(original_key, &original.flow, true);
    let _ = tables.insert_flow(reply_key, flow, true);
    tables.remove_half_open(original_key);
}
