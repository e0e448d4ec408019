//! Whom a frontend serves: source ranges admit every client in them, over plain tables.

use lb_common::abi::{
    FlowKey, Masquerade, Service, ServiceKey, TCP, UDP, backend_flags, backend_state, frontend_kind, network_flags,
    service_flags,
};
use lb_common::decide::{Action, Asker, Hook, Now, Pick, Picked, Wish, pick};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const FRONTEND: [u8; 4] = [192, 0, 2, 10];
const INSIDE: [u8; 4] = [10, 0, 1, 11];
const OUTSIDE: [u8; 4] = [10, 0, 2, 12];
const EXTERNAL: [u8; 3] = [frontend_kind::EXTERNAL_IP, frontend_kind::LOAD_BALANCER, frontend_kind::NODE_PORT];

fn frontend(protocol: u8) -> ServiceKey<4> {
    ServiceKey { address: FRONTEND, port: 80, protocol, pad: 0 }
}

fn from(client: [u8; 4], protocol: u8, port: u16) -> FlowKey<4> {
    tuple(protocol, (client, port), (FRONTEND, 80))
}

/// Service 1, TCP and UDP: one backend serves clients of this node, another one the others.
fn serving(kind: u8, flags: u8) -> Memory {
    let mut tables = Memory::default();
    for (base, protocol) in [(0, TCP), (10, UDP)] {
        tables.serve(1, base, frontend(protocol), &[INSIDE, OUTSIDE], 8080);
        edit(&mut tables, protocol, |service| {
            let (external_base, external_count) = (service.slot_base + 1, 1);
            *service = Service { kind, flags, slot_count: 1, external_base, external_count, ..*service };
        });
    }
    tables
}

fn edit(tables: &mut Memory, protocol: u8, edit: impl FnOnce(&mut Service)) {
    let key = frontend(protocol);
    tables.edit(key, |service| {
        edit(service);
    });
}

#[test]
fn every_kind_serves_a_pod_from_the_inside_set() {
    for kind in EXTERNAL.into_iter().chain([frontend_kind::CLUSTER_IP]) {
        for (protocol, flags) in [(TCP, SYN), (UDP, 0)] {
            let mut tables = serving(kind, 0);
            for port in 4000..4020 {
                let verdict = tables.ask(from(CLIENT, protocol, port), flags, Hook::POD_IN);
                assert_eq!((verdict.action, verdict.outcome), (Action::ToBackend, Outcome::Selected));
                assert_eq!(verdict.address, INSIDE);
            }
        }
    }
}

#[test]
fn a_pod_in_no_source_range_is_dropped_and_counted_for_the_service() {
    for (protocol, flags) in [(TCP, SYN), (TCP, ACK), (UDP, 0)] {
        let mut tables = serving(frontend_kind::LOAD_BALANCER, service_flags::SOURCE_RANGES);
        // Ranges of another service, and of others' networks.
        tables.sources = vec![(2, CLIENT, 32), (1, [10, 0, 2, 0], 24), (1, [10, 0, 1, 3], 32)];
        let verdict = tables.ask(from(CLIENT, protocol, 4000), flags, Hook::POD_IN);
        assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::DroppedSourceRange));
        assert_eq!((verdict.service, verdict.backend), (1, 0));
        assert!(tables.flows.is_empty());
        tables.sources.push((1, [10, 0, 0, 0], 23));
        let verdict = tables.ask(from(CLIENT, protocol, 4000), flags, Hook::POD_IN);
        assert_ne!(verdict.outcome, Outcome::DroppedSourceRange, "now it is in one");
    }
}

#[test]
fn who_may_not_pass_is_not_told_that_nobody_serves() {
    let mut tables = serving(frontend_kind::LOAD_BALANCER, service_flags::SOURCE_RANGES);
    edit(&mut tables, TCP, |service| service.slot_count = 0);
    assert_eq!(tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN).outcome, Outcome::DroppedSourceRange);
    tables.sources.push((1, CLIENT, 32));
    let refused = tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN);
    assert_eq!((refused.action, refused.outcome), (Action::Refuse, Outcome::RefusedNoEndpoint));
    edit(&mut tables, TCP, |service| service.flags |= service_flags::DROP_IF_EMPTY);
    let dropped = tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN);
    assert_eq!((dropped.action, dropped.outcome), (Action::Drop, Outcome::DroppedNoLocalEndpoint));
    edit(&mut tables, TCP, |service| service.flags = service_flags::DROP_OUTSIDE_IF_EMPTY);
    assert_eq!(tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN).action, Action::Refuse, "of clients outside");
}

