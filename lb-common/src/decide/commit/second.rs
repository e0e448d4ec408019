//! Writes for a second handshake: it stands beside its client's connection until the client completes it.

use crate::abi::{Flow, FlowKey, second_key, tag};
use crate::decide::connection::{Connection, leads_to, set_opposite_key};
use crate::decide::flow_tables::FlowTables;
use crate::decide::lifetime::uncount;
use crate::decide::work::Work;
use crate::words;

/// Marks the client's established connection, if it has one: its packets are compared with the second handshake.
#[inline(always)]
pub fn mark<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &Work<N>, bits: u16) {
    let key = &work.packet.key;
    if let Some(entry) = tables.flow_entry(key) {
        tables.change_flow(entry, tag(key), |flow| flow.second = bits);
    }
}

/// The client's first handshake is over: the second one, whose original entry is in `work.stored`, takes its place.
#[inline(always)]
pub fn promote<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { packet, stored, stored_key, .. } = work;
    stored.flow.second = 0;
    let _ = tables.insert_half_open(&packet.key, stored, true);
    words::copy(&packet.key, stored_key);
    second_key(stored_key);
    tables.remove_half_open(stored_key);
    stored_key.pad = [0; 3];
    set_opposite_key(&packet.key, &stored.flow, stored_key);
    tables.change_half_open(stored_key, stored.flow.backend, |entry| entry.flow.second = 0);
}

/// The second handshake is complete: its entries replace those of the client's connection. `None`: the table has no room, and the old
/// connection goes on. `Some(false)`: another CPU has done it.
///
/// The reply entry is written first. The original one needs no room, where it replaces another one.
#[inline(always)]
pub fn replace<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    connection: &mut Connection<N>,
    stored: &mut Flow<N>,
    stored_key: &mut FlowKey<N>,
) -> Option<bool> {
    let Connection { original_key, reply_key, original, reply, .. } = connection;
    if tables.insert_flow(reply_key, &reply.flow, true).is_err() {
        return None;
    }
    original_key.pad = [0; 3];
    let has_old = tables.flow(original_key, stored).is_some();
    if tables.insert_flow(original_key, &original.flow, true).is_err() {
        tables.remove_flow(reply_key);
        second_key(original_key);
        return None;
    }
    words::copy(original_key, stored_key);
    second_key(stored_key);
    tables.remove_half_open(stored_key);
    stored_key.pad = [0; 3];
    if has_old && leads_to(original_key, stored, reply_key) {
        return Some(false);
    }
    if has_old {
        uncount(tables, original_key, stored);
        set_opposite_key(original_key, stored, stored_key);
        tables.remove_flow(stored_key);
    }
    Some(true)
}
