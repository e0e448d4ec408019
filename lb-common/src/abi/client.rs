//! Clients: affinity, source ranges, rate limits.

use super::hash::{mix, mix_address};
use super::sizes::sizes;

/// Key of `affinity4` / `affinity6`: a client of a service port with client affinity.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffinityKey<const N: usize> {
    /// The client; zeroes for processes of a network namespace, whose address is not known at connect.
    pub client: [u8; N],
    /// Id of the service port.
    pub service: u32,
    /// Processes: low half of the cookie of their network namespace. Packets: 0.
    pub netns: u32,
}

/// Value of `affinity4` / `affinity6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// [`affinity_tag`] of the key: LRU elements are recycled while a reader may hold them.
    pub tag: u32,
    pub backend: u32,
    /// The backend's generation.
    pub generation: u32,
    /// When the last connection was established (processes: made), tenths of a second of `CLOCK_MONOTONIC`.
    pub seen_ds: u32,
}

/// A number that tells one client's affinity from another's.
#[inline(always)]
pub fn affinity_tag<const N: usize>(key: &AffinityKey<N>) -> u32 {
    client_tag(&key.client, key.service, key.netns)
}

/// [`affinity_tag`] of a key with these fields.
#[inline(always)]
pub fn client_tag<const N: usize>(client: &[u8; N], service: u32, netns: u32) -> u32 {
    let hash = mix_address(0xc2b2_ae35, client);
    mix(mix(hash, service), netns)
}

/// Data of a key of `sources4` / `sources6` (longest prefix match): a client that a service port admits.
///
/// The prefix length counts the bits of both fields: 32 for the service, which must match whole, and those of the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceKey<const N: usize> {
    /// Id of the service port.
    pub service: u32,
    /// Network address; bits beyond the prefix are zero.
    pub address: [u8; N],
}

/// Bits of [`SourceKey::service`].
pub const SOURCE_SERVICE_BITS: u32 = 32;

/// Value of `sources4` / `sources6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Id of the service port, once more.
    pub service: u32,
}

/// Key of `buckets`: a network of external clients, and the service port that it asks for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    /// Id of the service port.
    pub service: u32,
    /// Bytes of an address: 4 or 16.
    pub family: u32,
    /// The first [`crate::limits::LIMITED_BYTES4`] or [`crate::limits::LIMITED_BYTES6`] bytes of the address, then zeroes.
    pub network: [u8; 8],
}

/// Value of `buckets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// When the next new flow is due, nanoseconds of `CLOCK_MONOTONIC`: it may come earlier by what the burst allows.
    pub due_ns: u64,
}

sizes! {
    AffinityKey<N> = 12 | 24,
    Affinity = 16,
    SourceKey<N> = 8 | 20,
    Source = 4,
    BucketKey = 16,
    Bucket = 8,
}
