//! Direct server return: the first node chooses the backend and sends the packet whole to the backend's node; that one, to which the
//! outer header names the backend, does all the rest, and its answers go straight to the client.
//!
//! No answer passes the first node. It keeps a flow once the client's own segment shows that it saw an answer; until then, and for
//! segments of flows that another node has kept, Maglev says the same backend on every node.

use super::affinity::remembered;
use super::client::{Asker, Client, admits, serve_from};
use super::frontend::{asked, is_whole};
use super::packet::{Hook, Now};
use super::pick::Picked;
use super::search::{AS_ANY_NODE, BY_CLIENT, BY_TUPLE, choose, complete};
use super::tables::Tables;
use super::verdict::Action;
use super::work::Work;
use crate::abi::{
    EndpointKey, FlowKey, Service, Slot, backend_flags, flow_flags, frontend_kind, network_flags, service_flags,
};
use crate::outcome::Outcome;
use crate::words;

/// Whether packets of the client to the backend in `work.pick` go whole to its node: those of external clients, not those of pods, whose
/// answers pass here anyhow.
#[inline(never)]
pub(super) fn is_meant<const N: usize>(work: &Work<N>) -> bool {
    let service = &work.pick.service;
    service.flags & service_flags::DSR != 0
        && service.kind != frontend_kind::CLUSTER_IP
        && work.pick.backend.flags & backend_flags::LOCAL == 0
        && work.pick.client == Client::Outside as u32
}

/// A segment of a service that belongs to no flow of this node: it may be one of another node's, which Maglev leads to its backend.
/// Under a flood it may be one of this node that has lost its entries. `true`: such a one, whose backend is in `work.pick`.
#[inline(never)]
pub(super) fn follow<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    now_ds: u32,
) -> bool {
    let now = Now::from_ds(now_ds);
    let resumes = work.verdict.outcome == Outcome::RefusedNoFlow && tables.is_after_flood();
    if work.is_chosen() {
        return resumes && arrived(tables, work, hook, true) == Picked::Backend;
    }
    if !hook.has(Hook::FROM_OUTSIDE)
        || work.pick.service.slot_count == 0
        || work.verdict.outcome == Outcome::DroppedSourceRange
    {
        return false;
    }
    let everywhere = work.pick.service.flags & service_flags::DSR != 0;
    let how = if everywhere { AS_ANY_NODE } else { AS_ANY_NODE | BY_TUPLE };
    if !(everywhere || resumes) {
        return false;
    }
    let sticks = !everywhere && work.pick.service.affinity_timeout_s != 0;
    let how = if sticks { AS_ANY_NODE | BY_CLIENT } else { how };
    let is_remembered = sticks && remembered(tables, &work.packet.key, 0, now.ds, &mut work.pick);
    if !is_remembered && !choose(tables, &work.packet.key, 0, how, now, &mut work.pick) {
        return false;
    }
    if !is_meant(work) {
        return resumes;
    }
    let Work { packet, pick, connection, verdict, .. } = work;
    let flow = &mut connection.original.flow;
    words::clear(flow);
    words::address(&pick.backend.address, &mut flow.address);
    words::address(&packet.key.src, &mut flow.client);
    flow.backend = pick.slot.backend;
    verdict.translate(Action::ToBackend, flow, Outcome::Tunnelled, true);
    false
}

/// Whom a packet in an outer header is for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// No service of ours, or none that goes in outer headers.
    Foreign = 0,
    /// A service with direct server return.
    Direct,
    /// A backend of this node, of a service whose packets do not go whole *from* here: other nodes may be set otherwise.
    Named,
}

/// Whom the packet, which came in an outer header to `work.chosen`, is for.
#[inline(never)]
pub fn inside<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> Inside {
    if !is_served(tables, work) {
        return Inside::Foreign;
    }
    let service = &work.pick.service;
    if service.flags & service_flags::DSR != 0 {
        return Inside::Direct;
    }
    let named = EndpointKey { address: work.chosen, service: service.id };
    if service.kind != frontend_kind::CLUSTER_IP && tables.endpoint(&named).is_some() {
        Inside::Named
    } else {
        Inside::Foreign
    }
}

/// Whether the packet is for a service or a backend that goes in outer headers.
#[inline(always)]
pub fn is_tunnelled<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    inside(tables, work) != Inside::Foreign
}

