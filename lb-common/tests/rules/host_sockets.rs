//! Node ports as sockets of the node meet them: served to every process that asks by a socket call, to no packet.

use lb_common::abi::{FlowKey, Service, ServiceKey, TCP, UDP, frontend_kind};
use lb_common::decide::{
    Action, Asker, Hook, Now, Pick, Picked, Wish, answered, failed, is_this_node, loopback, node_port, pick,
};
use lb_common::limits::EVIDENCE_S;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::SYN;

const ANY: [u8; 4] = [0; 4];
const PORT: u16 = 30_080;
const KEY: ServiceKey<4> = ServiceKey { address: ANY, port: PORT, protocol: TCP, pad: 0 };
const ASKED: FlowKey<4> = tuple(TCP, ([10, 0, 1, 5], 40_000), (ANY, PORT));

fn serving(kind: u8) -> Memory {
    let mut tables = Memory::default();
    tables.serve(1, 0, KEY, &[[10, 0, 1, 11]], 8080);
    tables.edit(KEY, |service| service.kind = kind);
    tables
}

#[test]
fn a_packet_that_names_no_address_is_not_for_a_service() {
    let mut tables = serving(frontend_kind::HOST_SOCKET);
    for hook in [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::POD_OUT, Hook::XDP] {
        assert_eq!(tables.ask(ASKED, SYN, hook).action, Action::Pass, "{hook:?}");
        assert!(tables.flows.is_empty());
        tables.pass_seconds(1);
    }
}

#[test]
fn a_process_is_served() {
    let mut tables = serving(frontend_kind::HOST_SOCKET);
    let (asker, now) = (Asker::Process(0), Now::from_ns(1_000_000_000));
    let mut found = Pick::NONE;
    assert_eq!(pick(&mut tables, &ASKED, asker, 0, Wish::SAFE, now, &mut found), Picked::Backend);
    assert_eq!(found.backend.address, [10, 0, 1, 11]);
}

#[test]
fn only_node_ports_are_kept_from_processes() {
    let kinds = [frontend_kind::CLUSTER_IP, frontend_kind::EXTERNAL_IP, frontend_kind::LOAD_BALANCER];
    for (kind, id) in kinds.map(|kind| (kind, 0)).into_iter().chain([(frontend_kind::NODE_PORT, 1)]) {
        assert_eq!(node_port(&mut serving(kind), &KEY, &mut Service::NONE.clone()), id, "kind {kind}");
    }
    let mut tables = serving(frontend_kind::HOST_SOCKET);
    assert_eq!(node_port(&mut tables, &KEY, &mut Service::NONE.clone()), 1);
    for other in [ServiceKey { port: PORT + 1, ..KEY }, ServiceKey { protocol: UDP, ..KEY }] {
        assert_eq!(node_port(&mut tables, &other, &mut Service::NONE.clone()), 0);
    }
    // Half of another entry says nothing.
    tables.services.get_mut(&KEY).unwrap().seal ^= 1;
    assert_eq!(node_port(&mut tables, &KEY, &mut Service::NONE.clone()), 0);
}

#[test]
fn a_process_means_its_own_node_by_loopback_or_by_no_address() {
    let mut one = [0; 16];
    one[15] = 1;
    for own in [[127, 0, 0, 1], [127, 255, 0, 9], [0; 4]] {
        assert!(is_this_node(&own), "{own:?}");
    }
    assert!(is_this_node(&one) && is_this_node(&[0; 16]));
    one[0] = 0xfd;
    assert!(!is_this_node(&one) && !is_this_node(&[10, 0, 0, 1]) && !is_this_node(&[0, 0, 0, 1]));
    assert_eq!((loopback::<4>(), loopback::<16>()[15]), ([127, 0, 0, 1], 1));
}

const VIP: ServiceKey<4> = ServiceKey { address: [10, 96, 0, 10], port: 80, protocol: TCP, pad: 0 };

/// How many of a hundred connects of processes go to the backend.
fn connects_to(tables: &mut Memory, backend: u32) -> usize {
    let asked = tuple(TCP, (ANY, 0), (VIP.address, VIP.port));
    let now = Now::from_ns(tables.now_ns);
    let mut found = Pick::NONE;
    let mut chosen = || {
        assert_eq!(pick(tables, &asked, Asker::Process(0), 7, Wish::SAFE, now, &mut found), Picked::Backend);
        found.slot.backend
    };
    (0..100).filter(|_| chosen() == backend).count()
}

#[test]
fn processes_avoid_what_has_failed_one_of_them_until_it_answers_anybody_or_a_minute_is_over() {
    let mut tables = Memory::default();
    tables.serve(1, 0, VIP, &[[10, 0, 1, 11], [10, 0, 1, 12]], 8080);
    assert!(connects_to(&mut tables, 1) > 0);
    let fails = |tables: &mut Memory| {
        let now = Now::from_ns(tables.now_ns);
        failed(tables, 1, 1, 1, now);
        connects_to(tables, 1)
    };
    assert_eq!(fails(&mut tables), 0);
    assert!(tables.health.values().all(|health| health.ejected_s == 0), "no other client need avoid it");
    tables.pass_seconds(u64::from(EVIDENCE_S));
    assert_eq!(connects_to(&mut tables, 1), 0);
    tables.pass_seconds(1);
    assert!(connects_to(&mut tables, 1) > 0, "a process tries again");
    assert_eq!(fails(&mut tables), 0);
    let now = Now::from_ns(tables.now_ns);
    answered(&mut tables, 1, 1, now);
    assert!(connects_to(&mut tables, 1) > 0);
    tables.pass_seconds(1);
    assert!(fails(&mut tables) > 0, "it has answered somebody within the second");
    // With nothing else to choose, they go there.
    tables.pass_seconds(1);
    for backend in [1, 2] {
        let now = Now::from_ns(tables.now_ns);
        failed(&mut tables, 1, backend, 1, now);
    }
    assert!(connects_to(&mut tables, 1) > 0);
}
