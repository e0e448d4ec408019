//! How each scheduler spreads new flows, and that it changes nothing for those that are there.

use std::collections::BTreeMap;

use lb_common::abi::{FlowKey, ServiceKey, TCP, scheduler};
use lb_common::decide::{Action, Hook, Tables};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, SYN};
use proptest::prelude::*;

const FRONTEND: ServiceKey<4> = ServiceKey { address: [10, 96, 0, 10], port: 80, protocol: TCP, pad: 0 };

fn serving(scheduler: u8, backends: u8) -> Memory {
    let mut tables = Memory::default();
    let addresses: Vec<[u8; 4]> = (1..=backends).map(|last| [10, 0, 1, last]).collect();
    tables.serve(1, 0, FRONTEND, &addresses, 8080);
    set_scheduler(&mut tables, scheduler);
    tables
}

fn set_scheduler(tables: &mut Memory, scheduler: u8) {
    tables.services.get_mut(&FRONTEND).unwrap().scheduler = scheduler;
}

fn from(client: [u8; 4], port: u16) -> FlowKey<4> {
    tuple(TCP, (client, port), (FRONTEND.address, 80))
}

/// Last byte of the backend's address that a new connection is sent to.
fn backend(tables: &mut Memory, key: FlowKey<4>) -> u8 {
    let verdict = tables.ask(key, SYN, Hook::POD_IN);
    assert_eq!(verdict.action, Action::ToBackend, "{verdict:?}");
    verdict.address[3]
}

fn spread(tables: &mut Memory, keys: impl Iterator<Item = FlowKey<4>>) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(backend(tables, key)).or_default() += 1;
    }
    counts
}

fn of_one_client(count: u16) -> impl Iterator<Item = FlowKey<4>> {
    (0..count).map(|port| from([10, 0, 9, 9], 10_000 + port))
}

fn of_many_clients(count: u16) -> impl Iterator<Item = FlowKey<4>> {
    (0..count).map(|client| from([10, 7, (client >> 8) as u8, (client & 0xff) as u8], 40_000))
}

#[test]
fn round_robin_takes_one_after_the_other() {
    let mut tables = serving(scheduler::ROUND_ROBIN, 3);
    let order: Vec<u8> = of_one_client(7).map(|key| backend(&mut tables, key)).collect();
    assert_eq!(order, [1, 2, 3, 1, 2, 3, 1]);
}

#[test]
fn weighted_takes_the_slots_as_they_are_laid_out() {
    let mut tables = serving(scheduler::WEIGHTED, 3);
    // Weights 2, 1, 1.
    let extra = lb_common::abi::Slot { backend: 1, ..tables.slots[&2] };
    tables.slots.insert(3, tables.slots[&2]);
    tables.slots.insert(2, extra);
    tables.edit(FRONTEND, |service| service.slot_count = 4);
    let order: Vec<u8> = of_one_client(8).map(|key| backend(&mut tables, key)).collect();
    assert_eq!(order, [1, 2, 1, 3, 1, 2, 1, 3]);
}

#[test]
fn random_and_the_hashes_spread_evenly() {
    for which in [scheduler::RANDOM, scheduler::SOURCE_HASH, scheduler::MAGLEV] {
        let counts = spread(&mut serving(which, 4), of_many_clients(8_000));
        assert!(counts.values().all(|count| (1_800..2_200).contains(count)), "scheduler {which}: {counts:?}");
    }
    let counts = spread(&mut serving(scheduler::MAGLEV, 4), of_one_client(8_000));
    assert!(counts.values().all(|count| (1_800..2_200).contains(count)), "ports alone: {counts:?}");
}

#[test]
fn source_hash_keeps_a_client_on_one_backend_and_maglev_a_tuple() {
    let mut tables = serving(scheduler::SOURCE_HASH, 5);
    assert_eq!(spread(&mut tables, of_one_client(500)).len(), 1);
    // Another node, which has seen nothing of the first one.
    let (mut one, mut other) = (serving(scheduler::MAGLEV, 5), serving(scheduler::MAGLEV, 5));
    other.seed = 77;
    for key in of_one_client(500).chain(of_many_clients(500)) {
        assert_eq!(backend(&mut one, key), backend(&mut other, key));
    }
}

