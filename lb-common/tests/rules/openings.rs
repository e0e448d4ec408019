//! How a connection opens: half-open until its client has the answer, moved while nobody does.

use lb_common::abi::{
    FlowKey, Masquerade, ServiceKey, TCP, UDP, backend_flags, backend_state, flow_flags, flow_state, frontend_kind,
    half_open_flags, network_flags, service_flags,
};
use lb_common::decide::{Action, Hook, Packet, Step, Verdict, Work, begin, complete, select};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, reply, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, PSH, RST, SYN};
use proptest::prelude::*;

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIP: [u8; 4] = [10, 96, 0, 10];
const BACKENDS: [[u8; 4]; 4] = [[10, 0, 1, 11], [10, 0, 1, 12], [10, 0, 2, 13], [10, 0, 2, 14]];

fn frontend(protocol: u8) -> ServiceKey<4> {
    ServiceKey { address: VIP, port: 80, protocol, pad: 0 }
}

pub fn serving(count: usize) -> Memory {
    let mut tables = Memory::default();
    tables.serve(1, 0, frontend(TCP), &BACKENDS[..count], 8080);
    tables.serve(2, 10, frontend(UDP), &BACKENDS[..count], 5353);
    tables
}

fn edit(tables: &mut Memory, edit: impl FnOnce(&mut lb_common::abi::Service)) {
    let key = frontend(TCP);
    tables.edit(key, |service| {
        edit(service);
    });
}

pub fn asks(protocol: u8, port: u16) -> FlowKey<4> {
    tuple(protocol, (CLIENT, port), (VIP, 80))
}

pub fn answers(sent: FlowKey<4>, verdict: &Verdict<4>) -> FlowKey<4> {
    reply(sent.protocol, verdict)
}

pub fn syn(tables: &mut Memory, port: u16) -> Verdict<4> {
    tables.ask(asks(TCP, port), SYN, Hook::POD_IN)
}

/// The same SYN, sent again as a client's stack does: a second later. One that comes at once is the network's own double.
pub fn syn_again(tables: &mut Memory, port: u16) -> Verdict<4> {
    tables.pass_seconds(1);
    syn(tables, port)
}

pub fn accept(tables: &mut Memory, port: u16, sent: &Verdict<4>) -> Verdict<4> {
    tables.ask(answers(asks(TCP, port), sent), SYN | ACK, Hook::POD_OUT)
}

#[test]
fn a_request_that_overtakes_the_acknowledgement_on_another_processor_reaches_its_backend() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    assert_eq!(accept(&mut tables, 4000, &sent).outcome, Outcome::Replied);
    // The process's request is looked up here, the kernel's ACK opens the flow there, and the request goes on.
    let mut request = Work::new(Packet { seq: ISN + 1, ack: ISN + 1, ..Packet::new(asks(TCP, 4000), ACK) });
    let mut step = begin(&mut tables, &mut request, Hook::POD_IN);
    assert_eq!(step, Step::Select);
    step = select(&mut tables, &mut request, Hook::POD_IN, step);
    assert_eq!(step, Step::MidStream);
    assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert_eq!(complete(&mut tables, &mut request, Hook::POD_IN, step), Step::Decided);
    assert_eq!((request.verdict.action, request.verdict.outcome), (Action::ToBackend, Outcome::Forwarded));
    assert_eq!((request.verdict.address, request.verdict.port), (sent.address, sent.port));
}

#[test]
fn where_the_open_flow_finds_no_room_the_client_is_not_told_that_there_is_none() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    assert_eq!(accept(&mut tables, 4000, &sent).outcome, Outcome::Replied);
    tables.capacity = 0;
    let dropped = tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN);
    assert_eq!((dropped.action, dropped.outcome), (Action::Drop, Outcome::DroppedTableFull), "it is sent again");
    tables.capacity = 100;
    assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
}

