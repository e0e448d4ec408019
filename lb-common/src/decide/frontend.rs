//! The look-up of a frontend, consistent even while the agent replaces the service.

use super::tables::Tables;
use crate::abi::{FlowKey, Service, ServiceKey, seal};
use crate::limits::SERVICE_LOOKUPS;

/// The frontend that a packet of this tuple asks for.
#[inline(always)]
pub(super) const fn asked<const N: usize>(key: &FlowKey<N>) -> ServiceKey<N> {
    ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 }
}

/// Copies a frontend to `into`. `false`: there is none, or the agent is writing it.
#[inline(always)]
pub(super) fn frontend<const N: usize, T: Tables<N>>(tables: &mut T, key: &ServiceKey<N>, into: &mut Service) -> bool {
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(key, into) {
            return false;
        }
        if is_whole(key, into) {
            return true;
        }
    }
    false
}

/// Whether the value belongs to the key and was read in one piece.
#[inline(always)]
pub(super) fn is_whole<const N: usize>(key: &ServiceKey<N>, service: &Service) -> bool {
    service.seal == seal(key, service)
}