#[test]
fn a_range_that_is_taken_away_ends_no_flow_and_lets_no_new_one_begin() {
    let mut tables = serving(frontend_kind::LOAD_BALANCER, service_flags::SOURCE_RANGES);
    tables.sources = vec![(1, CLIENT, 32)];
    let sent = tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN);
    assert_eq!(sent.outcome, Outcome::Selected);
    let (src_port, dst_port) = (sent.port, 4000);
    let answer = tuple(TCP, (sent.address, src_port), (CLIENT, dst_port));
    assert_eq!(tables.ask(answer, SYN | ACK, Hook::POD_OUT).outcome, Outcome::Replied);
    assert_eq!(tables.ask(from(CLIENT, UDP, 4000), 0, Hook::POD_IN).outcome, Outcome::Selected);
    tables.sources.clear();
    assert_eq!(tables.ask(from(CLIENT, TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert_eq!(tables.ask(from(CLIENT, UDP, 4000), 0, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert_eq!(tables.ask(from(CLIENT, TCP, 4001), SYN, Hook::POD_IN).outcome, Outcome::DroppedSourceRange);
    // Nobody speaks of it any more: the next datagram begins a new flow.
    tables.pass_seconds(u64::from(limits::UDP_REPLIED_TIMEOUT_S) + 1);
    assert_eq!(tables.ask(from(CLIENT, UDP, 4000), 0, Hook::POD_IN).outcome, Outcome::DroppedSourceRange);
    // Nor does a connection move on to another backend.
    tables.backends.values_mut().for_each(|backend| backend.state = backend_state::GONE);
    assert_eq!(tables.ask(from(CLIENT, TCP, 4000), SYN, Hook::POD_IN).outcome, Outcome::DroppedSourceRange);
}

#[test]
fn a_process_is_admitted_by_its_flag_alone() {
    let asked = |flags: u8, client: Asker| {
        let mut tables = serving(frontend_kind::LOAD_BALANCER, flags);
        // What would admit the address that a socket call does not know yet.
        tables.sources = vec![(1, [0; 4], 1)];
        let mut found = Pick::NONE;
        let now = Now::from_ns(tables.now_ns);
        match pick(&mut tables, &from([0; 4], TCP, 0), client, 1, Wish::SAFE, now, &mut found) {
            Picked::Backend => Ok(found.backend.address),
            Picked::Denied => Err(found.service.id),
            other => panic!("served, whole and not empty, but {other:?}"),
        }
    };
    let (ranges, node) = (service_flags::SOURCE_RANGES, service_flags::NODE_ALLOWED);
    let (on_node, in_a_pod) = (Asker::Process(node), Asker::Process(0));
    assert_eq!([asked(0, on_node), asked(0, in_a_pod)], [Ok(INSIDE); 2]);
    assert_eq!([asked(ranges, on_node), asked(ranges, in_a_pod)], [Err(1); 2]);
    assert_eq!([asked(ranges | node, on_node), asked(ranges | node, in_a_pod)], [Ok(INSIDE), Err(1)]);
}

#[test]
fn a_client_that_is_its_own_backend_elsewhere_keeps_no_port_of_the_node() {
    // The node port is at the very address that the flow is masqueraded by, and the backend at the client's.
    let networks = vec![([10, 0, 0, 0], 8, network_flags::PODS)];
    for (port, kept) in [(20_000, true), (40_000, false), (30_080, false), (80, false)] {
        let mut tables = serving(frontend_kind::NODE_PORT, 0);
        edit(&mut tables, TCP, |service| service.external_base = service.slot_base);
        (tables.own, tables.networks) = (Some(Masquerade::new(FRONTEND, &[])), networks.clone());
        for backend in tables.backends.values_mut() {
            backend.flags &= !backend_flags::LOCAL;
        }
        let verdict = tables.ask(from(INSIDE, TCP, port), SYN, Hook::NODE_IN);
        assert_eq!((verdict.address, verdict.client, verdict.outcome), (INSIDE, FRONTEND, Outcome::Masqueraded));
        assert_eq!(verdict.client_port == port, kept, "a socket of the node may have {port}");
    }
}
