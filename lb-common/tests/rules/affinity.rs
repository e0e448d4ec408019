//! Client affinity: until when a backend is remembered, and when it no longer counts.

use std::collections::BTreeSet;

use lb_common::abi::{
    AffinityKey, Backend, FlowKey, Service, ServiceKey, TCP, UDP, backend_flags as flags, backend_state, frontend_kind,
    scheduler, service_flags,
};
use lb_common::decide::{
    Asker, Hook, Now, Packet, Pick, Picked, Step, Tables, Verdict, Wish, Work, allocate, begin, holds, pick, recall,
    remember, select, stick,
};
use lb_common::limits::UDP_ANSWER_S;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

pub(super) const FRONTEND: ServiceKey<4> = ServiceKey { address: [10, 96, 0, 10], port: 80, protocol: TCP, pad: 0 };
const CLIENT: AffinityKey<4> = AffinityKey { client: [10, 0, 9, 9], service: 1, netns: 0 };

fn serving(timeout_s: u32) -> (Memory, Service) {
    let mut tables = Memory::default();
    tables.serve(1, 0, FRONTEND, &[[10, 0, 1, 1], [10, 0, 1, 2]], 8080);
    let service = tables.services.get_mut(&FRONTEND).unwrap();
    service.affinity_timeout_s = timeout_s;
    let service = *service;
    (tables, service)
}

fn now(tables: &mut Memory) -> Now {
    Now::from_ns(tables.now_ns())
}

#[test]
fn a_backend_is_remembered_for_exactly_its_time_from_the_last_connection() {
    let (mut tables, service) = serving(30);
    let begin = now(&mut tables);
    remember(&mut tables, &CLIENT, 2, 1, begin);
    for (later_ds, known) in [(0, true), (299, true), (300, true), (301, false), (3_000, false)] {
        let at = Now { s: begin.s + later_ds / 10, ds: begin.ds + later_ds };
        assert_eq!(recall(&mut tables, &service, &CLIENT, at).is_some(), known, "after {later_ds} tenths");
    }
    // Another CPU may have written a later time.
    let before = Now { s: begin.s, ds: begin.ds - 1 };
    assert!(recall(&mut tables, &service, &CLIENT, before).is_some());
    // Each new connection begins anew.
    tables.pass_seconds(20);
    let refreshed = now(&mut tables);
    remember(&mut tables, &CLIENT, 2, 1, refreshed);
    tables.pass_seconds(30);
    let at = now(&mut tables);
    assert_eq!(recall(&mut tables, &service, &CLIENT, at).map(|affinity| affinity.backend), Some(2));
}

#[test]
fn clients_and_service_ports_do_not_mix() {
    let (mut tables, service) = serving(30);
    let now = now(&mut tables);
    remember(&mut tables, &CLIENT, 2, 1, now);
    for other in [
        AffinityKey { client: [10, 0, 9, 8], ..CLIENT },
        AffinityKey { service: 2, ..CLIENT },
        AffinityKey { netns: 1, ..CLIENT },
    ] {
        assert_eq!(recall(&mut tables, &service, &other, now), None, "{other:?}");
    }
    // A recycled element: the value is another client's.
    let value = tables.affinity[&CLIENT];
    let other = AffinityKey { client: [10, 0, 9, 7], ..CLIENT };
    tables.affinity.insert(other, value);
    assert_eq!(recall(&mut tables, &service, &other, now), None);
}