#[test]
fn the_clients_segment_after_the_answer_moves_both_entries_among_the_open_ones() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    assert_eq!((tables.half_open.len(), tables.flows.len()), (2, 0));
    assert_eq!(accept(&mut tables, 4000, &sent).outcome, Outcome::Replied);
    assert_eq!((tables.half_open.len(), tables.flows.len()), (2, 0), "a flooding client is answered, too");
    assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert_eq!((tables.half_open.len(), tables.flows.len()), (0, 2));
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::OPEN && flow.isn == ISN));
    assert_eq!(tables.health[&sent.backend].connections, 1);
    tables.ask(asks(TCP, 4000), RST, Hook::POD_IN);
    assert_eq!(tables.health[&sent.backend].connections, 0, "a connection that is over is not counted");
}

#[test]
fn a_segment_opens_a_flow_only_if_it_acknowledges_the_answer() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::RefusedNoFlow, "nobody has answered");
    accept(&mut tables, 4000, &sent);
    let forged =
        |tables: &mut Memory, seq, ack| tables.ask_numbered(asks(TCP, 4000), ACK, seq, ack, Hook::POD_IN).outcome;
    assert_eq!(forged(&mut tables, ISN.wrapping_sub(9), ISN + 1), Outcome::RefusedNoFlow, "not of this connection");
    assert_eq!(forged(&mut tables, ISN + 1, ISN + 2), Outcome::RefusedNoFlow, "it has not seen the answer");
    // Of a backend that answers by SYN cookies, a later answer has another number.
    let later = answers(asks(TCP, 4000), &sent);
    for number in [77, 88] {
        tables.ask_numbered(later, SYN | ACK, number, ISN + 1, Hook::POD_OUT);
    }
    assert_eq!((tables.half_open.len(), tables.flows.len()), (2, 0));
    assert_eq!(forged(&mut tables, ISN + 1, ISN + 1), Outcome::RefusedNoFlow, "two answers are remembered");
    assert_eq!(forged(&mut tables, ISN + 1, 78), Outcome::Forwarded);
    assert_eq!((tables.half_open.len(), tables.flows.len()), (0, 2));
}

#[test]
fn an_answered_flow_stays_where_it_is_and_either_entry_heals() {
    for client_lost in [false, true] {
        let mut tables = serving(4);
        let sent = syn(&mut tables, 4000);
        accept(&mut tables, 4000, &sent);
        let again = syn_again(&mut tables, 4000);
        assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, sent.backend));
        let reset = tables.ask(answers(asks(TCP, 4000), &sent), RST | ACK, Hook::POD_OUT);
        assert_eq!(reset.action, Action::ToClient, "no refusal that could be suppressed");
        let reply = answers(asks(TCP, 4000), &sent);
        let lost = if client_lost { asks(TCP, 4000) } else { reply };
        tables.half_open.remove(&lost).unwrap();
        let again = if client_lost { accept(&mut tables, 4000, &sent) } else { syn_again(&mut tables, 4000) };
        assert_eq!(again.backend, sent.backend);
        assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).backend, sent.backend);
        assert_eq!((tables.half_open.len(), tables.flows.len()), (0, 2));
        assert!(tables.notes.is_empty());
    }
}

#[test]
fn an_answer_to_data_in_the_syn_acknowledges_more() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    let reply = answers(asks(TCP, 4000), &sent);
    assert_eq!(tables.ask_numbered(reply, SYN | ACK, 5, ISN + 101, Hook::POD_OUT).outcome, Outcome::Replied);
    let next = tables.ask_numbered(asks(TCP, 4000), ACK, ISN + 101, 6, Hook::POD_IN);
    assert_eq!((next.outcome, tables.flows.len()), (Outcome::Forwarded, 2));
}

#[test]
fn what_a_backend_sends_before_the_client_acknowledges_its_answer_comes_from_the_service() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    let reply = answers(asks(TCP, 4000), &sent);
    tables.ask_numbered(reply, SYN | ACK, 5, ISN + 101, Hook::POD_OUT);
    assert_eq!(tables.flows.len(), 2, "the backend took the data of the SYN, and so knows the client");
    let data = tables.ask_numbered(reply, ACK | PSH, 6, ISN + 101, Hook::POD_OUT);
    assert_eq!((data.action, data.outcome), (Action::ToClient, Outcome::Replied));
    assert_eq!((data.address, data.port), (asks(TCP, 4000).dst, asks(TCP, 4000).dst_port));
    // All of it is acknowledged at once.
    let next = tables.ask_numbered(asks(TCP, 4000), ACK, ISN + 101, 50, Hook::POD_IN);
    assert_eq!((next.outcome, next.backend), (Outcome::Forwarded, sent.backend));
}

