//! Writes for a connection that was retried: several backends may answer it, and the first answer that goes to the client decides.
//!
//! The client's CPU writes the original entry at each retry, while answers come on other CPUs. So an answer wins by one insert that fails
//! if there is a claim already, and only then makes the original entry lead to its backend. A retry looks for a claim after it has written.

use crate::abi::{FlowKey, HalfOpen, claim_key, half_open_flags};
use crate::decide::connection::{Connection, leads_to, set_opposite, set_opposite_key};
use crate::decide::fast_path;
use crate::decide::flow_tables::FlowTables;
use crate::decide::lifetime::Standing;
use crate::decide::maps::NotInserted;
use crate::decide::packet::Now;
use crate::decide::work::Work;
use crate::words;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is this backend's from now on.
    Won,
    /// It was this backend's before.
    Again,
    /// It is another backend's.
    Lost,
    /// The table has no room for it.
    Full,
}

/// Claims the connection for the backend of its reply entry, and makes the original entry lead there. The original entry in `work` is as it
/// was read, or cleared.
#[inline(never)]
pub fn claim<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> Claimed {
    let Work { connection, stored, stored_key, .. } = work;
    let Connection { original_key, reply_key, original, reply, .. } = connection;
    forget_later(original, reply.flow.backend);
    let link = fast_path::opposite_link(&reply.flow);
    set_opposite(reply_key, &reply.flow, original_key, link, &mut original.flow);
    original.flow.seen_s = now.s;
    original.answers = reply.answers;
    original.refused = 0;
    original.flags |= half_open_flags::ANSWERED | half_open_flags::CLAIMED | reply.flags & half_open_flags::AFFINITY;
    set_claim_key(original_key, reply.flow.isn, stored_key);
    let claimed = match tables.insert_half_open(stored_key, original, false) {
        Ok(()) => Claimed::Won,
        Err(NotInserted::Full) => Claimed::Full,
        Err(NotInserted::Exists)
            if tables.half_open(stored_key, stored) && leads_to(original_key, &stored.flow, reply_key) =>
        {
            Claimed::Again
        }
        Err(NotInserted::Exists) => Claimed::Lost,
    };
    stored_key.pad = [0; 3];
    if matches!(claimed, Claimed::Won | Claimed::Again) {
        // Not written, a later answer of this backend writes it.
        let _ = tables.insert_half_open(original_key, original, true);
    }
    claimed
}

/// Forgets the backends that were tried after the one that has answered: that they have not says nothing yet.
#[inline(always)]
fn forget_later<const N: usize>(original: &mut HalfOpen<N>, answered: u32) {
    let mut is_later = false;
    let mut i = 0;
    while i < original.tried.len() {
        is_later |= original.tried[i] == answered;
        if is_later {
            original.tried[i] = 0;
        }
        i += 1;
    }
}

/// Reads the claim on a connection that was retried, where its original entry, in `work.stored`, shows no answer: the answer may be about to
/// be written there.
#[inline(never)]
pub fn read<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { packet, stored, stored_key, .. } = work;
    set_claim_key(&packet.key, stored.flow.isn, stored_key);
    // Without a claim, the entry that was read stays.
    tables.half_open(stored_key, stored);
    stored_key.pad = [0; 3];
}

/// Writes the original entry anew by the claim on its connection, and reads it: it was lost, and the client's SYN made another one. `false`:
/// there is no claim, or the backend that has it is gone.
#[inline(never)]
pub fn heal<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    let Work { connection, stored, stored_key, .. } = work;
    let Connection { original_key, reply_key, original, .. } = connection;
    set_claim_key(original_key, original.flow.isn, stored_key);
    let mut is_claimed = tables.half_open(stored_key, stored);
    if is_claimed && !Standing::of(tables, &stored.flow, now).keeps {
        tables.remove_half_open(stored_key);
        is_claimed = false;
    }
    stored_key.pad = [0; 3];
    if is_claimed {
        words::copy(stored, original);
        set_opposite_key(original_key, &original.flow, reply_key);
        let _ = tables.insert_half_open(original_key, original, true);
    }
    is_claimed
}

/// Removes the claim of an established connection, whose original entry and key are in `work`.
#[inline(never)]
pub fn release<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection: Connection { original_key, original, .. }, stored_key, .. } = work;
    set_claim_key(original_key, original.flow.isn, stored_key);
    tables.remove_half_open(stored_key);
    stored_key.pad = [0; 3];
}

/// Notes the reply tuple of the backend that a retry leaves, in `work.stored_key`: while the original entry still leads there.
#[inline(never)]
pub fn leave<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection: Connection { original_key, .. }, stored, stored_key, .. } = work;
    words::copy(original_key, stored_key);
    if tables.half_open(original_key, stored) {
        set_opposite_key(original_key, &stored.flow, stored_key);
    }
}

/// After a retry has written its original entry: an answer may have crossed it on another CPU. Then the connection is that backend's.
///
/// An answer that found no retry has marked its reply entry before it looked for one the last time. So either it is seen here, or it sees
/// the original entry that was written.
#[inline(never)]
pub fn settle<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) {
    let Work { connection: Connection { original_key, reply_key, original, reply, .. }, stored, stored_key, .. } = work;
    if tables.half_open(stored_key, stored)
        && stored.flags & half_open_flags::ANSWERED != 0
        && stored.flow.isn == original.flow.isn
        && leads_to(stored_key, &stored.flow, original_key)
    {
        words::copy(stored, reply);
        words::copy(stored_key, reply_key);
        if matches!(claim(tables, work, now), Claimed::Won | Claimed::Again) {
            return;
        }
    }
    heal(tables, work, now);
}

#[inline(always)]
fn set_claim_key<const N: usize>(original_key: &FlowKey<N>, isn: u32, into: &mut FlowKey<N>) {
    words::copy(original_key, into);
    claim_key(into, isn);
}
