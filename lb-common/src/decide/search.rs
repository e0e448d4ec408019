//! The search for a backend among a service's slots: the scheduler's choice, and others where that one is to be avoided.

use super::outlier::{self, ANY_CLIENT, Worth, client_of};
use super::packet::Now;
use super::pick::{Pick, Search};
use super::schedule;
use super::tables::Tables;
use super::work::Work;
use crate::abi::{FlowKey, MOST_MOVES, client_tag, tag};
use crate::limits::SLOT_ATTEMPTS;
use crate::{state, words};

/// How to search: bits, beside the number of the attempt.
const ATTEMPT: u32 = 0xff;
/// An ejected backend will do, if it is time to probe it.
pub(super) const PROBES: u32 = 0x100;
/// No ejected one.
const NOT_EJECTED: u32 = 0x200;
/// One that answered lately is preferred.
const PREFERS_PROVEN: u32 = 0x400;
/// Whatever this node has seen of the backends: every node finds the same one.
pub(super) const AS_ANY_NODE: u32 = 0x800;
/// By the packet's tuple alone, whatever the scheduler: the same one each time. With [`AS_ANY_NODE`].
pub(super) const BY_TUPLE: u32 = 0x1000;
/// By client, service port and period of the affinity's timeout, whatever the scheduler: first connections that a client makes at the same time
/// agree. With [`AS_ANY_NODE`] in every period alike: a segment that has lost its entries finds the backend of a SYN of the same flood.
pub(super) const BY_CLIENT: u32 = 0x2000;

/// Any client's evidence counts: nobody moves the connection.
pub(super) const ANY_EVIDENCE: u32 = 0x4000;

/// A backend for a new connection, in `pick`; how to search: [`PROBES`], [`AS_ANY_NODE`], [`BY_TUPLE`], [`BY_CLIENT`] (processes: with their
/// `netns`). `false`: service, slots and backends do not fit together.
#[inline(always)]
pub(super) fn choose<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    netns: u32,
    how: u32,
    now: Now,
    pick: &mut Pick<N>,
) -> bool {
    words::clear(&mut pick.search);
    pick.search.client = client_tag(&key.src, pick.service.id, netns);
    if how & BY_TUPLE != 0 {
        pick.search.hash = tag(key);
    }
    for attempt in 0..SLOT_ATTEMPTS {
        if tables.try_slot(key, pick, how | attempt, now.ds) {
            break;
        }
    }
    pick.search.best != 0 && complete(tables, pick, now)
}

/// Another backend of the service `work.pick.service` for the connection: one that was not tried. `not_ejected`: no ejected one either.
#[inline(always)]
pub(super) fn another<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    not_ejected: bool,
    now: Now,
) -> bool {
    let original = &work.connection.original;
    let [first, second, third] = original.tried;
    other_than(tables, work, [first, second, third, original.flow.backend], not_ejected, now)
}

/// Searches for a backend that is none of `avoid`.
#[inline(always)]
pub(super) fn other_than<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    avoid: [u32; MOST_MOVES + 1],
    not_ejected: bool,
    now: Now,
) -> bool {
    let Work { pick, connection, .. } = work;
    words::clear(&mut pick.search);
    pick.search.avoid = avoid;
    pick.search.client = client_of(&connection.original_key, &pick.service);
    let mut how = PREFERS_PROVEN | if not_ejected { NOT_EJECTED } else { 0 };
    if pick.service.affinity_timeout_s != 0 {
        how |= BY_CLIENT;
    }
    for attempt in 1..=SLOT_ATTEMPTS {
        if tables.try_slot(&connection.original_key, pick, how | attempt, now.ds) {
            break;
        }
    }
    pick.search.best != 0 && complete(tables, pick, now)
}

