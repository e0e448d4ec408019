//! Client affinity: the backend that a client had last, while it is remembered. It is remembered once a connection is established, so that a
//! flood of SYNs writes nothing.

use super::packet::Now;
use super::pick::Pick;
use super::search::complete;
use super::tables::Tables;
use super::work::Work;
use crate::abi::{
    Affinity, AffinityKey, Backend, FlowKey, Service, Slot, affinity_tag, backend_flags, half_open_flags, service_flags,
};
use crate::state;

/// The backend that this client had last, if its time is not over. Whether it still takes new flows is for the caller to see.
#[inline(always)]
pub fn recall<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    key: &AffinityKey<N>,
    now: Now,
) -> Option<Affinity> {
    let affinity = tables.affinity(key)?;
    let age_ds = now.ds.saturating_sub(affinity.seen_ds);
    (age_ds <= service.affinity_timeout_s.saturating_mul(10)).then_some(affinity)
}

/// Whether the backend of an affinity still is the one that was meant, and of the set that serves clients inside. Whether it is ejected
/// is for the caller to see.
///
/// A set may be left without a change of state: by hints, by a policy, or as others become ready.
#[inline(always)]
pub fn holds<const N: usize>(affinity: &Affinity, service: &Service, backend: &Backend<N>, now: Now) -> bool {
    let is_local = service.flags & service_flags::INSIDE_LOCAL != 0;
    let set = if is_local { backend_flags::IN_LOCAL_SET } else { backend_flags::IN_CLUSTER_SET };
    backend.generation == affinity.generation
        && backend.service == service.id
        && backend.flags & (set | backend_flags::UNHEALTHY) == set
        && state::keeps_flows(backend, now.ds)
}

/// The backend that the client had last, if it takes new flows. Whether it is ejected is for the caller to see.
#[inline(never)]
pub(super) fn remembered<const N: usize, T: Tables<N>>(
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
    if !holds(&affinity, service, &backend, now) {
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

/// Remembers the backend of a new connection.
#[inline(always)]
pub fn remember<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &AffinityKey<N>,
    backend: u32,
    generation: u32,
    now: Now,
) {
    let affinity = Affinity { tag: affinity_tag(key), backend, generation, seen_ds: now.ds };
    tables.set_affinity(key, &affinity);
}

/// Remembers the backend of an established connection, which is of this generation, where the service has client affinity.
#[inline(never)]
pub(super) fn established<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, generation: u32, now_ds: u32) {
    let connection = &work.connection;
    let entry = connection.entry();
    if entry.flags & half_open_flags::AFFINITY != 0
        && let Some(backend) = tables.backend(entry.flow.backend)
    {
        let key = AffinityKey { client: connection.original_key.src, service: backend.service, netns: 0 };
        remember(tables, &key, entry.flow.backend, generation, Now::from_ds(now_ds));
    }
}

/// Remembers the backend that a process connects to, where the service has client affinity: no hook sees whether it answers.
#[inline(never)]
pub fn stick<const N: usize, T: Tables<N>>(tables: &mut T, pick: &Pick<N>, key: &FlowKey<N>, netns: u32, now_ds: u32) {
    let now = Now::from_ds(now_ds);
    if pick.service.affinity_timeout_s != 0 {
        let key = AffinityKey { client: key.src, service: pick.service.id, netns };
        remember(tables, &key, pick.slot.backend, pick.backend.generation, now);
    }
}
