//! What the slots of a set hold: its backends once each, as often as their weights ask, or as a Maglev table.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    iter,
    net::{IpAddr, SocketAddr},
};

use super::BackendId;
use crate::model::{MAGLEV_SIZES, Scheduler};

/// So many slots that no backend of a Maglev table has 5 % more of them than its share: at least this many for each.
const MAGLEV_SLOTS_EACH: u32 = 20;
/// Slots of a weighted set: as many as the weights ask, but not more than the larger of these two. Weights that ask for more are
/// rounded, to less than half a percent.
const WEIGHTED_SLOTS: u64 = 240;
const WEIGHTED_SLOTS_EACH: u64 = 16;

/// A backend of a set: it takes new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub id: BackendId,
    pub generation: u32,
    pub address: SocketAddr,
    /// Never 0.
    pub weight: u16,
}

/// What the slots hold, as indices into `members`, which are in the order of their addresses.
///
/// It depends on addresses, ports and weights alone, so that every node comes to the same. With a limit it has at most so many slots:
/// weights are rounded, or a smaller Maglev table is taken, or each member has one slot, the first in the order as far as they go.
pub(super) fn layout(
    scheduler: Scheduler,
    maglev_size: Option<u32>,
    limit: Option<u32>,
    members: &[Member],
) -> Vec<u32> {
    let limit = limit.unwrap_or(u32::MAX);
    let once = || (0..count(members).min(limit)).collect();
    match scheduler {
        Scheduler::Weighted => {
            let shares = shares(&weights(members), limit);
            if shares.iter().sum::<u64>() > limit.into() { once() } else { weighted(&shares) }
        }
        Scheduler::Maglev => {
            let size = maglev_slots(scheduler, maglev_size, Some(limit), count(members));
            size.map_or_else(once, |size| maglev(members, size))
        }
        Scheduler::Random | Scheduler::RoundRobin | Scheduler::LeastConnections | Scheduler::SourceHash => once(),
    }
}

/// How many slots members of these weights have without a limit.
pub(super) fn size(scheduler: Scheduler, maglev_size: Option<u32>, weights: &[u16]) -> u32 {
    let members = u32::try_from(weights.len()).unwrap_or(u32::MAX);
    match scheduler {
        Scheduler::Weighted => u32::try_from(shares(weights, u32::MAX).iter().sum::<u64>()).unwrap_or(u32::MAX),
        Scheduler::Maglev => table_size(members, maglev_size, u32::MAX).unwrap_or(members),
        Scheduler::Random | Scheduler::RoundRobin | Scheduler::LeastConnections | Scheduler::SourceHash => members,
    }
}

/// How many slots [`layout`] fills where it is a Maglev table: this is known before the work is done. `None`: it is none.
pub(super) fn maglev_slots(
    scheduler: Scheduler,
    maglev_size: Option<u32>,
    limit: Option<u32>,
    members: u32,
) -> Option<u32> {
    let is_table = scheduler == Scheduler::Maglev;
    is_table.then(|| table_size(members, maglev_size, limit.unwrap_or(u32::MAX))).flatten()
}

fn count(members: &[Member]) -> u32 {
    u32::try_from(members.len()).unwrap_or(u32::MAX)
}

fn weights(members: &[Member]) -> Vec<u16> {
    members.iter().map(|member| member.weight).collect()
}

/// The size of the Maglev table of so many endpoints: the one that is asked for, or the next that holds them; below it, the largest
/// within the limit. `None`: no table, as there is no endpoint, or more of them than any table within the limit holds.
pub(super) fn table_size(endpoints: u32, asked: Option<u32>, limit: u32) -> Option<u32> {
    let [.., largest] = MAGLEV_SIZES;
    let by_count = || MAGLEV_SIZES.into_iter().find(|size| endpoints <= size / MAGLEV_SLOTS_EACH).unwrap_or(largest);
    let wanted = asked.unwrap_or_else(by_count);
    let holding = || MAGLEV_SIZES.into_iter().filter(|size| endpoints > 0 && *size >= endpoints && *size <= limit);
    holding().find(|size| *size >= wanted).or_else(|| holding().next_back())
}