#[test]
fn a_backend_counts_while_it_takes_new_flows_of_the_clients_set() {
    let (mut tables, service) = serving(30);
    let now = now(&mut tables);
    remember(&mut tables, &CLIENT, 1, 1, now);
    let affinity = recall(&mut tables, &service, &CLIENT, now).unwrap();
    let in_cluster = Backend { flags: flags::SERVING | flags::IN_CLUSTER_SET, ..tables.backends[&1] };
    let local = Service { flags: service_flags::INSIDE_LOCAL, ..service };
    assert!(holds(&affinity, &service, &in_cluster, now));
    let last_resort = Backend { state: backend_state::TERMINATING, deadline_ds: now.ds + 1, ..in_cluster };
    assert!(holds(&affinity, &service, &last_resort, now), "none is ready");
    for (why, service, backend) in [
        ("out of the set by hints, or no longer ready", service, Backend { flags: flags::SERVING, ..in_cluster }),
        ("only this node's now", local, in_cluster),
        ("of this node's set alone", service, Backend { flags: flags::IN_LOCAL_SET, ..in_cluster }),
        ("its checks fail", service, Backend { flags: in_cluster.flags | flags::UNHEALTHY, ..in_cluster }),
        ("another pod", service, Backend { generation: 2, ..in_cluster }),
        ("another service's", service, Backend { service: 2, ..in_cluster }),
        ("its deadline has passed", service, Backend { deadline_ds: now.ds, ..in_cluster }),
        ("gone", service, Backend { state: backend_state::GONE, ..in_cluster }),
    ] {
        assert!(!holds(&affinity, &service, &backend, now), "{why}");
    }
    let both = Backend { flags: flags::IN_CLUSTER_SET | flags::IN_LOCAL_SET, ..in_cluster };
    assert!(holds(&affinity, &local, &both, now) && holds(&affinity, &service, &both, now));
}

/// Without affinity nobody is remembered.
#[test]
fn a_service_without_affinity_remembers_nobody() {
    let (mut tables, _) = serving(0);
    let key = tuple(TCP, (CLIENT.client, 4_000), (FRONTEND.address, 80));
    tables.ask(key, SYN, Hook::POD_IN);
    assert!(tables.affinity.is_empty());
}

/// Whether an external client comes back to each backend that it is remembered with.
fn comes_back_from_outside(policy: u8, sets: u8) -> bool {
    let mut tables = Memory::default();
    tables.serve(1, 0, FRONTEND, &[[10, 0, 1, 1], [10, 0, 1, 2], [10, 0, 1, 3], [10, 0, 1, 4]], 8080);
    tables.backends.values_mut().for_each(|backend| backend.flags = flags::SERVING | flags::LOCAL | sets);
    tables.edit(FRONTEND, |service| {
        *service = Service { kind: frontend_kind::LOAD_BALANCER, flags: policy, affinity_timeout_s: 30, ..*service }
    });
    let now = now(&mut tables);
    (1..=4_u16).all(|backend| {
        let key = from([198, 51, 100, 7], TCP, 4_000 + backend);
        remember(&mut tables, &AffinityKey { client: key.src, ..CLIENT }, backend.into(), 1, now);
        tables.ask(key, SYN, Hook::NODE_IN).backend == backend.into()
    })
}

#[test]
fn the_set_of_clients_outside_says_whether_an_affinity_of_theirs_holds() {
    for (policy, set, holds) in [
        (0, flags::IN_CLUSTER_SET, true),
        (0, flags::IN_LOCAL_SET, false),
        (service_flags::OUTSIDE_LOCAL, flags::IN_LOCAL_SET, true),
        (service_flags::OUTSIDE_LOCAL, flags::IN_CLUSTER_SET, false),
        // The policy for clients inside is none of theirs.
        (service_flags::INSIDE_LOCAL, flags::IN_CLUSTER_SET, true),
        (service_flags::INSIDE_LOCAL, flags::IN_LOCAL_SET, false),
    ] {
        assert_eq!(comes_back_from_outside(policy, set), holds, "policy {policy}, set {set}");
    }
}

pub(super) const BACKENDS: [[u8; 4]; 4] = [[10, 0, 1, 1], [10, 0, 1, 2], [10, 0, 1, 3], [10, 0, 1, 4]];
pub(super) const SCHEDULERS: [u8; 6] = [
    scheduler::RANDOM,
    scheduler::ROUND_ROBIN,
    scheduler::WEIGHTED,
    scheduler::LEAST_CONNECTIONS,
    scheduler::SOURCE_HASH,
    scheduler::MAGLEV,
];