/// [`try_slot`] for the connection of a scratch record, `pick` and key of which a caller of [`Tables::try_slot`] passes on.
#[inline(always)]
pub fn try_slot_for<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, how: u32, now_ds: u32) -> bool {
    let Work { packet, connection, pick, .. } = work;
    // As `choose` and `another` do.
    let key = if how & PREFERS_PROVEN == 0 { &packet.key } else { &connection.original_key };
    try_slot(tables, key, pick, how, now_ds)
}

/// Looks at one slot. `true`: its backend is good enough to end the search.
///
/// The programs have it as a function that is verified once and by itself ([`Tables::try_slot`]), which finds key and `pick` by itself.
#[inline(always)]
pub fn try_slot<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    pick: &mut Pick<N>,
    how: u32,
    now_ds: u32,
) -> bool {
    let service = &pick.service;
    let attempt = how & ATTEMPT;
    // After some draws the search goes on from slot to slot: chance may name the same few over and over, and a service may have no
    // more than two.
    let mut position = pick.search.position.wrapping_add(1);
    if attempt <= SLOT_ATTEMPTS / 2 {
        position = if how & BY_CLIENT != 0 {
            let timeout_s = if how & AS_ANY_NODE == 0 { service.affinity_timeout_s } else { 0 };
            schedule::by_hash(service, schedule::of_client(pick.search.client, timeout_s, now_ds), attempt)
        } else if how & BY_TUPLE != 0 {
            schedule::by_hash(service, pick.search.hash, attempt)
        } else {
            schedule::position(tables, service, key, attempt)
        };
    } else if position >= service.slot_count {
        position = 0;
    }
    pick.search.position = position;
    let Some(slot) = tables.slot(service.slot_base.wrapping_add(position)) else { return false };
    let id = slot.backend;
    let [a, b, c, d] = pick.search.avoid;
    let fits = slot.service == service.id && slot.generation == service.generation;
    if !fits || id == a || id == b || id == c || id == d {
        return false;
    }
    let Some(backend) = tables.backend(id) else { return false };
    // A slot may lead to a backend that has left: with the agent dead, or where no table has room for the slots without it.
    if backend.generation != slot.backend_generation || !state::takes_flows(&backend, now_ds) {
        return false;
    }
    let mut worth = Worth::Fit;
    if how & AS_ANY_NODE == 0 {
        let client = if how & ANY_EVIDENCE == 0 { pick.search.client } else { ANY_CLIENT };
        let to = (client, key.protocol);
        worth = outlier::worth(tables, (id, backend.generation, backend.flags), to, now_ds / 10);
    }
    if worth == Worth::ToProbe && how & PROBES == 0 {
        worth = Worth::Shunned;
    }
    if worth == Worth::Shunned && how & NOT_EJECTED != 0 {
        return false;
    }
    let rank = worth as u32 + 1;
    if rank > pick.search.best {
        pick.search.best = rank;
        words::copy(&slot, &mut pick.slot);
        pick.probes = (worth == Worth::ToProbe) as u32;
    }
    if worth == Worth::EjectionCandidate && pick.search.candidate == 0 {
        pick.search.candidate = id;
        pick.search.candidate_generation = slot.backend_generation;
    }
    let Search { candidate, candidate_generation, .. } = pick.search;
    if candidate != 0 && worth == Worth::Proven {
        outlier::eject(tables, &pick.service, candidate, candidate_generation, Now::from_ds(now_ds));
    }
    // An ejection candidate is passed over for a backend that is proven to answer: the candidate may have no answer.
    let needs_proof = how & PREFERS_PROVEN != 0 || candidate != 0;
    worth >= if needs_proof { Worth::Proven } else { Worth::Fit }
}

/// Reads the backend of the slot that was picked. `false`: it is another one by now, or gone.
#[inline(always)]
pub(super) fn complete<const N: usize, T: Tables<N>>(tables: &mut T, pick: &mut Pick<N>, now: Now) -> bool {
    tables.copy_backend(pick.slot.backend, &mut pick.backend)
        && pick.backend.generation == pick.slot.backend_generation
        && state::keeps_flows(&pick.backend, now.ds)
}
