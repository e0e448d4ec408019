//! Which slot of a service's range a new flow gets. Every scheduler takes the same few steps, however many backends there are.

use super::tables::Tables;
use crate::abi::{FlowKey, Scheduler, Service, address_tag, service_flags, tag};

/// The position in the range that serves clients inside. Attempt 0 is the scheduler's own choice; later ones look for another
/// backend, which may be the same one again. A service without slots has position 0.
///
/// What is hashed gives the same position on every node. A process that is translated at connect has no address yet, so there is nothing to hash. Its
/// connections end unseen, so there is nothing to count. Round-robin or chance decides.
#[inline(always)]
pub(super) fn position<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    key: &FlowKey<N>,
    attempt: u32,
) -> u32 {
    let count = service.slot_count;
    // A number that no scheduler has counts as random.
    match Scheduler::from_number(service.scheduler).unwrap_or(Scheduler::Random) {
        // Each attempt is a turn of its own: those that are passed over leave the others an even share.
        Scheduler::RoundRobin | Scheduler::Weighted => tables.turn(service.id).checked_rem(count).unwrap_or(0),
        Scheduler::LeastConnections if !is_process(key) => least_connections(tables, service.slot_base, count),
        Scheduler::SourceHash if !is_process(key) => hashed(key, false, attempt, count),
        Scheduler::Maglev if !is_process(key) => hashed(key, !sticks_by_hash(service), attempt, count),
        Scheduler::Random | Scheduler::LeastConnections | Scheduler::SourceHash | Scheduler::Maglev => {
            scaled(tables.random(), count)
        }
    }
}

/// The position of a hash, whatever the scheduler.
#[inline(always)]
pub(super) fn by_hash(service: &Service, hash: u32, attempt: u32) -> u32 {
    scaled(spread(hash, attempt), service.slot_count)
}

/// What first connections of a client go by under client affinity, `client` being a hash of it: that, and the present period. A period is as long as
/// a client is remembered. So the connections of one period agree, and a client that is forgotten is in another period, where the choice is free.
#[inline(always)]
pub(super) fn of_client(client: u32, timeout_s: u32, now_ds: u32) -> u32 {
    let period = (now_ds / 10).checked_div(timeout_s).unwrap_or(0);
    // Another multiplier than that of the attempts in `spread`.
    client ^ period.wrapping_mul(0x27d4_eb2f)
}

/// A number that belongs to the tuple.
#[inline(always)]
pub(super) fn of_tuple<const N: usize>(key: &FlowKey<N>) -> u32 {
    spread(tag(key), 0)
}

/// Whether client affinity is kept by the hash, so that every node keeps it alike.
#[inline(always)]
const fn sticks_by_hash(service: &Service) -> bool {
    service.flags & service_flags::DSR != 0 && service.affinity_timeout_s != 0
}

/// By the client's address, or by the whole tuple. A function of its own, for its room on the stack.
#[inline(never)]
fn hashed<const N: usize>(key: &FlowKey<N>, whole: bool, attempt: u32, count: u32) -> u32 {
    let hash = if whole { tag(key) } else { address_tag(&key.src) };
    scaled(spread(hash, attempt), count)
}

/// Of two different positions drawn, the one whose backend has fewer connections for its weight. Two draws come close to the best of
/// all, and unlike that never send everybody to the same backend.
#[inline(never)]
fn least_connections<const N: usize, T: Tables<N>>(tables: &mut T, base: u32, count: u32) -> u32 {
    let first = scaled(tables.random(), count);
    let load = load_at(tables, base.wrapping_add(first));
    let further = first.wrapping_add(1).wrapping_add(scaled(tables.random(), count.wrapping_sub(1)));
    let second = if further < count { further } else { further.wrapping_sub(count) };
    let other = load_at(tables, base.wrapping_add(second));
    // As fractions.
    if connections(other) * weight(load) < connections(load) * weight(other) { second } else { first }
}

/// Connections of the backend in a slot, with the one to come, in the upper 48 bits; its weight in the lower 16. A backend that cannot be read counts
/// as idle: the caller reads the slot again.
#[inline(always)]
fn load_at<const N: usize, T: Tables<N>>(tables: &mut T, index: u32) -> u64 {
    let Some(slot) = tables.slot(index) else { return (1 << 16) | 1 };
    let weight = tables.backend(slot.backend).map_or(1, |backend| backend.weight).max(1);
    let connections = tables.health(slot.backend, slot.backend_generation).map_or(0, |health| health.connections);
    ((u64::from(connections) + 1) << 16) | u64::from(weight)
}

#[inline(always)]
fn connections(load: u64) -> u64 {
    load >> 16
}

#[inline(always)]
fn weight(load: u64) -> u64 {
    load & 0xffff
}

/// A number below `count`, in proportion.
#[inline(always)]
fn scaled(number: u32, count: u32) -> u32 {
    ((u64::from(number) * u64::from(count)) >> 32) as u32
}

/// Another number for each attempt, every bit of which depends on every bit of `hash` (the finalizer of MurmurHash3).
#[inline(always)]
fn spread(hash: u32, attempt: u32) -> u32 {
    let mut hash = hash ^ attempt.wrapping_mul(0x9e37_79b1);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// A call of a process has no source port yet. A packet whose port is 0 is as good as one.
#[inline(always)]
fn is_process<const N: usize>(key: &FlowKey<N>) -> bool {
    key.src_port == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of different builds must agree on the backend of a tuple.
    #[test]
    fn hashes_never_change() {
        let key =
            FlowKey { src: [10, 0, 0, 1], dst: [10, 96, 0, 1], src_port: 1234, dst_port: 80, protocol: 6, pad: [0; 3] };
        assert_eq!(
            [spread(tag(&key), 0), spread(tag(&key), 1), spread(address_tag(&key.src), 0)],
            [4_248_791_282, 2_941_233_882, 4_194_510_722]
        );
    }

    #[test]
    fn every_position_is_below_the_count() {
        for number in [0, 1, u32::MAX / 2, u32::MAX] {
            for count in [0, 1, 2, 251, u32::MAX] {
                assert!(scaled(number, count) < count.max(1));
            }
        }
    }
}
