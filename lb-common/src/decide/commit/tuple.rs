//! Writes for the reply tuple of a new connection: it is claimed, or taken from a connection that gives it up.

use crate::abi::{Flow, FlowKey, HalfOpen, flow_flags, second};
use crate::decide::connection::{Connection, leads_to, same, set_opposite_key};
use crate::decide::flow_tables::{FlowTables, Reserved};
use crate::decide::lifetime::{is_over, uncount};
use crate::decide::maps::NotInserted;
use crate::decide::packet::Now;
use crate::decide::work::{Work, allocation};
use crate::state;

/// Claims the reply tuple for the handshake's reply entry, with this port of the client; 0: with the one that it has.
///
/// First the claim among the handshakes, then a look-up in the established ones. Another connection's claim is in one of the two at any time, as it
/// is written there before it is removed here.
///
/// The programs have it as a function that is verified once and by itself ([`FlowTables::reserve`]).
#[inline(always)]
pub fn reserve<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    port: u32,
    now_s: u32,
) -> Reserved {
    let now = Now::from_ds(now_s.saturating_mul(10));
    work.connection.set_reply_port(port as u16);
    match tables.insert_half_open(&work.connection.reply_key, &work.connection.reply, false) {
        Ok(()) => {}
        Err(NotInserted::Full) => return Reserved::Full,
        Err(NotInserted::Exists) => {
            if !handshake_yields(tables, work, now) {
                return Reserved::Taken;
            }
            if tables.insert_half_open(&work.connection.reply_key, &work.connection.reply, true).is_err() {
                return Reserved::Full;
            }
        }
    }
    if established_yields(tables, work, now) {
        return Reserved::Yes;
    }
    tables.remove_half_open(&work.connection.reply_key);
    Reserved::Taken
}

/// Whether the handshake that holds the tuple is this client's own attempt before, or one that is over and has rested. A second handshake replaces
/// nothing.
#[inline(always)]
fn handshake_yields<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let Work { connection: Connection { original_key, reply_key, .. }, stored, stored_key, allocation, .. } = work;
    if !tables.half_open(reply_key, stored) || stored.flow.flags & flow_flags::REPLY == 0 {
        return false;
    }
    set_opposite_key(reply_key, &stored.flow, stored_key);
    if *allocation & allocation::SECOND == 0 && same(stored_key, original_key) {
        return true;
    }
    if !gives_up(tables, stored_key.protocol, &stored.flow, *allocation, now) {
        return false;
    }
    remove_original_handshake(tables, stored_key, reply_key, stored);
    true
}

/// Whether no established connection holds the tuple: none at all, this client's own one before, or one that is over.
#[inline(always)]
fn established_yields<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let Work { connection: Connection { original_key, reply_key, .. }, stored, stored_key, allocation, .. } = work;
    let stored = &mut stored.flow;
    if tables.flow(reply_key, stored).is_none() {
        return true;
    }
    // Conntrack knows an adopted connection until the agent removes its entries, also where the client begins another one.
    if stored.flags & flow_flags::REPLY == 0 || stored.is_given() {
        return false;
    }
    set_opposite_key(reply_key, stored, stored_key);
    if *allocation & allocation::SECOND != 0 || !same(stored_key, original_key) {
        if !gives_up(tables, stored_key.protocol, stored, *allocation, now) {
            return false;
        }
        remove_original(tables, stored_key, reply_key, stored);
    }
    tables.remove_flow(reply_key);
    true
}

/// Whether the connection that holds the tuple gives it to another client.
#[inline(always)]
fn gives_up<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    protocol: u8,
    flow: &Flow<N>,
    allocation: u32,
    now: Now,
) -> bool {
    is_over(tables, protocol, flow, now) && (allocation & allocation::TAKE_RESTING != 0 || !state::rests(flow, now.s))
}

/// Removes the original entry, under `key`, of a connection whose reply entry stood under `reply_key`: only if it still is that
/// connection's. The client may have begun another one on the same tuple since.
#[inline(always)]
fn remove_original<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    reply_key: &FlowKey<N>,
    stored: &mut Flow<N>,
) {
    if tables.flow(key, stored).is_some() && leads_to(key, stored, reply_key) {
        uncount(tables, key, stored);
        tables.remove_flow(key);
    }
}

/// Removes the original entry of a handshake, whose reply entry is in `stored`, as [`remove_original`] does that of an established connection.
#[inline(always)]
fn remove_original_handshake<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    key: &mut FlowKey<N>,
    reply_key: &FlowKey<N>,
    stored: &mut HalfOpen<N>,
) {
    key.pad[0] = (stored.flow.second & second::OWN) as u8;
    if tables.half_open(key, stored) && leads_to(key, &stored.flow, reply_key) {
        tables.remove_half_open(key);
    }
    key.pad = [0; 3];
}

/// Writes the original entry of a connection whose reply tuple is claimed. `false`: the table is full, and the claim is given up.
#[inline(always)]
pub fn begin<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Connection { original_key, reply_key, original, .. } = &mut work.connection;
    original.flow.client_port = reply_key.dst_port;
    let written = tables.insert_half_open(original_key, original, true).is_ok();
    if !written {
        tables.remove_half_open(reply_key);
    }
    written
}

/// Removes the established connection that holds the tuple: its reply entry is in `stored`, its original key in `stored_key`.
#[inline(always)]
pub fn release<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let reply_key = &work.connection.reply_key;
    remove_original(tables, &work.stored_key, reply_key, &mut work.stored.flow);
    tables.remove_flow(reply_key);
}

/// Removes the handshake that holds the tuple: its reply entry is in `stored`, its original key in `stored_key`.
#[inline(always)]
pub fn release_handshake<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let reply_key = &work.connection.reply_key;
    remove_original_handshake(tables, &mut work.stored_key, reply_key, &mut work.stored);
    tables.remove_half_open(reply_key);
}

/// UDP: takes the replies from the established connection that holds the tuple. Its next request takes them back.
#[inline(always)]
pub fn take_replies<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection: Connection { reply_key, .. }, stored: HalfOpen { flow, .. }, stored_key, .. } = work;
    tables.remove_flow(reply_key);
    if let Some(entry) = tables.flow(stored_key, flow)
        && leads_to(stored_key, flow, reply_key)
    {
        tables.touch(entry, flow.tag, flow.seen_s, flow.state, flow.flags | flow_flags::REPLY_LOST);
    }
}

/// UDP: takes the replies from the handshake that holds the tuple. Its next request takes them back.
#[inline(always)]
pub fn take_handshake_replies<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection: Connection { reply_key, .. }, stored, stored_key, .. } = work;
    tables.remove_half_open(reply_key);
    if tables.half_open(stored_key, stored) && leads_to(stored_key, &stored.flow, reply_key) {
        stored.flow.flags |= flow_flags::REPLY_LOST;
        let _ = tables.insert_half_open(stored_key, stored, true);
    }
}