/// Looks the frontend of the packet's destination up.
#[inline(always)]
fn is_served<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    frontend(tables, &work.packet.key, &work.chosen, &mut work.pick.service).is_some_and(|whole| whole)
}

/// Whether an error is about a packet that this node has sent in an outer header, which is what `work.packet` holds: its sender gets an error. The
/// verdict counts it.
#[inline(always)]
pub fn is_about_tunnelled<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if !is_served(tables, work) || work.pick.service.flags & service_flags::DSR == 0 {
        return false;
    }
    work.verdict.pass();
    work.verdict.service = work.pick.service.id;
    work.verdict.settle(Action::Refuse, Outcome::IcmpTranslated);
    true
}

/// An error about an answer of a flow that this node does not know, `work.packet` as for [`super::quoted`]: it goes whole to the node that
/// has answered, which Maglev finds. `false`: it is about no such flow.
#[inline(always)]
pub fn quoted_elsewhere<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> bool {
    let key = &work.packet.key;
    let (frontend, service) = (asked(key), &mut work.pick.service);
    if !tables.service(&frontend, service) || !is_whole(&frontend, service) {
        return false;
    }
    let client = Asker::Packet(hook).client(tables, &key.src);
    if client != Client::Outside {
        return false;
    }
    serve_from(service, client);
    work.pick.client = client as u32;
    let now = Now::from_ns(tables.now_ns());
    !follow(tables, work, hook, now.ds) && work.verdict.action as u8 == Action::ToBackend as u8
}

/// Copies the frontend of an encapsulated packet. A node port is served at any address, all zeroes, but not at a pod's address. It is not served at
/// an address from elsewhere that names no backend, for overlays have such headers, too. `false`: the agent is writing it.
#[inline(never)]
fn frontend<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    chosen: &[u8; N],
    service: &mut Service,
) -> Option<bool> {
    let mut frontend = asked(key);
    if !tables.service(&frontend, service) {
        let to = tables.network(&key.dst);
        let is_node = to & (network_flags::NODE | network_flags::PEER) != 0;
        frontend.address = [0; N];
        if (to & network_flags::PODS != 0 && !is_node) || !tables.service(&frontend, service) {
            return None;
        }
        // Networks of pods need not be known. At an address that may be one of theirs, who names a backend of the service means it.
        if !is_node && tables.endpoint(&EndpointKey { address: *chosen, service: service.id }).is_none() {
            return None;
        }
    }
    Some(is_whole(&frontend, service))
}

/// Looks up the frontend and the backend that another node has chosen. A node port is served at any node's address.
#[inline(never)]
pub(super) fn arrived<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    begins: bool,
) -> Picked {
    let key = &work.packet.key;
    let service = &mut work.pick.service;
    match frontend(tables, key, &work.chosen, service) {
        None => return Picked::NoService,
        Some(false) => return Picked::Torn,
        Some(true) => {}
    }
    let asker = Asker::Packet(hook);
    let client = asker.client(tables, &key.src);
    if client == Client::Martian {
        return Picked::Martian;
    }
    if !admits(tables, service, key, asker) {
        return Picked::Denied;
    }
    serve_from(service, client);
    work.pick.client = client as u32;
    if !begins {
        return Picked::Unasked;
    }
    let named = EndpointKey { address: work.chosen, service: service.id };
    let Some(endpoint) = tables.endpoint(&named) else { return Picked::NotHere };
    let (generation, service) = (service.generation, service.id);
    work.pick.slot = Slot { backend: endpoint.backend, generation, service, backend_generation: endpoint.generation };
    work.pick.probes = 0;
    let now = Now::from_ns(tables.now_ns());
    if complete(tables, &mut work.pick, now) { Picked::Backend } else { Picked::NotHere }
}

/// The new flow goes whole to the backend's node.
#[inline(always)]
pub(super) fn aim<const N: usize>(work: &mut Work<N>) {
    let (key, flow) = (&work.packet.key, &mut work.connection.original.flow);
    flow.port = 0;
    // The packet stays as it is, even if the client is its own backend.
    words::address(&key.src, &mut flow.client);
    flow.flags &= !(flow_flags::MASQUERADED | flow_flags::EARLY);
}