/// Each as often as its share asks, as far apart as can be.
fn weighted(shares: &[u64]) -> Vec<u32> {
    // The k-th turn of a backend comes when (k + 1/2) / share of the whole has passed.
    let turns = (0..).zip(shares).flat_map(|(index, share)| (0..*share).map(move |k| (2 * k + 1, *share, index)));
    let mut turns: Vec<(u64, u64, u32)> = turns.collect();
    turns.sort_unstable_by(|(a, of_a, one), (b, of_b, other)| (a * of_b, one).cmp(&(b * of_a, other)));
    turns.into_iter().map(|(_, _, index)| index).collect()
}

/// How many slots each weight gets: never none, in proportion. With a limit that is lower than the number of weights, more than that.
fn shares(weights: &[u16], limit: u32) -> Vec<u64> {
    let count = weights.len() as u64;
    let weights = || weights.iter().map(|weight| u64::from(*weight.max(&1)));
    let common = weights().fold(0, gcd).max(1);
    let sum: u64 = weights().sum::<u64>() / common;
    // Rounding may give each of them one more.
    let room = WEIGHTED_SLOTS.max(WEIGHTED_SLOTS_EACH * count).min(u64::from(limit).saturating_sub(count).max(1));
    if sum <= room {
        return weights().map(|weight| weight / common).collect();
    }
    weights().map(|weight| ((2 * weight / common * room + sum) / (2 * sum)).max(1)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// So many looks at slots are made for each slot of a table, on the average, before the rest is given away in order. Addresses that
/// nobody chose for it need about as many as the natural logarithm of the size, at most 12; some that are chosen to prefer the same slots
/// would need as many as there are endpoints.
const LOOKS_EACH: u64 = 64;

/// The table of section 3.4 of "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI 2016): each backend has an order of
/// its own in which it prefers the slots, and in turn takes the first one that is free. With weights, a backend has a turn in as
/// many rounds as its share of the largest weight.
///
/// Costs about as many steps as there are slots, whatever the weights and the addresses.
fn maglev(members: &[Member], size: u32) -> Vec<u32> {
    const FREE: u32 = u32::MAX;
    let mut preferences: Vec<Preference> = members.iter().map(|member| Preference::new(member.address, size)).collect();
    let mut table = vec![FREE; size as usize];
    let mut looks = LOOKS_EACH * u64::from(size);
    let mut turns = turns(members).take(size as usize);
    while looks > u64::from(size) {
        let Some(index) = turns.next() else { return table };
        let preference = &mut preferences[index as usize];
        // There is a free one: every slot comes up once in `size` steps, as the size is a prime.
        let slot = loop {
            looks = looks.saturating_sub(1);
            let slot = preference.next(size) as usize;
            if table[slot] == FREE {
                break slot;
            }
        };
        table[slot] = index;
    }
    for (slot, index) in table.iter_mut().filter(|slot| **slot == FREE).zip(turns) {
        *slot = index;
    }
    table
}

/// Whose turn it is, without end. In round 0 everybody has one; turn `k` of a backend comes in round `k * largest weight / its weight`,
/// rounded down. Within a round they come in their order.
fn turns(members: &[Member]) -> Box<dyn Iterator<Item = u32>> {
    let weights: Vec<u64> = members.iter().map(|member| u64::from(member.weight.max(1))).collect();
    let largest = weights.iter().copied().max().unwrap_or(1);
    if weights.iter().all(|weight| *weight == largest) {
        return Box::new((0..count(members)).cycle());
    }
    // The next turn of each: its round, index and number.
    let mut next: BinaryHeap<Reverse<(u64, u32, u64)>> =
        (0..count(members)).map(|index| Reverse((0, index, 0))).collect();
    Box::new(iter::from_fn(move || {
        let mut first = next.peek_mut()?;
        let Reverse((_, index, number)) = *first;
        *first = Reverse(((number + 1) * largest / weights[index as usize], index, number + 1));
        Some(index)
    }))
}

/// The order in which a backend prefers the slots.
struct Preference {
    slot: u32,
    skip: u32,
}

impl Preference {
    fn new(address: SocketAddr, size: u32) -> Self {
        let below = |hash: u64, bound: u32| u32::try_from(hash % u64::from(bound)).unwrap_or_default();
        Self { slot: below(hash(address, 1), size), skip: below(hash(address, 2), size - 1) + 1 }
    }

    fn next(&mut self, size: u32) -> u32 {
        let slot = self.slot;
        self.slot = (slot + self.skip) % size;
        slot
    }
}

/// FNV-1a over address and port, then the finalizer of `SplitMix64`. It must never change: nodes of different builds share clients.
fn hash(address: SocketAddr, seed: u8) -> u64 {
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

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