#[test]
fn an_answer_that_arrives_while_the_client_asks_again_is_not_forgotten() {
    let mut tables = serving(4);
    let sent = syn(&mut tables, 4000);
    let accepted = accept(&mut tables, 4000, &sent);
    assert_eq!(accepted.outcome, Outcome::Replied);
    for entry in tables.half_open.values_mut() {
        (entry.flags, entry.answers) = (entry.flags & !(half_open_flags::ANSWERED | half_open_flags::MOVES), [0; 2]);
    }
    tables.answered_meanwhile = Some([ISN; 2]);
    assert_eq!(syn_again(&mut tables, 4000).outcome, Outcome::Forwarded);
    assert_eq!(tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded, "it has the answer");
}

#[test]
fn a_refusal_is_suppressed_while_another_backend_may_take_the_connection() {
    let mut tables = serving(2);
    let first = syn(&mut tables, 4000);
    let forged =
        tables.ask_numbered(answers(asks(TCP, 4000), &first), RST | ACK, 0, ISN.wrapping_add(99), Hook::POD_OUT);
    assert_eq!(forged.action, Action::ToClient, "the client judges");
    assert!(tables.notes.is_empty());
    let refused = tables.ask(answers(asks(TCP, 4000), &first), RST | ACK, Hook::POD_OUT);
    assert_eq!((refused.action, refused.outcome), (Action::Drop, Outcome::SuppressedRefusal));
    let second = syn_again(&mut tables, 4000);
    assert_eq!(second.outcome, Outcome::Retried);
    let passed = tables.ask(answers(asks(TCP, 4000), &second), RST | ACK, Hook::POD_OUT);
    assert_eq!((passed.action, passed.address), (Action::ToClient, VIP));
    assert!(tables.notes.is_empty(), "nobody answered what they refused");
    assert!(!tables.half_open.contains_key(&asks(TCP, 4000)), "the connection is forgotten");
}

#[test]
fn a_service_that_asks_for_no_retry_gets_none() {
    let mut tables = serving(3);
    edit(&mut tables, |service| service.flags |= service_flags::NO_RETRY);
    let first = syn(&mut tables, 4000);
    assert_eq!(syn_again(&mut tables, 4000).outcome, Outcome::Forwarded);
    let refused = tables.ask(answers(asks(TCP, 4000), &first), RST | ACK, Hook::POD_OUT);
    assert_eq!((refused.action, refused.outcome), (Action::ToClient, Outcome::Replied));
    assert!(tables.half_open.is_empty());
}

/// Links by which requests come, and clients that ask there.
const WAYS: [(Hook, [u8; 4]); 7] = [
    (Hook::POD_IN, CLIENT),
    (Hook::BRIDGE_IN, CLIENT),
    (Hook::NODE_OUT, OWN),
    (Hook::NODE_IN, OUTSIDE),
    (Hook::NODE_IN_L3, OUTSIDE),
    (Hook::XDP, OUTSIDE),
    (Hook::NODE_IN, POD_ELSEWHERE),
];
const OWN: [u8; 4] = [192, 0, 2, 1];
const OUTSIDE: [u8; 4] = [198, 51, 100, 7];
const POD_ELSEWHERE: [u8; 4] = [10, 0, 2, 9];

