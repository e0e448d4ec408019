//! Connections that are given to another proxy: new ones pass, and each that is there is held for a moment.

use lb_common::abi::{FlowKey, ServiceKey, TCP, UDP, flow_flags, flow_state};
use lb_common::decide::{Action, Hook};
use lb_common::limits::{HAND_OVER, HOLD_S};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, SYN};

const VIP: [u8; 4] = [10, 96, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 9];
const BACKEND: [u8; 4] = [10, 0, 1, 11];

fn original(port: u16, protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, port), (VIP, 80))
}

fn reply(port: u16) -> FlowKey<4> {
    tuple(TCP, (BACKEND, 8080), (CLIENT, port))
}

/// One backend, and an established connection from port 4000.
fn serving() -> Memory {
    let mut tables = Memory::default();
    for (id, protocol) in [(1, TCP), (2, UDP)] {
        let frontend = ServiceKey { address: VIP, port: 80, protocol, pad: 0 };
        tables.serve(id, id * 10, frontend, &[BACKEND], 8080);
    }
    assert_eq!(ask(&mut tables, original(4000, TCP), SYN), (Action::ToBackend, Outcome::Selected));
    assert_eq!(ask(&mut tables, reply(4000), SYN | ACK), (Action::ToClient, Outcome::Replied));
    assert_eq!(ask(&mut tables, original(4000, TCP), ACK), (Action::ToBackend, Outcome::Forwarded));
    assert_eq!(tables.flows.len(), 2);
    tables
}

fn ask(tables: &mut Memory, key: FlowKey<4>, flags: u8) -> (Action, Outcome) {
    let hook = if key.src == BACKEND { Hook::POD_OUT } else { Hook::POD_IN };
    let verdict = tables.ask(key, flags, hook);
    (verdict.action, verdict.outcome)
}

fn set_state(tables: &mut Memory, state: u8) {
    let now_s = u32::try_from(tables.now_ns / 1_000_000_000).unwrap();
    tables.flows.values_mut().for_each(|flow| (flow.state, flow.seen_s) = (state, now_s));
}

#[test]
fn new_connections_pass_and_those_that_are_there_go_on() {
    let mut tables = serving();
    tables.adoption_until_s = HAND_OVER;
    let passed = (Action::Pass, Outcome::PassedHandOver);
    assert_eq!(ask(&mut tables, original(4001, TCP), SYN), passed);
    assert_eq!(ask(&mut tables, original(4001, UDP), 0), passed);
    assert_eq!(ask(&mut tables, original(4000, TCP), ACK), (Action::ToBackend, Outcome::Forwarded));
    assert_eq!(ask(&mut tables, reply(4000), ACK), (Action::ToClient, Outcome::Replied));
    // A segment of a connection that the other proxy has got.
    assert_eq!(ask(&mut tables, original(4001, TCP), ACK), (Action::Pass, Outcome::PassedAdoption));
    assert_eq!(tables.flows.len(), 2);
}

#[test]
fn a_handshake_that_is_under_way_is_completed() {
    let mut tables = serving();
    assert_eq!(ask(&mut tables, original(4002, TCP), SYN), (Action::ToBackend, Outcome::Selected));
    tables.adoption_until_s = HAND_OVER;
    assert_eq!(ask(&mut tables, reply(4002), SYN | ACK), (Action::ToClient, Outcome::Replied));
    assert_eq!(ask(&mut tables, original(4002, TCP), ACK), (Action::ToBackend, Outcome::Forwarded));
    assert_eq!(tables.flows.len(), 4);
}

#[test]
fn a_held_connection_drops_its_packets_and_an_adopted_one_passes_them() {
    let mut tables = serving();
    tables.adoption_until_s = HAND_OVER;
    set_state(&mut tables, flow_state::HELD);
    for key in [original(4000, TCP), reply(4000)] {
        assert_eq!(ask(&mut tables, key, ACK), (Action::Drop, Outcome::HeldForHandOver));
    }
    set_state(&mut tables, flow_state::ADOPTED);
    for key in [original(4000, TCP), reply(4000)] {
        assert_eq!(ask(&mut tables, key, ACK), (Action::Pass, Outcome::Adopted));
    }
}

/// The command that held it was killed.
#[test]
fn a_connection_that_stays_held_is_ballasts_again() {
    let mut tables = serving();
    set_state(&mut tables, flow_state::HELD);
    tables.pass_seconds(u64::from(HOLD_S) + 1);
    for key in [original(4000, TCP), reply(4000)] {
        assert_eq!(ask(&mut tables, key, ACK), (Action::Drop, Outcome::HeldForHandOver), "the packet that finds out");
    }
    assert_eq!(ask(&mut tables, original(4000, TCP), ACK), (Action::ToBackend, Outcome::Forwarded));
    assert_eq!(ask(&mut tables, reply(4000), ACK), (Action::ToClient, Outcome::Replied));
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::OPEN));
    assert_eq!(tables.flows.values().filter(|flow| flow.flags & flow_flags::REPLY != 0).count(), 1);
}
