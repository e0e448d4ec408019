//! Client affinity: the backend that a client had last, while it is remembered.

use super::{Now, Tables};
use crate::abi::{Affinity, AffinityKey, Service, affinity_tag};

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
