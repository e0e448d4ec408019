//! The adoption window after a node's first start, over plain tables.

use lb_common::abi::{
    FlowKey, SCTP, ServiceKey, TCP, UDP, Vip, VipKey, backend_state, frontend_kind, seal, service_flags, vip_flags,
};
use lb_common::decide::{Action, Hook, Packet, Work, decide};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

const VIP: [u8; 4] = [203, 0, 113, 80];
/// Seconds of the clock that [`Memory`] begins with.
const START_S: u32 = 1_000;
const WINDOW_S: u32 = 600;
/// Hooks at which the host's stack has not seen the packet yet.
const BEFORE_THE_STACK: [Hook; 5] = [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_IN_L3, Hook::XDP];
const PASSED: (Action, Outcome) = (Action::Pass, Outcome::PassedAdoption);
const REFUSED: (Action, Outcome) = (Action::Refuse, Outcome::RefusedNoFlow);

fn key(port: u16, protocol: u8) -> FlowKey<4> {
    tuple(protocol, ([198, 51, 100, 7], port), (VIP, 80))
}

/// Tables that were made at [`START_S`].
fn fresh(window_s: u32) -> Memory {
    let mut tables = Memory { adoption_until_s: START_S + window_s, ..Memory::default() };
    for (id, protocol) in [(1, TCP), (2, UDP), (3, SCTP)] {
        let frontend = ServiceKey { address: VIP, port: 80, protocol, pad: 0 };
        tables.serve(id, id * 10, frontend, &[[10, 0, 1, 11], [10, 0, 1, 12]], 8080);
    }
    tables.vips.insert(VipKey { address: VIP }, Vip { flags: vip_flags::REFUSE_UNSERVED });
    tables
}

fn ask(tables: &mut Memory, port: u16, flags: u8, hook: Hook) -> (Action, Outcome) {
    let verdict = tables.ask(key(port, TCP), flags, hook);
    (verdict.action, verdict.outcome)
}

#[test]
fn an_unknown_segment_passes_until_the_window_ends() {
    for hook in BEFORE_THE_STACK {
        let mut tables = fresh(WINDOW_S);
        for flags in [ACK, FIN | ACK, RST, RST | ACK, SYN | ACK] {
            assert_eq!(ask(&mut tables, 4000, flags, hook), PASSED, "{hook:?} {flags}");
        }
        let association = tables.ask(key(4000, SCTP), 0, hook);
        assert_eq!((association.action, association.outcome), PASSED);
        tables.pass_seconds(u64::from(WINDOW_S) - 1);
        assert_eq!(ask(&mut tables, 4000, ACK, hook), PASSED, "the last second");
        tables.pass_seconds(1);
        assert_eq!(ask(&mut tables, 4000, ACK, hook), REFUSED, "{hook:?}");
        assert!(tables.flows.is_empty() && tables.half_open.is_empty(), "a segment that passes leaves nothing behind");
    }
}

#[test]
fn without_a_window_every_unknown_segment_is_refused() {
    let mut tables = fresh(0);
    for hook in BEFORE_THE_STACK {
        assert_eq!(ask(&mut tables, 4000, ACK, hook), REFUSED, "{hook:?}");
    }
}

#[test]
fn what_the_host_has_routed_already_is_refused_within_the_window() {
    assert_eq!(ask(&mut fresh(WINDOW_S), 4000, ACK, Hook::NODE_OUT), REFUSED);
}

#[test]
fn new_connections_are_served_at_once() {
    let mut tables = fresh(WINDOW_S);
    assert_eq!(ask(&mut tables, 4000, SYN, Hook::POD_IN).1, Outcome::Selected);
    assert_eq!(tables.ask(key(4000, UDP), 0, Hook::POD_IN).outcome, Outcome::Selected);
}

#[test]
fn a_connection_that_is_evicted_within_the_window_is_told() {
    let mut tables = fresh(WINDOW_S);
    let sent = tables.ask(key(4000, TCP), SYN, Hook::POD_IN);
    let answer =
        FlowKey { src: sent.address, dst: sent.client, src_port: sent.port, dst_port: sent.client_port, ..key(0, TCP) };
    tables.ask(answer, SYN | ACK, Hook::POD_OUT);
    assert_eq!(ask(&mut tables, 4000, ACK, Hook::POD_IN).1, Outcome::Forwarded);
    tables.backends.get_mut(&sent.backend).unwrap().state = backend_state::GONE;
    for _ in 0..2 {
        assert_eq!(ask(&mut tables, 4000, ACK, Hook::POD_IN), (Action::Refuse, Outcome::Evicted));
    }
}

#[test]
fn a_segment_beside_a_half_open_connection_is_refused() {
    let mut tables = fresh(WINDOW_S);
    tables.ask(key(4000, TCP), SYN, Hook::POD_IN);
    assert_eq!(ask(&mut tables, 4000, ACK, Hook::POD_IN), REFUSED, "nobody has answered");
}

#[test]
fn a_service_that_admits_nobody_now_may_have_connections_from_before() {
    for (flags, refusal) in [
        (service_flags::SOURCE_RANGES, Outcome::DroppedSourceRange),
        (service_flags::DROP_IF_EMPTY, Outcome::DroppedNoLocalEndpoint),
        (0, Outcome::RefusedNoEndpoint),
    ] {
        let mut tables = fresh(WINDOW_S);
        for (key, service) in &mut tables.services {
            (service.flags, service.slot_count, service.external_count) = (flags, 0, 0);
            service.seal = seal(key, service);
        }
        assert_eq!(ask(&mut tables, 4000, SYN, Hook::POD_IN).1, refusal);
        assert_eq!(ask(&mut tables, 4000, ACK, Hook::POD_IN), PASSED, "{refusal:?}");
    }
}

#[test]
fn what_another_node_has_chosen_is_no_connection_of_this_host() {
    let mut tables = fresh(WINDOW_S);
    for (key, service) in &mut tables.services {
        service.kind = frontend_kind::LOAD_BALANCER;
        service.seal = seal(key, service);
    }
    let mut work = Work::new(Packet::new(key(4000, TCP), ACK));
    work.chosen = [10, 0, 1, 11];
    decide(&mut tables, &mut work, Hook::NODE_IN);
    assert_ne!((work.verdict.action, work.verdict.outcome), PASSED);
    assert_eq!(ask(&mut tables, 4000, ACK, Hook::NODE_IN), PASSED);
}

#[test]
fn a_port_that_no_service_has_is_refused_within_the_window() {
    let mut tables = fresh(WINDOW_S);
    let verdict = tables.ask(FlowKey { dst_port: 81, ..key(4000, TCP) }, ACK, Hook::NODE_IN);
    assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedUnserved));
}
