//! A flood that half-open flows do not outlive: what is chosen by rule is found again without them, and no forged segment opens a flow.

use lb_common::abi::{
    Endpoint, EndpointKey, FlowKey, Masquerade, Service, ServiceKey, TCP, backend_flags, flow_state, frontend_kind,
    scheduler,
};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide};
use lb_common::limits::{AFTER_FLOOD_S, FLOOD_S};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, reply, tuple};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

const CLIENT: [u8; 4] = [198, 51, 100, 7];
const NODE: [u8; 4] = [192, 0, 2, 1];
const BACKENDS: [[u8; 4]; 4] = [[10, 0, 1, 11], [10, 0, 1, 12], [10, 0, 2, 13], [10, 0, 2, 14]];
const MOST: u32 = 100;

/// A node port with backends of this node, or of others.
fn serving(remote: bool, scheduler: u8) -> Memory {
    let mut tables = Memory { most_half_open: MOST, own: Some(Masquerade::new(NODE, &[])), ..Memory::default() };
    let frontend = ServiceKey { address: NODE, port: 30_080, protocol: TCP, pad: 0 };
    tables.serve(1, 0, frontend, &BACKENDS, 8080);
    tables.edit(frontend, |service| *service = Service { kind: frontend_kind::NODE_PORT, scheduler, ..*service });
    if remote {
        tables.backends.values_mut().for_each(|backend| backend.flags &= !backend_flags::LOCAL);
    }
    tables
}

fn asks(port: u16) -> FlowKey<4> {
    tuple(TCP, (CLIENT, port), (NODE, 30_080))
}

fn answers(sent: &Verdict<4>) -> FlowKey<4> {
    reply(TCP, sent)
}

/// More SYNs of others than the tables take.
fn flood(tables: &mut Memory) {
    for number in 0..=MOST {
        let [.., third, fourth] = number.to_be_bytes();
        tables.ask(FlowKey { src: [203, 0, third, fourth], ..asks(4000) }, SYN, Hook::XDP);
    }
}

/// Where answers of backends of this node, or of others, are translated.
fn way_back(remote: bool) -> Hook {
    if remote { Hook::XDP } else { Hook::NODE_OUT }
}

#[test]
fn a_client_whose_entries_were_thrown_out_goes_on_with_its_backend() {
    for (remote, scheduler) in [
        (false, scheduler::RANDOM),
        (true, scheduler::RANDOM),
        (true, scheduler::ROUND_ROBIN),
        (false, scheduler::MAGLEV),
    ] {
        let mut tables = serving(remote, scheduler);
        flood(&mut tables);
        for port in 40_000..40_100 {
            let sent = tables.ask(asks(port), SYN, Hook::XDP);
            assert_eq!(sent.outcome, Outcome::SelectedByTuple);
            tables.half_open.clear();
            let again = tables.ask(asks(port), SYN, Hook::XDP);
            assert_eq!((again.address, again.client_port), (sent.address, sent.client_port), "the SYN again");
            assert_eq!(tables.ask(answers(&sent), SYN | ACK, way_back(remote)).outcome, Outcome::Replied);
            tables.half_open.clear();
            let next = tables.ask(asks(port), ACK, Hook::XDP);
            assert_eq!((next.action, next.outcome), (Action::ToBackend, Outcome::Resumed));
            assert_eq!((next.address, next.client, next.client_port), (sent.address, sent.client, sent.client_port));
            assert!(tables.flows.is_empty(), "the segment may be forged");
            // It says more before it hears more.
            assert_eq!(tables.ask(asks(port), ACK, Hook::XDP).address, sent.address);
            let told = tables.ask(answers(&sent), ACK, way_back(remote));
            assert_eq!((told.action, told.address, told.port), (Action::ToClient, NODE, 30_080));
            assert_eq!((told.client, told.client_port), (CLIENT, port));
            assert!(tables.flows.values().all(|flow| flow.state == flow_state::OPEN));
            assert_eq!(tables.flows.len(), 2, "the backend knows it");
            assert_eq!(tables.ask(asks(port), ACK, Hook::XDP).outcome, Outcome::Forwarded);
            tables.flows.clear();
        }
    }
}

