//! How many established connections each client has: counters by hashes of its address, too few to hold the addresses themselves.
//!
//! A client counts in two counters, by two hashes, and has at most as many connections as the smaller one says. Another client counts against
//! it only if they share both. The hashes have a key that no client knows, so that nobody chooses an address that shares counters with another.

use crate::abi::{V4, flow_flags, hash};
use crate::limits::CLIENT_SLOTS;

/// Counters of one family: of all connections, then of each hash.
const FAMILY: u32 = 1 + 2 * CLIENT_SLOTS;
/// Counters of both families.
pub const COUNTERS: u32 = 2 * FAMILY;

/// The counters that a connection counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// All connections of the family.
    pub all: u32,
    /// The client's.
    pub first: u32,
    pub second: u32,
}

impl Counters {
    /// The counters of all connections, of IPv4 and of IPv6.
    #[must_use]
    pub const fn families() -> [u32; 2] {
        [0, FAMILY]
    }

    /// Those of a connection with these [`flow_flags`]. An external client of IPv6 counts with its network of 64 bits, of which one host has
    /// any address that it likes.
    #[inline(always)]
    #[must_use]
    pub const fn of<const N: usize>(key: u32, client: &[u8; N], flags: u8) -> Self {
        let is_whole = N == V4 || flags & flow_flags::EXTERNAL == 0;
        let base = if N == V4 { 0 } else { FAMILY };
        Self {
            all: base,
            first: base + 1 + slot(key, 0x9e37_79b1, client, is_whole),
            second: base + 1 + CLIENT_SLOTS + slot(key, 0x85eb_ca77, client, is_whole),
        }
    }
}

/// `is_whole`: all of the address counts, not its first 64 bits alone. Of a product the upper bits depend on all others.
#[inline(always)]
const fn slot<const N: usize>(key: u32, seed: u32, client: &[u8; N], is_whole: bool) -> u32 {
    const NETWORK: usize = 8;
    let mut mixed = hash::mix_bytes(hash::mix(seed, key), client, 0, if N < NETWORK { N } else { NETWORK });
    if is_whole {
        mixed = hash::mix_bytes(mixed, client, NETWORK, N);
    }
    hash::mix(mixed, key) >> (u32::BITS - CLIENT_SLOTS.trailing_zeros())
}

/// Whether a client with so many connections has more than its share of a table that holds `all` connections and has room for `room`.
///
/// The share is as much as is free, once three quarters are taken (a dynamic threshold after Choudhury and Hahne, 1998). However many connections `k`
/// clients ask for, they leave one of every `k + 1` places free.
#[inline(always)]
#[must_use]
pub const fn exceeds(own: u32, all: u32, room: u32) -> bool {
    all > room - room / 4 && own > room.saturating_sub(all)
}
