//! Which slot of a service's range a new flow gets.

use super::Tables;
use crate::abi::{FlowKey, Service};

/// The position in the range that serves clients inside. Attempt 0 is the scheduler's own choice; later ones look for another
/// backend.
#[inline(always)]
pub(super) fn position<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    _key: &FlowKey<N>,
    _attempt: u32,
) -> u32 {
    ((u64::from(tables.random()) * u64::from(service.slot_count)) >> 32) as u32
}
