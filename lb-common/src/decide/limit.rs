//! How many new connections a service takes from one network of external clients: a bucket of each, refilled as time passes.

use super::rate::Pace;
use super::tables::Tables;
use crate::abi::{BucketKey, Service};
use crate::limits::{LIMITED_BYTES4, LIMITED_BYTES6};

/// Whether the client's network has had its share of new flows; if not, this one is counted.
#[inline(never)]
pub(super) fn exceeds<const N: usize, T: Tables<N>>(tables: &mut T, service: &Service, client: &[u8; N]) -> bool {
    let mut key = BucketKey { service: service.id, family: N as u32, network: [0; 8] };
    let bytes = if N == 4 { LIMITED_BYTES4 } else { LIMITED_BYTES6 };
    let mut i = 0;
    while i < bytes {
        key.network[i] = client[i];
        i += 1;
    }
    !tables.take(&key, Pace::of(service))
}