#[test]
fn least_connections_levels_what_is_uneven() {
    let mut tables = serving(scheduler::LEAST_CONNECTIONS, 4);
    tables.count_connection(1, 1, 600);
    let mut counts = BTreeMap::new();
    for key in of_one_client(1_000) {
        let to = backend(&mut tables, key);
        tables.count_connection(u32::from(to), 1, 1);
        *counts.entry(to).or_insert(0) += 1;
    }
    assert_eq!(counts.get(&1), None, "it has more than every other one the whole time: {counts:?}");
    assert!(counts.values().all(|count| (323..344).contains(count)), "{counts:?}");
}

#[test]
fn least_connections_weighs() {
    let mut tables = serving(scheduler::LEAST_CONNECTIONS, 2);
    tables.backends.get_mut(&1).unwrap().weight = 3;
    let mut counts = [0_u32; 3];
    for key in of_one_client(4_000) {
        let to = backend(&mut tables, key);
        tables.count_connection(u32::from(to), 1, 1);
        counts[usize::from(to)] += 1;
    }
    assert!((2_995..3_005).contains(&counts[1]), "{counts:?}");
}

/// Counts of an earlier backend of the same id are no load.
#[test]
fn least_connections_of_an_earlier_generation_do_not_count() {
    let mut tables = serving(scheduler::LEAST_CONNECTIONS, 2);
    for key in [1, 2] {
        tables.count_connection(key, 9, 1_000 * i32::try_from(key).unwrap());
    }
    let counts = spread(&mut tables, of_one_client(1_000));
    assert!(counts.values().all(|count| (400..600).contains(count)), "{counts:?}");
}

/// A process that is translated at connect has no address to hash: the choice must not be the same one for all.
#[test]
fn processes_are_spread_by_every_scheduler() {
    for which in [scheduler::SOURCE_HASH, scheduler::MAGLEV] {
        let mut tables = serving(which, 4);
        let mut counts = BTreeMap::new();
        for _ in 0..400 {
            tables.flows.clear();
            tables.half_open.clear();
            *counts.entry(backend(&mut tables, from([0; 4], 0))).or_insert(0) += 1;
        }
        assert!(counts.len() == 4 && counts.values().all(|count| (60..140).contains(count)), "{counts:?}");
    }
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 256))]

    /// Whatever the scheduler is changed to, a connection stays where it is, and a new one always finds a backend.
    #[test]
    fn a_change_of_scheduler_moves_no_connection(
        steps in prop::collection::vec((0_u8..8, 0_u16..50, 1_u8..9), 1..200),
    ) {
        let mut tables = serving(scheduler::RANDOM, 3);
        let mut open: BTreeMap<u16, [u8; 4]> = BTreeMap::new();
        for (which, port, backends) in steps {
            let addresses: Vec<[u8; 4]> = (1..=backends).map(|last| [10, 0, 1, last]).collect();
            // As the agent does: the same backends in a new range, all that were there before kept.
            let known = tables.backends.clone();
            tables.serve(1, 0, FRONTEND, &addresses, 8080);
            tables.backends.extend(known);
            set_scheduler(&mut tables, which);
            tables.pass_seconds(1);
            let key = from([10, 0, 9, 9], 1_000 + port);
            if let Some(at) = open.get(&port) {
                let verdict = tables.ask(key, ACK, Hook::POD_IN);
                prop_assert_eq!((verdict.outcome, &verdict.address), (Outcome::Forwarded, at));
            } else {
                let syn = tables.ask(key, SYN, Hook::POD_IN);
                prop_assert_eq!(syn.action, Action::ToBackend);
                prop_assert!(syn.address[3] <= backends);
                let reply = FlowKey {
                    src: syn.address, dst: key.src, src_port: syn.port, dst_port: syn.client_port, ..key
                };
                tables.ask(reply, SYN | ACK, Hook::POD_OUT);
                prop_assert_eq!(tables.ask(key, ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
                open.insert(port, syn.address);
            }
        }
    }
}
