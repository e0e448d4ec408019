//! What the models of the packet path once found: rare orders of events, each by itself.

use lb_common::abi::{FlowKey, ServiceKey, TCP, backend_flags, backend_state};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide, pair_key};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIPS: [[u8; 4]; 2] = [[10, 96, 0, 10], [10, 96, 0, 11]];
const BACKENDS: [[u8; 4]; 2] = [[10, 0, 2, 1], [10, 0, 2, 2]];
const ISN: u32 = 7_000;
const BACKENDS_ISN: u32 = 900;

fn serving(backends: &[[u8; 4]]) -> Memory {
    let mut tables = Memory::default();
    for (id, address) in [(1, VIPS[0]), (2, VIPS[1])] {
        tables.serve(id, 16 * id, ServiceKey { address, port: 80, protocol: TCP, pad: 0 }, backends, 8080);
    }
    tables
}

fn asks(vip: usize) -> FlowKey<4> {
    tuple(TCP, (CLIENT, 40_000), (VIPS[vip], 80))
}

fn sent(tables: &mut Memory, packet: Packet<4>, hook: Hook) -> Verdict<4> {
    let mut work = Work::new(packet);
    decide(tables, &mut work, hook);
    work.verdict
}

fn syn(tables: &mut Memory, vip: usize, isn: u32) -> Verdict<4> {
    sent(tables, Packet { seq: isn, ..Packet::new(asks(vip), SYN) }, Hook::POD_IN)
}

/// The SYN+ACK of a backend, to the port by which it knows the client.
fn accepts(tables: &mut Memory, verdict: &Verdict<4>, isn: u32) -> Verdict<4> {
    let key = tuple(TCP, (verdict.address, 8080), (CLIENT, verdict.client_port));
    sent(tables, Packet { seq: BACKENDS_ISN, ack: isn + 1, ..Packet::new(key, SYN | ACK) }, Hook::POD_OUT)
}

#[test]
fn a_syn_that_the_network_doubled_moves_nothing() {
    let mut tables = serving(&BACKENDS);
    let first = syn(&mut tables, 0, ISN);
    let second = syn(&mut tables, 0, ISN);
    assert_eq!((second.outcome, second.address), (Outcome::Forwarded, first.address));
    assert_eq!(accepts(&mut tables, &first, ISN).action, Action::ToClient, "the live backend's answer is no late one");
    let mut tables = serving(&BACKENDS);
    let first = syn(&mut tables, 0, ISN);
    tables.pass_seconds(1);
    let second = syn(&mut tables, 0, ISN);
    assert_eq!(second.outcome, Outcome::Retried, "a second later it is the client's own");
    assert_ne!(second.address, first.address);
}

#[test]
fn a_lost_entry_for_answers_is_not_written_over_another_flows() {
    let mut tables = serving(&BACKENDS[..1]);
    let first = syn(&mut tables, 0, ISN);
    // The table made room; a flow through another service has the place now.
    let answers = pair_key(&asks(0), &tables.half_open[&asks(0)].flow);
    tables.half_open.remove(&answers);
    let other = syn(&mut tables, 1, ISN);
    assert_eq!((other.address, other.client_port), (first.address, first.client_port));
    tables.pass_seconds(1);
    assert_eq!(syn(&mut tables, 0, ISN).action, Action::ToBackend);
    let answer = accepts(&mut tables, &other, ISN);
    assert_eq!((answer.action, answer.address), (Action::ToClient, VIPS[1]), "not as the first service's");
}

#[test]
fn no_new_flow_goes_to_a_backend_whose_deadline_passed_before_the_slots_were_written() {
    let mut tables = serving(&BACKENDS);
    let now_ds = u32::try_from(tables.now_ns / 100_000_000).unwrap();
    let draining = tables.backends.get_mut(&17).unwrap();
    (draining.state, draining.deadline_ds) = (backend_state::DRAINING, now_ds);
    let gone = draining.address;
    for isn in 0..50 {
        let verdict = syn(&mut tables, 0, isn * 1_000);
        assert_ne!((verdict.action, verdict.address), (Action::ToBackend, gone));
    }
    tables.backends.values_mut().for_each(|backend| backend.state = backend_state::GONE);
    assert_eq!(syn(&mut tables, 0, 1).outcome, Outcome::DroppedTorn, "the slots lead nowhere");
}

/// As long as no table has room for slots without it, they lead there still.
#[test]
fn a_backend_that_is_in_no_set_keeps_its_connections_and_takes_no_new_one() {
    let mut tables = serving(&BACKENDS);
    let ask = |tables: &mut Memory, port, flags| tables.ask(FlowKey { src_port: port, ..asks(0) }, flags, Hook::POD_IN);
    let first = ask(&mut tables, 40_000, SYN);
    tables.backends.get_mut(&first.backend).unwrap().flags &= !backend_flags::IN_CLUSTER_SET;
    assert_eq!(ask(&mut tables, 40_000, SYN).address, first.address);
    for port in 40_001..40_100 {
        let other = ask(&mut tables, port, SYN);
        assert_eq!((other.action, other.outcome), (Action::ToBackend, Outcome::Selected));
        assert_ne!(other.address, first.address);
    }
}
