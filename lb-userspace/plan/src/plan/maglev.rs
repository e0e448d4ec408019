//! The table of section 3.4 of "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI 2016). Each backend has an order of its own in
//! which it prefers the slots. Backends select round-robin, and each takes the first slot that is free. With weights, a backend selects in as many
//! rounds as its share of the largest weight.
//!
//! A table costs about as many steps as it has slots, whatever the weights and the addresses. It is computed in bounded parts.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::{IpAddr, SocketAddr},
};

/// So many looks at slots are made for each slot of a table, on the average, before the rest is given away in order. Addresses that
/// nobody chose for it need about as many as the natural logarithm of the size, at most 12; some that are chosen to prefer the same slots
/// would need as many as there are endpoints.
const LOOKS_EACH: u64 = 64;
const FREE: u32 = u32::MAX;

/// Address and weight (never 0) of a backend.
pub(super) type Weighed = (SocketAddr, u16);

/// A table under way.
#[derive(Clone, Debug)]
pub(super) struct Maglev {
    /// Indices of backends.
    slots: Vec<u32>,
    preferences: Vec<Preference>,
    round_robin: RoundRobin,
    /// The backend that looks for its slot.
    searching: Option<u32>,
    free: u32,
    looks_left: u64,
}

impl Maglev {
    /// `size`: a prime, so that every slot comes up once in as many steps of each backend.
    pub fn new(backends: &[Weighed], size: u32) -> Self {
        Self {
            slots: vec![FREE; size as usize],
            preferences: backends.iter().map(|(address, _)| Preference::new(*address, size)).collect(),
            round_robin: RoundRobin::new(backends),
            searching: None,
            free: size,
            looks_left: LOOKS_EACH * u64::from(size),
        }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Goes on with up to `looks` looks at slots, and takes those off that were made. The table, if it is finished.
    pub fn go_on(&mut self, looks: &mut u64) -> Option<Vec<u32>> {
        let size = self.size();
        while self.free > 0 && (self.searching.is_some() || self.looks_left > u64::from(size)) {
            let index = self.searching.take().or_else(|| self.round_robin.next())?;
            let preference = &mut self.preferences[index as usize];
            let slot = loop {
                if *looks == 0 {
                    self.searching = Some(index);
                    return None;
                }
                *looks -= 1;
                self.looks_left = self.looks_left.saturating_sub(1);
                let slot = preference.next(size) as usize;
                if self.slots[slot] == FREE {
                    break slot;
                }
            };
            self.slots[slot] = index;
            self.free -= 1;
        }
        let mut slots = std::mem::take(&mut self.slots);
        for (slot, index) in slots.iter_mut().filter(|slot| **slot == FREE).zip(&mut self.round_robin) {
            *slot = index;
        }
        Some(slots)
    }
}

/// The next backend, without end. In round 0 each backend comes once; the `k`-th time of a backend is in round
/// `k * largest weight / its weight`, rounded down. Within a round they come in their order.
#[derive(Clone, Debug)]
pub(super) struct RoundRobin {
    weights: Vec<u64>,
    largest: u64,
    order: Order,
}

#[derive(Clone, Debug)]
enum Order {
    /// All weights are equal: the next index.
    Even(u32),
    /// The next time of each: its round, index and number.
    Weighed(BinaryHeap<Reverse<(u64, u32, u64)>>),
}

impl RoundRobin {
    pub fn new(backends: &[Weighed]) -> Self {
        let weights: Vec<u64> = backends.iter().map(|(_, weight)| u64::from((*weight).max(1))).collect();
        let largest = weights.iter().copied().max().unwrap_or(1);
        let order = if weights.iter().all(|weight| *weight == largest) {
            Order::Even(0)
        } else {
            Order::Weighed((0..).zip(&weights).map(|(index, _)| Reverse((0, index, 0))).collect())
        };
        Self { weights, largest, order }
    }
}

impl Iterator for RoundRobin {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match &mut self.order {
            Order::Even(next) => {
                let index = *next;
                *next = if index as usize + 1 < self.weights.len() { index + 1 } else { 0 };
                Some(index)
            }
            Order::Weighed(next) => {
                let mut first = next.peek_mut()?;
                let Reverse((_, index, number)) = *first;
                let round = (number + 1) * self.largest / self.weights[index as usize];
                *first = Reverse((round, index, number + 1));
                Some(index)
            }
        }
    }
}

/// The order in which a backend prefers the slots.
#[derive(Clone, Debug)]
pub(super) struct Preference {
    slot: u32,
    skip: u32,
}

impl Preference {
    pub fn new(address: SocketAddr, size: u32) -> Self {
        let below = |hash: u64, bound: u32| u32::try_from(hash % u64::from(bound)).unwrap_or_default();
        Self { slot: below(hash(address, 1), size), skip: below(hash(address, 2), size - 1) + 1 }
    }

    pub fn next(&mut self, size: u32) -> u32 {
        let slot = self.slot;
        self.slot = (slot + self.skip) % size;
        slot
    }
}

/// FNV-1a over address and port, then the finalizer of `SplitMix64`. It must never change: nodes of different builds share clients.
pub(super) fn hash(address: SocketAddr, seed: u8) -> u64 {
    let octets = match address.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let bytes = [seed].into_iter().chain(octets).chain(address.port().to_be_bytes());
    let fnv =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