/// A service of this protocol with four backends and client affinity.
pub(super) fn sticky(protocol: u8, scheduler: u8) -> Memory {
    let mut tables = Memory::default();
    let frontend = ServiceKey { protocol, ..FRONTEND };
    tables.serve(1, 0, frontend, &BACKENDS, 8080);
    tables.edit(frontend, |service| *service = Service { affinity_timeout_s: 600, scheduler, ..*service });
    tables
}

pub(super) fn from(client: [u8; 4], protocol: u8, src_port: u16) -> FlowKey<4> {
    tuple(protocol, (client, src_port), (FRONTEND.address, 80))
}

pub(super) fn begins(tables: &mut Memory, key: FlowKey<4>, hook: Hook) -> Verdict<4> {
    tables.ask(key, if key.protocol == TCP { SYN } else { 0 }, hook)
}

/// The backend's answer passes on.
fn answers(tables: &mut Memory, key: FlowKey<4>, sent: &Verdict<4>) {
    let (src, dst) = (sent.address, sent.client);
    let (src_port, dst_port) = (sent.port, sent.client_port);
    let answer = FlowKey { src, dst, src_port, dst_port, ..key };
    tables.ask(answer, if key.protocol == TCP { SYN | ACK } else { 0 }, Hook::POD_OUT);
}

/// A whole connection; its backend.
pub(super) fn connects(tables: &mut Memory, key: FlowKey<4>) -> u32 {
    let sent = begins(tables, key, Hook::POD_IN);
    answers(tables, key, &sent);
    if key.protocol == TCP {
        tables.ask(key, ACK, Hook::POD_IN);
    }
    sent.backend
}

/// Each is selected for before any is written, as on as many CPUs.
#[test]
fn first_connections_that_a_client_makes_at_once_agree_whatever_the_scheduler() {
    for scheduler in SCHEDULERS {
        let mut tables = sticky(TCP, scheduler);
        let mut met = BTreeSet::new();
        for client in 0..40 {
            let keys = (4_000..4_032).map(|port| from([10, 0, 9, client], TCP, port));
            let mut all: Vec<Work<4>> = keys.map(|key| Work::new(Packet::new(key, SYN))).collect();
            for work in &mut all {
                let step = begin(&mut tables, work, Hook::POD_IN);
                assert_eq!(select(&mut tables, work, Hook::POD_IN, step), Step::Allocate);
            }
            for work in &mut all {
                assert_eq!(allocate(&mut tables, work, Hook::POD_IN, Step::Allocate), Step::Decided);
            }
            let backends: BTreeSet<u32> = all.iter().map(|work| work.verdict.backend).collect();
            assert_eq!(backends.len(), 1, "scheduler {scheduler}, client {client}");
            met.extend(backends);
        }
        assert_eq!(met.len(), BACKENDS.len(), "scheduler {scheduler}: clients share the backends");
    }
}

#[test]
fn first_connections_that_processes_make_at_once_agree() {
    for scheduler in SCHEDULERS {
        let mut met = BTreeSet::new();
        for netns in 0..40 {
            let mut tables = sticky(TCP, scheduler);
            let key = FlowKey { src: [0; 4], src_port: 0, ..from([0; 4], TCP, 0) };
            let now = now(&mut tables);
            let mut backend = || {
                let mut found = Pick::NONE;
                let picked = pick(&mut tables, &key, Asker::Process(0), netns, Wish::SAFE, now, &mut found);
                assert_eq!(picked, Picked::Backend);
                found.slot.backend
            };
            let backends: BTreeSet<u32> = (0..32).map(|_| backend()).collect();
            assert_eq!(backends.len(), 1, "scheduler {scheduler}");
            met.extend(backends);
        }
        assert_eq!(met.len(), BACKENDS.len(), "scheduler {scheduler}: network namespaces share the backends");
    }
}