/// The client's SYN and, a second later, the same SYN again. `is_near`: all backends are pods of this node.
fn asks_twice(hook: Hook, client: [u8; 4], is_near: bool, edited: impl Fn(&mut Memory)) -> (Memory, [Verdict<4>; 2]) {
    let mut tables = serving(2);
    tables.own = Some(Masquerade::new(OWN, &[]));
    tables.networks = vec![([10, 0, 0, 0], 16, network_flags::PODS), (OWN, 32, network_flags::NODE)];
    edit(&mut tables, |service| service.kind = frontend_kind::NODE_PORT);
    for backend in tables.backends.values_mut().filter(|_| !is_near) {
        backend.flags &= !backend_flags::LOCAL;
    }
    edited(&mut tables);
    let key = tuple(TCP, (client, 4000), (VIP, 80));
    let first = tables.ask(key, SYN, hook);
    tables.pass_seconds(1);
    let again = tables.ask(key, SYN, hook);
    (tables, [first, again])
}

#[test]
fn a_syn_of_every_client_but_one_of_another_node_goes_to_another_backend_by_the_same_nat() {
    for (is_near, (hook, client)) in [true, false].into_iter().flat_map(|near| WAYS.map(|way| (near, way))) {
        let (mut tables, [first, again]) = asks_twice(hook, client, is_near, |_| {});
        if client == POD_ELSEWHERE {
            assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, first.backend));
            continue;
        }
        assert_eq!(again.outcome, Outcome::Retried, "{hook:?}, near: {is_near}");
        assert_ne!(again.backend, first.backend, "{hook:?}, near: {is_near}");
        let seen = if client == OUTSIDE && !is_near { OWN } else { client };
        assert_eq!([first.client, again.client], [seen, seen], "{hook:?}, near: {is_near}");
        let back = if is_near { Hook::POD_IN } else { Hook::NODE_IN };
        let refusal = tables.ask(reply(TCP, &again), RST | ACK, back);
        let passes_on = refusal.outcome == Outcome::Passed;
        let refusal = if passes_on { tables.ask(reply(TCP, &again), RST | ACK, Hook::NODE_OUT) } else { refusal };
        assert_eq!(refusal.outcome, Outcome::SuppressedRefusal, "{hook:?}, near: {is_near}: the first may answer");
    }
}

/// The set that serves clients inside has two backends, that for external clients one.
#[test]
fn an_external_client_is_led_to_no_backend_of_the_set_for_clients_inside() {
    let external = |tables: &mut Memory| {
        edit(tables, |service| {
            (service.external_base, service.external_count) = (service.slot_base, 1);
            service.flags |= service_flags::OUTSIDE_LOCAL;
        });
    };
    let (mut tables, [first, again]) = asks_twice(Hook::NODE_IN, OUTSIDE, true, external);
    assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, first.backend));
    let refusal = tables.ask(reply(TCP, &first), RST | ACK, Hook::NODE_OUT);
    assert_eq!(refusal.outcome, Outcome::Replied, "no other one can take it");
}

/// Each of the other nodes leads a connection of such a service by its tuple; so does this one, once a flood has evicted the entries.
#[test]
fn what_is_led_by_its_tuple_stays_there() {
    let direct = |tables: &mut Memory| edit(tables, |service| service.flags |= service_flags::DSR);
    let flood = |tables: &mut Memory| tables.flood_until_s = u32::MAX;
    for (hook, is_near) in [(Hook::NODE_IN, true), (Hook::XDP, false)] {
        let [first, again] = asks_twice(hook, OUTSIDE, is_near, direct).1;
        assert_eq!(again.backend, first.backend, "{hook:?}, near: {is_near}");
        let [first, again] = asks_twice(hook, OUTSIDE, is_near, flood).1;
        assert_eq!(again.backend, first.backend, "{hook:?}, near: {is_near}, in flood mode");
    }
}

#[test]
fn a_client_under_affinity_leaves_its_backend_at_the_second_retransmit_and_sticks_to_the_other() {
    let mut tables = serving(4);
    edit(&mut tables, |service| service.affinity_timeout_s = 60);
    let first = syn(&mut tables, 4000);
    assert!((4001..4050).all(|port| syn(&mut tables, port).backend == first.backend));
    assert_eq!(syn_again(&mut tables, 4000).outcome, Outcome::Forwarded);
    let moved = syn_again(&mut tables, 4000);
    assert_eq!(moved.outcome, Outcome::Retried);
    accept(&mut tables, 4000, &moved);
    tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN);
    assert!((4051..4099).all(|port| syn(&mut tables, port).backend == moved.backend));
    tables.backends.get_mut(&moved.backend).unwrap().flags |= backend_flags::UNHEALTHY;
    let next = (4100..4200).map(|port| syn(&mut tables, port).backend).collect::<Vec<_>>();
    assert!(next.iter().all(|backend| *backend == next[0] && *backend != moved.backend), "they agree again: {next:?}");
}

