//! The first packet of a flow: look the service up, pick a slot, check that both belong together, write the flow.

use super::affinity::{holds, recall};
use super::client::{Asker, Client, admits, serve_from};
use super::frontend::{asked, is_whole};
use super::node_port::serves;
use super::packet::{Hook, Now};
use super::pick::{Pick, Picked, Wish};
use super::search::{AS_ANY_NODE, BY_TUPLE, PROBES, choose, complete};
use super::step::Step;
use super::tables::Tables;
use super::work::{Work, allocation};
use super::{dsr, limit, nat, outlier, vip};
use crate::abi::{AffinityKey, FlowKey, Service, Slot, UDP, half_open_flags, service_flags};
use crate::limits::SERVICE_LOOKUPS;
use crate::outcome::Outcome;

/// The step for a packet of no connection: it goes to a backend of the service that it asks for.
#[inline(always)]
pub fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let picked = pick_for_packet(tables, work, hook);
    let Work { packet, verdict, pick, .. } = &mut *work;
    if picked == Picked::NoService {
        return match packet.begins() {
            _ if vip::unserved(tables, work, hook) => Step::Decided,
            // Later segments collide with nothing.
            false => Step::Decided,
            true => Step::Direct,
        };
    }
    verdict.service = pick.service.id;
    match picked {
        Picked::Backend => return found(tables, work, hook),
        Picked::NotHere => verdict.drop(Outcome::DroppedNotHere),
        Picked::Martian => verdict.drop(Outcome::DroppedMartian),
        Picked::Denied => verdict.drop(Outcome::DroppedSourceRange),
        Picked::Limited => verdict.drop(Outcome::DroppedRateLimit),
        Picked::Empty if pick.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            verdict.drop(Outcome::DroppedNoLocalEndpoint);
        }
        Picked::Empty => verdict.refuse(packet, Outcome::RefusedNoEndpoint),
        Picked::Unasked => verdict.refuse(packet, Outcome::RefusedNoFlow),
        _ => verdict.drop(Outcome::DroppedTorn),
    }
    // The verdict holds if there is no such connection.
    let may_be_known = matches!(picked, Picked::Denied | Picked::Empty | Picked::Unasked);
    if may_be_known && !packet.begins() { Step::MidStream } else { Step::Decided }
}

#[inline(always)]
fn pick_for_packet<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Picked {
    let begins = work.packet.begins();
    if work.is_chosen() {
        return dsr::arrived(tables, work, hook, begins);
    }
    // Most packets that come here are no service's, and the clock takes longer than the look-up: it is read to pick a backend only.
    let (wish, now_ns) = match work.beginning {
        _ if !begins => (Wish::NONE, 0),
        Outcome::Moved => (Wish::AGAIN, tables.now_ns()),
        _ => (Wish::PROBE, tables.now_ns()),
    };
    let now = Now::from_ns(now_ns);
    pick(tables, &work.packet.key, Asker::Packet(hook), 0, wish, now, &mut work.pick)
}

/// Looks a frontend up for this client and picks a backend of the set that serves it, consistent even while the agent replaces the
/// service.
///
/// Under client affinity it is the backend that the client had last (`netns`: see [`AffinityKey::netns`]), while that one takes new
/// flows; [`stick`] remembers the one that was used in the end. Ejected and unhealthy backends are avoided.
#[inline(always)]
pub fn pick<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    asker: Asker,
    netns: u32,
    wish: Wish,
    now: Now,
    pick: &mut Pick<N>,
) -> Picked {
    let frontend = asked(key);
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(&frontend, &mut pick.service) {
            return Picked::NoService;
        }
        if !is_whole(&frontend, &pick.service) {
            continue;
        }
        if !serves(&pick.service, asker) {
            return Picked::NoService;
        }
        let client = asker.client(tables, &key.src);
        if client == Client::Martian {
            return Picked::Martian;
        }
        if !admits(tables, &pick.service, key, asker) {
            return Picked::Denied;
        }
        serve_from(&mut pick.service, client);
        pick.client = client as u32;
        if pick.service.slot_count == 0 {
            return Picked::Empty;
        }
        if wish == Wish::NONE {
            return Picked::Unasked;
        }
        let is_limited = Client::is_outside(client as u32) && pick.service.rate != 0 && wish != Wish::AGAIN;
        if is_limited && limit::exceeds(tables, &pick.service, &key.src) {
            return Picked::Limited;
        }
        let is_shared = as_any_node(&pick.service, client);
        let by_tuple = client != Client::Near && key.protocol != UDP && tables.is_flood();
        if !by_tuple && !is_shared && pick.service.affinity_timeout_s != 0 && stuck(tables, key, netns, now.ds, pick) {
            return Picked::Backend;
        }
        let how = match wish {
            _ if is_shared => AS_ANY_NODE,
            _ if by_tuple => AS_ANY_NODE | BY_TUPLE,
            Wish::PROBE | Wish::AGAIN => PROBES,
            _ => 0,
        };
        if choose(tables, key, how, now, pick) {
            return Picked::Backend;
        }
    }
    Picked::Torn
}

/// Whether another node may meet the flow's packets, and must lead them to the same backend.
#[inline(always)]
fn as_any_node(service: &Service, client: Client) -> bool {
    service.flags & service_flags::DSR != 0 && client != Client::Near
}

/// The backend that the client had last, if it takes new flows.
#[inline(never)]
fn stuck<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    netns: u32,
    now_ds: u32,
    pick: &mut Pick<N>,
) -> bool {
    let now = Now::from_ds(now_ds);
    let service = &pick.service;
    let key = AffinityKey { client: key.src, service: service.id, netns };
    let Some(affinity) = recall(tables, service, &key, now) else { return false };
    let Some(backend) = tables.backend(affinity.backend) else { return false };
    if !holds(&affinity, service, &backend, now) || outlier::is_suspect(tables, affinity.backend, backend.generation) {
        return false;
    }
    pick.slot = Slot {
        backend: affinity.backend,
        generation: service.generation,
        service: service.id,
        backend_generation: backend.generation,
    };
    pick.probes = 0;
    complete(tables, pick, now)
}

/// Makes the original entry of a new connection, whose backend is in `work.pick`: all but its tuple.
#[inline(always)]
pub(super) fn found<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let is_udp = work.packet.is_udp();
    work.connection.begin(&work.packet, now);
    if !is_udp && hook.has(Hook::FROM_CLIENT) && work.pick.service.flags & service_flags::NO_RETRY == 0 {
        work.connection.original.flags = half_open_flags::MOVES;
    }
    nat::aim(work, hook);
    work.allocation = allocation::KEEP_PORT;
    if hook.has(Hook::FROM_OUTSIDE) && !is_udp && tables.is_flood() {
        work.allocation |= allocation::BY_TUPLE;
        work.beginning = Outcome::SelectedByTuple;
    }
    if hook.has(Hook::FROM_OUTSIDE) && dsr::is_meant(work) {
        dsr::aim(work);
    } else if !nat::source(tables, work) {
        work.verdict.drop(Outcome::DroppedNoAddress);
        return Step::Decided;
    }
    Step::Allocate
}