#[test]
fn forged_segments_open_no_flow_and_are_no_evidence() {
    for remote in [false, true] {
        let mut tables = serving(remote, scheduler::RANDOM);
        flood(&mut tables);
        for port in 40_000..40_500 {
            // Numbers that a refusal of a SYN would acknowledge.
            let sent = tables.ask_numbered(asks(port), ACK, 0, 77, Hook::XDP);
            assert_eq!(sent.outcome, Outcome::Resumed);
            for flags in [RST, RST | ACK] {
                let told = tables.ask_numbered(answers(&sent), flags, 77, 0, way_back(remote));
                assert_eq!(told.action, Action::ToClient, "its sender gets the error");
            }
            // Another client's connection has the same tuple: its backend says which number it expects.
            let told = tables.ask_numbered(answers(&sent), ACK, 4_711, 70_000, way_back(remote));
            assert_eq!(told.action, Action::ToClient);
        }
        assert!(tables.flows.is_empty());
        assert!(tables.notes.is_empty());
    }
}

#[test]
fn connections_that_open_are_no_flood_and_after_one_all_is_as_before() {
    let mut tables = serving(false, scheduler::RANDOM);
    for port in 40_000..40_000 + 5 * u16::try_from(MOST).unwrap() {
        let sent = tables.ask(asks(port), SYN, Hook::XDP);
        assert_eq!(sent.outcome, Outcome::Selected);
        tables.ask(answers(&sent), SYN | ACK, Hook::NODE_OUT);
        assert_eq!(tables.ask(asks(port), ACK, Hook::XDP).outcome, Outcome::Forwarded);
    }
    assert_eq!(
        tables.ask_numbered(asks(50_000), ACK, ISN, 0, Hook::XDP).outcome,
        Outcome::Passed,
        "the node refuses it"
    );
    flood(&mut tables);
    assert_eq!(tables.ask(asks(60_000), ACK, Hook::XDP).outcome, Outcome::Resumed);
    assert_eq!(tables.ask(asks(60_001), ACK, Hook::POD_IN).outcome, Outcome::RefusedNoFlow, "no client of this node");
    tables.pass_seconds(u64::from(FLOOD_S) + 1);
    assert_eq!(tables.ask(asks(60_002), SYN, Hook::XDP).outcome, Outcome::Selected);
    tables.pass_seconds(u64::from(AFTER_FLOOD_S));
    assert_eq!(tables.ask(asks(60_003), ACK, Hook::XDP).outcome, Outcome::Passed);
}

#[test]
fn a_client_that_is_silent_until_the_flood_is_over_goes_on_all_the_same() {
    for remote in [false, true] {
        let mut tables = serving(remote, scheduler::RANDOM);
        flood(&mut tables);
        let sent = tables.ask(asks(40_000), SYN, Hook::XDP);
        tables.ask(answers(&sent), SYN | ACK, way_back(remote));
        tables.half_open.clear();
        assert_eq!(tables.ask(asks(40_000), ACK, Hook::XDP).outcome, Outcome::Resumed);
        tables.pass_seconds(u64::from(FLOOD_S) + 1);
        // The answer's entry is lost as well: the segment writes it again.
        tables.half_open.remove(&answers(&sent));
        let next = tables.ask(asks(40_000), ACK, Hook::XDP);
        assert_eq!((next.action, next.address, next.client_port), (Action::ToBackend, sent.address, sent.client_port));
        assert_eq!(tables.ask(answers(&sent), ACK, way_back(remote)).action, Action::ToClient);
        assert_eq!(tables.flows.len(), 2);
    }
}

#[test]
fn a_node_that_others_send_whole_packets_to_resumes_as_well() {
    let mut tables = serving(false, scheduler::MAGLEV);
    tables.endpoints.insert(
        EndpointKey { address: BACKENDS[2], service: 1 },
        Endpoint { backend: 3, generation: tables.backends[&3].generation },
    );
    flood(&mut tables);
    let arrives = |tables: &mut Memory, flags| {
        let mut work = Work::new(Packet { seq: ISN + 1, ack: ISN + 1, ..Packet::new(asks(40_000), flags) });
        work.chosen = BACKENDS[2];
        decide(tables, &mut work, Hook::NODE_IN);
        work.verdict
    };
    let first = arrives(&mut tables, SYN);
    assert_eq!((first.action, first.address), (Action::ToBackend, BACKENDS[2]));
    tables.half_open.clear();
    let next = arrives(&mut tables, ACK);
    assert_eq!((next.action, next.address, next.outcome), (Action::ToBackend, BACKENDS[2], Outcome::Resumed));
}