#[test]
fn a_half_open_flow_begins_anew_when_its_backend_is_gone_or_nobody_remembers_it() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, 4000);
    tables.backends.get_mut(&sent.backend).unwrap().state = backend_state::GONE;
    let refused = accept(&mut tables, 4000, &sent);
    assert_eq!((refused.action, refused.outcome), (Action::Refuse, Outcome::Evicted));
    tables.serve(1, 20, frontend(TCP), &BACKENDS[1..2], 8080);
    let anew = syn(&mut tables, 4000);
    assert_eq!((anew.outcome, anew.address), (Outcome::Selected, BACKENDS[1]));
    tables.pass_seconds(u64::from(limits::TCP_HALF_OPEN_TIMEOUT_S) + 1);
    let direct = answers(asks(TCP, 4000), &anew).reversed();
    assert_eq!(tables.ask(direct, SYN, Hook::POD_IN).action, Action::Pass, "an old one blocks no tuple");
}

#[test]
fn a_backend_that_is_its_own_client_meets_the_service_at_the_other_end() {
    let mut tables = Memory::default();
    tables.serve(1, 0, frontend(TCP), &[CLIENT], 8080);
    let sent = syn(&mut tables, 4000);
    assert!(sent.masquerade);
    assert_eq!((sent.address, sent.port, sent.client_port), (CLIENT, 8080, 4000));
    let reply = tables.ask(answers(asks(TCP, 4000), &sent), SYN | ACK, Hook::POD_IN);
    assert_eq!((reply.action, reply.masquerade, reply.route), (Action::ToClient, true, true));
    assert_eq!((reply.address, reply.port, reply.client_port), (VIP, 80, 4000));
    let open = tables.ask(asks(TCP, 4000), ACK, Hook::POD_IN);
    assert_eq!((open.outcome, tables.flows.len()), (Outcome::Forwarded, 2));
    assert!(tables.flows.values().all(|flow| flow.flags & flow_flags::MASQUERADED != 0));
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 256))]

    /// Whatever is sent, an answered flow's state only grows and it stays with its backend, until it is forgotten.
    #[test]
    fn states_only_grow_and_an_answered_flow_never_moves(steps in prop::collection::vec((0u8..8, 0u64..2), 1..60)) {
        let mut tables = serving(4);
        let mut sent = syn(&mut tables, 4000);
        let key = asks(TCP, 4000);
        for (what, seconds) in steps {
            tables.pass_seconds(seconds);
            let before = tables.flows.get(&key).copied();
            let verdict = match what {
                0 | 1 => tables.ask(key, SYN, Hook::POD_IN),
                2 => tables.ask(key, ACK, Hook::POD_IN),
                3 => tables.ask(key, FIN | ACK, Hook::POD_IN),
                4 => tables.ask(answers(key, &sent), SYN | ACK, Hook::POD_OUT),
                5 => tables.ask(answers(key, &sent), FIN | ACK, Hook::POD_OUT),
                6 => tables.ask(answers(key, &sent), RST | ACK, Hook::POD_OUT),
                _ => tables.ask(answers(key, &sent), ACK, Hook::POD_OUT),
            };
            if verdict.action == Action::ToBackend {
                sent = verdict;
            }
            let after = tables.flows.get(&key);
            if let (Some(before), Some(after)) = (before, after) {
                prop_assert!(after.state >= before.state);
                prop_assert_eq!((after.backend, after.isn, after.since_s), (before.backend, before.isn, before.since_s));
                prop_assert_ne!(verdict.outcome, Outcome::Retried);
            }
        }
    }
}