/// No hook sees whether the backend answers a process: it is remembered at once.
#[test]
fn a_process_is_remembered_when_it_connects_where_the_service_has_affinity() {
    for affinity_timeout_s in [0, 600] {
        let mut tables = sticky(TCP, scheduler::RANDOM);
        tables.edit(FRONTEND, |service| service.affinity_timeout_s = affinity_timeout_s);
        let key = FlowKey { src: [0; 4], src_port: 0, ..from([0; 4], TCP, 0) };
        let (at, netns) = (now(&mut tables), 7);
        let mut found = Pick::NONE;
        assert_eq!(pick(&mut tables, &key, Asker::Process(0), netns, Wish::SAFE, at, &mut found), Picked::Backend);
        stick(&mut tables, &found, &key, netns, at.ds);
        let of_namespace = AffinityKey { client: [0; 4], service: 1, netns };
        let remembered = tables.affinity.get(&of_namespace).map(|affinity| affinity.backend);
        assert_eq!(remembered, (affinity_timeout_s != 0).then_some(found.slot.backend), "for {affinity_timeout_s} s");
        assert_eq!(tables.affinity.len(), usize::from(affinity_timeout_s != 0), "nobody else is remembered");
    }
}

/// A flooding client completes no handshake.
#[test]
fn only_an_established_connection_is_remembered() {
    let key = from([10, 0, 9, 9], TCP, 4_000);
    let mut tables = sticky(TCP, scheduler::RANDOM);
    let sent = begins(&mut tables, key, Hook::POD_IN);
    answers(&mut tables, key, &sent);
    assert!(tables.affinity.is_empty(), "an answer shows nothing of the client");
    tables.ask(key, ACK, Hook::POD_IN);
    assert_eq!(tables.affinity[&AffinityKey { client: key.src, service: 1, netns: 0 }].backend, sent.backend);

    let key = FlowKey { protocol: UDP, ..key };
    let mut tables = sticky(UDP, scheduler::RANDOM);
    let sent = begins(&mut tables, key, Hook::POD_IN);
    assert!(tables.affinity.is_empty());
    answers(&mut tables, key, &sent);
    assert_eq!(tables.affinity.values().next().unwrap().backend, sent.backend);
}

/// Their entries would take the room of clients of services that have affinity.
#[test]
fn connections_of_a_service_without_affinity_are_not_remembered() {
    for protocol in [TCP, UDP] {
        let mut tables = sticky(protocol, scheduler::RANDOM);
        let frontend = ServiceKey { protocol, ..FRONTEND };
        tables.edit(frontend, |service| service.affinity_timeout_s = 0);
        let backend = connects(&mut tables, from([10, 0, 9, 9], protocol, 4_000));
        assert_ne!(backend, 0, "it is connected");
        assert!(tables.affinity.is_empty(), "protocol {protocol}");
    }
}

#[test]
fn a_syn_does_not_begin_the_time_anew() {
    let mut tables = sticky(TCP, scheduler::RANDOM);
    connects(&mut tables, from([10, 0, 9, 9], TCP, 4_000));
    let before = tables.affinity.clone();
    tables.pass_seconds(30);
    begins(&mut tables, from([10, 0, 9, 9], TCP, 4_001), Hook::POD_IN);
    assert_eq!(tables.affinity, before);
    connects(&mut tables, from([10, 0, 9, 9], TCP, 4_002));
    assert_ne!(tables.affinity, before);
}

