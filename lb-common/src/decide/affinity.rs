//! Client affinity: the backend that a client had last, while it is remembered.

use super::packet::Now;
use super::pick::Pick;
use super::tables::Tables;
use crate::abi::{Affinity, AffinityKey, Backend, FlowKey, Service, affinity_tag, backend_flags, service_flags};
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

/// Whether the backend of an affinity still is the one that was meant, and of the set that serves clients inside. Whether it is suspect
/// is for the caller to see.
///
/// A set may be left without a change of state: by hints, by a policy, or as others become ready.
#[inline(always)]
pub fn holds<const N: usize>(affinity: &Affinity, service: &Service, backend: &Backend<N>, now: Now) -> bool {
    let is_local = service.flags & service_flags::INSIDE_LOCAL != 0;
    let set = if is_local { backend_flags::IN_LOCAL_SET } else { backend_flags::IN_CLUSTER_SET };
    backend.generation == affinity.generation
        && backend.service == service.id
        && backend.flags & (set | backend_flags::QUARANTINED) == set
        && state::keeps_flows(backend, now.ds)
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

/// Remembers the backend of a new connection, where the service has client affinity.
#[inline(never)]
pub fn stick<const N: usize, T: Tables<N>>(tables: &mut T, pick: &Pick<N>, key: &FlowKey<N>, netns: u32, now_ds: u32) {
    let now = Now::from_ds(now_ds);
    if pick.service.affinity_timeout_s != 0 {
        let key = AffinityKey { client: key.src, service: pick.service.id, netns };
        remember(tables, &key, pick.slot.backend, pick.backend.generation, now);
    }
}
