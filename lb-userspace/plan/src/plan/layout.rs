//! What the slots of a set hold: its backends once each, as often as their weights ask, or as a Maglev table.

use std::net::SocketAddr;

use super::BackendId;
use lb_model::{MAGLEV_SIZES, Scheduler};

/// So many slots that no backend of a Maglev table has 5 % more of them than its share: at least this many for each.
const MAGLEV_SLOTS_EACH: u32 = 20;
/// Slots of a weighted set: as many as the weights ask, but not more than the larger of these two. Weights that ask for more are
/// rounded to whole slots, never to none.
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

/// What the slots hold, as indices into `members`, which are in the order of their addresses; `None`: `maglev` has not finished the table.
///
/// It depends on addresses, ports and weights alone, so that every node comes to the same. With a limit it has at most so many slots. Weights are
/// rounded; or a smaller Maglev table is taken; or each member has one slot, the first in the order as far as they go.
pub(super) fn layout(
    scheduler: Scheduler,
    maglev_size: Option<u32>,
    limit: Option<u32>,
    members: &[Member],
    maglev: impl FnOnce(u32) -> Option<Vec<u32>>,
) -> Option<Vec<u32>> {
    let limit = limit.unwrap_or(u32::MAX);
    let once = || (0..count(members).min(limit)).collect();
    match scheduler {
        Scheduler::Weighted => {
            let shares = shares(&weights(members), limit);
            Some(if shares.iter().sum::<u64>() > limit.into() { once() } else { weighted(&shares) })
        }
        Scheduler::Maglev => {
            let size = maglev_slots(scheduler, maglev_size, Some(limit), count(members));
            size.map_or_else(|| Some(once()), maglev)
        }
        Scheduler::Random | Scheduler::RoundRobin | Scheduler::LeastConnections | Scheduler::SourceHash => Some(once()),
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
    let positions = (0..).zip(shares).flat_map(|(index, share)| (0..*share).map(move |k| (2 * k + 1, *share, index)));
    let mut positions: Vec<(u64, u64, u32)> = positions.collect();
    positions.sort_unstable_by(|(a, of_a, one), (b, of_b, other)| (a * of_b, one).cmp(&(b * of_a, other)));
    positions.into_iter().map(|(_, _, index)| index).collect()
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

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