/// What other clients have met is no matter of a client whose own connections can leave the backend.
#[test]
fn a_client_keeps_an_ejected_backend_and_leaves_it_when_its_own_connection_did() {
    let mut tables = sticky(TCP, scheduler::RANDOM);
    let client = [10, 0, 9, 9];
    let first = connects(&mut tables, from(client, TCP, 4_000));
    tables.eject(first);
    assert_eq!(connects(&mut tables, from(client, TCP, 4_001)), first, "others have met a silent backend");
    // It answers nobody any more: the SYN is retried, and where that one is established the client stays.
    tables.eject(first);
    let key = from(client, TCP, 4_002);
    assert_eq!(begins(&mut tables, key, Hook::POD_IN).backend, first);
    tables.pass_seconds(1);
    let moved = begins(&mut tables, key, Hook::POD_IN);
    assert_ne!(moved.backend, first);
    answers(&mut tables, key, &moved);
    tables.ask(key, ACK, Hook::POD_IN);
    assert_eq!(connects(&mut tables, from(client, TCP, 4_003)), moved.backend);
}

/// Several queries at the same time are none that nobody answers.
#[test]
fn a_client_whose_query_is_under_way_asks_the_same_backend() {
    let mut tables = sticky(UDP, scheduler::RANDOM);
    let client = [10, 0, 9, 9];
    let first = connects(&mut tables, from(client, UDP, 4_000));
    for port in 4_001..4_010 {
        assert_eq!(begins(&mut tables, from(client, UDP, port), Hook::POD_IN).backend, first);
    }
    tables.pass_seconds(u64::from(UDP_ANSWER_S));
    assert_ne!(begins(&mut tables, from(client, UDP, 4_010), Hook::POD_IN).backend, first, "it answers no more");
}

/// A client that cannot leave the backend by itself goes where the backends answer.
#[test]
fn a_client_whose_connections_are_not_retried_leaves_an_ejected_backend() {
    for (protocol, hook, flags) in [
        (UDP, Hook::POD_IN, 0),
        (TCP, Hook::NODE_OUT, service_flags::NO_RETRY),
        (TCP, Hook::POD_IN, service_flags::NO_RETRY),
    ] {
        let mut tables = sticky(protocol, scheduler::RANDOM);
        let frontend = ServiceKey { protocol, ..FRONTEND };
        tables.edit(frontend, |service| service.flags |= flags);
        let first = connects(&mut tables, from([10, 0, 9, 9], protocol, 4_000));
        tables.eject(first);
        let next = begins(&mut tables, from([10, 0, 9, 9], protocol, 4_001), hook).backend;
        assert_ne!(next, first, "protocol {protocol}, {hook:?}, flags {flags}");
    }
}

/// Under a flood, the entries of a handshake may be lost: its acknowledgement finds the backend once more.
#[test]
fn a_flood_takes_no_client_from_its_backend() {
    for port in 4_000..4_020 {
        let mut tables = sticky(TCP, scheduler::RANDOM);
        let client = [198, 51, 100, 7];
        tables.edit(FRONTEND, |service| service.kind = frontend_kind::LOAD_BALANCER);
        // Whatever it met first, it was retried or hinted away from there.
        let key = AffinityKey { client, service: 1, netns: 0 };
        let begin = now(&mut tables);
        remember(&mut tables, &key, 1 + u32::from(port) % 4, 1, begin);
        tables.flood_until_s = begin.s + 100;
        let key = from(client, TCP, port);
        let sent = begins(&mut tables, key, Hook::NODE_IN);
        assert_eq!(sent.backend, 1 + u32::from(port) % 4);
        tables.half_open.clear();
        let resumed = tables.ask(key, ACK, Hook::NODE_IN);
        assert_eq!(resumed.backend, sent.backend, "its entries were lost");
        let others: BTreeSet<u32> = (0..32)
            .map(|last| begins(&mut tables, from([198, 51, 101, 1], TCP, 5_000 + last), Hook::NODE_IN).backend)
            .collect();
        assert_eq!(others.len(), 1, "an unknown client's connections agree");
        tables.ask(key, RST, Hook::NODE_IN);
    }
}
