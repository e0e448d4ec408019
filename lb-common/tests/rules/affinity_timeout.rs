//! Client affinity after its timeout: the choice is free, and until then first connections agree.

use std::collections::BTreeSet;

use super::affinity::{BACKENDS, FRONTEND, SCHEDULERS, begins, connects, from, sticky};
use lb_common::abi::{FlowKey, TCP, UDP, frontend_kind, scheduler};
use lb_common::decide::{Asker, Hook, Now, Pick, Picked, Tables as _, Wish, pick};
use lb_common::plain::Memory;
use lb_common::state::tcp_flag::ACK;

/// The timeout of [`sticky`].
const TIMEOUT_S: u64 = 600;
const CLIENTS: u16 = 800;

/// An address for each number.
fn client(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [10, 9, high, low]
}

/// Sets the clock to so many seconds before a period of the timeout ends, and the next one begins.
fn before_a_border(tables: &mut Memory, seconds: u64) {
    tables.now_ns = (5 * TIMEOUT_S - seconds) * 1_000_000_000;
}

/// Whether so many of [`CLIENTS`] moved by chance. With four backends 3/4 of them move, which is 600, give or take five standard deviations of 12.2.
fn is_free_choice(moved: usize) -> bool {
    (539..=661).contains(&moved)
}

#[test]
fn after_the_timeout_clients_choose_freely_whatever_the_scheduler() {
    for (protocol, scheduler) in
        SCHEDULERS.map(|scheduler| (TCP, scheduler)).into_iter().chain([(UDP, scheduler::RANDOM)])
    {
        let mut tables = sticky(protocol, scheduler);
        let ask = |tables: &mut Memory, port| -> Vec<u32> {
            (0..CLIENTS).map(|number| connects(tables, from(client(number), protocol, port))).collect()
        };
        let first = ask(&mut tables, 4_000);
        tables.pass_seconds(TIMEOUT_S);
        assert_eq!(ask(&mut tables, 4_001), first, "scheduler {scheduler}: within the timeout");
        tables.pass_seconds(TIMEOUT_S + 1);
        let second = ask(&mut tables, 4_002);
        let moved = first.iter().zip(&second).filter(|(before, after)| before != after).count();
        assert!(is_free_choice(moved), "protocol {protocol}, scheduler {scheduler}: {moved} of {CLIENTS} moved");
        tables.pass_seconds(1);
        assert_eq!(ask(&mut tables, 4_003), second, "scheduler {scheduler}: it stays there");
    }
}

/// One backend does not follow another in an order that many clients share.
#[test]
fn a_client_meets_every_backend_in_time() {
    for number in 0..100 {
        let mut tables = sticky(TCP, scheduler::RANDOM);
        let met: BTreeSet<u32> = (0..60)
            .map(|round| {
                tables.pass_seconds(TIMEOUT_S + 1);
                connects(&mut tables, from(client(number), TCP, 4_000 + round))
            })
            .collect();
        assert_eq!(met.len(), BACKENDS.len(), "client {number} has met {met:?}");
    }
}

#[test]
fn after_the_timeout_processes_choose_freely() {
    let mut tables = sticky(TCP, scheduler::RANDOM);
    let key = FlowKey { src: [0; 4], src_port: 0, ..from([0; 4], TCP, 0) };
    let mut ask = || -> Vec<u32> {
        tables.pass_seconds(TIMEOUT_S + 1);
        let now = Now::from_ns(tables.now_ns());
        let mut of = |netns| {
            let mut found = Pick::NONE;
            let picked = pick(&mut tables, &key, Asker::Process(0), netns, Wish::SAFE, now, &mut found);
            assert_eq!(picked, Picked::Backend);
            found.slot.backend
        };
        (0..CLIENTS).map(|netns| of(netns.into())).collect()
    };
    let (first, second) = (ask(), ask());
    let moved = first.iter().zip(&second).filter(|(before, after)| before != after).count();
    assert!(is_free_choice(moved), "{moved} of {CLIENTS} moved");
}

/// A remembered client notices nothing of the end of a period.
#[test]
fn a_period_ends_for_no_client_that_is_remembered() {
    let mut tables = sticky(TCP, scheduler::RANDOM);
    before_a_border(&mut tables, 1);
    for number in 0..100 {
        connects(&mut tables, from(client(number), TCP, 4_000));
    }
    let before = tables.affinity.clone();
    tables.pass_seconds(2);
    for number in 0..100 {
        connects(&mut tables, from(client(number), TCP, 4_001));
    }
    for (key, affinity) in &tables.affinity {
        assert_eq!(affinity.backend, before[key].backend, "{key:?}");
    }
}

/// kube-proxy leaves the choice of each such connection to chance, until one of them is noted.
#[test]
fn handshakes_that_a_border_parts_reach_two_backends_at_most_until_one_is_established() {
    let mut parted = 0;
    for number in 0..100 {
        let mut tables = sticky(TCP, scheduler::RANDOM);
        before_a_border(&mut tables, 1);
        let mut met = BTreeSet::new();
        for port in 4_000..4_032 {
            if port == 4_016 {
                tables.pass_seconds(1);
            }
            met.insert(begins(&mut tables, from(client(number), TCP, port), Hook::POD_IN).backend);
        }
        assert!(met.len() <= 2, "client {number} meets {met:?}");
        parted += usize::from(met.len() == 2);
        let noted = connects(&mut tables, from(client(number), TCP, 4_032));
        for port in 4_033..4_040 {
            assert_eq!(connects(&mut tables, from(client(number), TCP, port)), noted, "client {number}");
        }
    }
    assert!(parted > 0, "a border parts some");
}

/// Under a flood, the entries of a handshake may be lost: its acknowledgement finds the backend once more, also across a border.
#[test]
fn a_border_ends_no_handshake_under_a_flood() {
    for number in 0..100 {
        let mut tables = sticky(TCP, scheduler::RANDOM);
        tables.edit(FRONTEND, |service| service.kind = frontend_kind::LOAD_BALANCER);
        before_a_border(&mut tables, 1);
        tables.flood_until_s = u32::MAX;
        let key = from([198, 51, 100, number], TCP, 4_000);
        let sent = begins(&mut tables, key, Hook::NODE_IN);
        tables.half_open.clear();
        tables.pass_seconds(2);
        assert_eq!(tables.ask(key, ACK, Hook::NODE_IN).backend, sent.backend, "client {number}");
    }
}
