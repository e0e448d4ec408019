//! Client affinity: until when a backend is remembered, and when it no longer counts.

use crate::memory::Memory;
use lb_common::abi::{
    AffinityKey, Backend, FlowKey, Service, ServiceKey, TCP, backend_flags as flags, backend_state, frontend_kind,
    seal, service_flags,
};
use lb_common::decide::{Hook, Now, Tables, holds, recall, remember};
use lb_common::state::tcp_flag::SYN;

const FRONTEND: ServiceKey<4> = ServiceKey { address: [10, 96, 0, 10], port: 80, protocol: TCP, pad: 0 };
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
        ("its checks fail", service, Backend { flags: in_cluster.flags | flags::QUARANTINED, ..in_cluster }),
        ("another pod", service, Backend { generation: 2, ..in_cluster }),
        ("another service's", service, Backend { service: 2, ..in_cluster }),
        ("its deadline struck", service, Backend { deadline_ds: now.ds, ..in_cluster }),
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
    let key = FlowKey {
        src: CLIENT.client,
        dst: FRONTEND.address,
        src_port: 4_000,
        dst_port: 80,
        protocol: TCP,
        pad: [0; 3],
    };
    tables.ask(key, SYN, Hook::POD_IN);
    assert!(tables.affinity.is_empty());
}

/// How many backends twenty connections of one client outside meet.
fn backends_of_a_client_outside(policy: u8, sets: u8) -> usize {
    let mut tables = Memory::default();
    tables.serve(1, 0, FRONTEND, &[[10, 0, 1, 1], [10, 0, 1, 2], [10, 0, 1, 3], [10, 0, 1, 4]], 8080);
    tables.backends.values_mut().for_each(|backend| backend.flags = flags::SERVING | flags::LOCAL | sets);
    let service = tables.services.get_mut(&FRONTEND).unwrap();
    *service = Service { kind: frontend_kind::LOAD_BALANCER, flags: policy, affinity_timeout_s: 30, ..*service };
    service.seal = seal(&FRONTEND, service);
    let mut asks = |src_port| {
        let (src, dst) = ([198, 51, 100, 7], FRONTEND.address);
        let key = FlowKey { src, dst, src_port, dst_port: 80, protocol: TCP, pad: [0; 3] };
        tables.ask(key, SYN, Hook::NODE_IN).address
    };
    (4_000..4_020).map(&mut asks).collect::<std::collections::BTreeSet<_>>().len()
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
        assert_eq!(backends_of_a_client_outside(policy, set) == 1, holds, "policy {policy}, set {set}");
    }
}
