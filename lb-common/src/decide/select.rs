//! The first packet of a flow: look the service up, pick a slot, check that both belong together, write the flow.

use super::client::{admits, serve_from};
use super::health;
use super::limit;
use super::node_port::serves;
use super::opening::{begins, refuse};
use super::place::{aim, placing};
use super::search::{AS_ANY_NODE, BY_TUPLE, PROBES, choose, complete};
use super::{
    Action, Asker, Client, Hook, Now, Pick, Picked, Step, Tables, Wish, Work, holds, masquerade, recall, remember,
    tunnel,
};
use crate::abi::{
    AffinityKey, FlowKey, Service, ServiceKey, Slot, UDP, flow_state, half_open_flags, seal, service_flags, tag,
};
use crate::limits::SERVICE_LOOKUPS;
use crate::outcome::Outcome;
use crate::words;

/// Decides, unless the destination is no service's, or the packet begins no flow.
#[inline(always)]
pub(super) fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Picked {
    let picked = asked(tables, work, hook);
    if picked == Picked::NoService {
        return picked;
    }
    work.verdict.service = work.pick.service.id;
    match picked {
        Picked::NotHere => work.settle(Action::Drop, Outcome::DroppedNotHere),
        Picked::Martian => work.settle(Action::Drop, Outcome::DroppedMartian),
        Picked::Denied => work.settle(Action::Drop, Outcome::DroppedSourceRange),
        Picked::Limited => work.settle(Action::Drop, Outcome::DroppedRateLimit),
        Picked::Empty if work.pick.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            work.settle(Action::Drop, Outcome::DroppedNoLocalEndpoint);
        }
        Picked::Empty => refuse(work, Outcome::RefusedNoEndpoint),
        Picked::Backend => {}
        Picked::Unasked => refuse(work, Outcome::RefusedNoFlow),
        _ => work.settle(Action::Drop, Outcome::DroppedTorn),
    }
    picked
}

#[inline(always)]
fn asked<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Picked {
    let begins = begins(work);
    if work.is_chosen() {
        return tunnel::arrived(tables, work, hook, begins);
    }
    // Most packets that come here are nobody's, and the clock takes longer than the look-up: who picks no backend asks for no time.
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
/// flows; [`stick`] remembers the one that was used in the end. Suspect and quarantined backends are avoided.
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
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
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
        let by_tuple = client != Client::Near && key.protocol != UDP && tables.pressed();
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

/// Remembers the backend of a new connection, where the service has client affinity.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn stick<const N: usize, T: Tables<N>>(tables: &mut T, pick: &Pick<N>, key: &FlowKey<N>, netns: u32, now_ds: u32) {
    let now = Now::from_ds(now_ds);
    if pick.service.affinity_timeout_s != 0 {
        let key = AffinityKey { client: key.src, service: pick.service.id, netns };
        remember(tables, &key, pick.slot.backend, pick.backend.generation, now);
    }
}

/// The backend that the client had last, if it takes new flows.
///
/// A function of its own: off the stack of those that ask.
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
    if !holds(&affinity, service, &backend, now) || health::is_suspect(tables, affinity.backend, backend.generation) {
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

/// Copies a frontend to `into`. `false`: there is none, or the agent is at it.
#[inline(always)]
pub(super) fn frontend<const N: usize, T: Tables<N>>(tables: &mut T, key: &ServiceKey<N>, into: &mut Service) -> bool {
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(key, into) {
            return false;
        }
        if is_whole(key, into) {
            return into.slot_count != 0;
        }
    }
    false
}

/// Whether the value belongs to the key and was read in one piece.
#[inline(always)]
pub(super) fn is_whole<const N: usize>(key: &ServiceKey<N>, service: &Service) -> bool {
    service.seal == seal(key, service)
}

/// A backend is chosen: the flow's entry, but for its place.
#[inline(always)]
pub(super) fn found<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let protocol = work.packet.key.protocol;
    let half = &mut work.half;
    words::clear(half);
    half.segments = 1;
    let moves =
        protocol != UDP && hook.has(Hook::FROM_CLIENT) && work.pick.service.flags & service_flags::NO_RETRY == 0;
    half.flags = if moves { half_open_flags::MOVES } else { 0 };
    half.flow.tag = tag(&work.packet.key);
    half.flow.seen_s = now.s;
    half.flow.since_s = now.s;
    half.flow.isn = if protocol == UDP { 0 } else { work.packet.seq };
    half.flow.state = flow_state::HALF_OPEN;
    aim(work, hook);
    work.placing = placing::NEW | placing::KEEP_PORT;
    if hook.has(Hook::FROM_OUTSIDE) && protocol != UDP && tables.pressed() {
        work.placing |= placing::BY_TUPLE;
        work.beginning = Outcome::SelectedByTuple;
    }
    if hook.has(Hook::FROM_OUTSIDE) && tunnel::is_meant(work) {
        tunnel::aim(work);
    } else if !masquerade::source(tables, work) {
        work.settle(Action::Drop, Outcome::DroppedNoAddress);
        return Step::Decided;
    }
    Step::Place
}
