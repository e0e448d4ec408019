//! Answers where the entries of their flow are missing, another flow's, or changed by another processor meanwhile, over plain tables.

use lb_common::abi::{Flow, FlowKey, ServiceKey, TCP, UDP, flow_flags, flow_state, half_open_flags};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, reply, tuple};
use lb_common::state::{
    SourcePorts,
    tcp_flag::{ACK, SYN},
};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIP: [u8; 4] = [10, 96, 0, 10];
const BACKENDS: [[u8; 4]; 2] = [[10, 0, 1, 11], [10, 0, 1, 12]];

fn request(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, 40_000), (VIP, 80))
}

/// A flow's first packet.
fn asked(protocol: u8) -> (Memory, Verdict<4>) {
    let mut tables = Memory::default();
    for (id, base, protocol, port) in [(1, 0, TCP, 8080), (2, 10, UDP, 5353)] {
        tables.serve(id, base, ServiceKey { address: VIP, port: 80, protocol, pad: 0 }, &BACKENDS, port);
    }
    let sent = tables.ask(request(protocol), if protocol == TCP { SYN } else { 0 }, Hook::POD_IN);
    assert_eq!(sent.action, Action::ToBackend);
    (tables, sent)
}

/// Its backend's first answer.
fn answered(tables: &mut Memory, protocol: u8, sent: &Verdict<4>) -> (Action, Outcome) {
    let flags = if protocol == TCP { SYN | ACK } else { 0 };
    let verdict = tables.ask(reply(protocol, sent), flags, Hook::POD_OUT);
    (verdict.action, verdict.outcome)
}

const REPLIED: (Action, Outcome) = (Action::ToClient, Outcome::Replied);

/// A backend whose connection the client has given up gets a RST. The client of two datagrams waits for both answers.
fn late(protocol: u8) -> (Action, Outcome) {
    if protocol == TCP { (Action::Refuse, Outcome::RefusedLate) } else { REPLIED }
}

/// The address of the backend that was not chosen.
fn other(sent: &Verdict<4>) -> [u8; 4] {
    BACKENDS.into_iter().find(|address| *address != sent.address).unwrap()
}

#[test]
fn an_answer_of_a_backend_that_the_clients_entry_does_not_lead_to_opens_nothing() {
    for protocol in [TCP, UDP] {
        let (mut tables, sent) = asked(protocol);
        tables.half_open.get_mut(&request(protocol)).unwrap().flow.address = other(&sent);
        assert_eq!(answered(&mut tables, protocol, &sent), late(protocol));
        assert!(tables.flows.is_empty(), "it opens nothing");
    }
    // An entry that waits for a second connection beside an answered one is not the first one's.
    let (mut tables, sent) = asked(TCP);
    tables.half_open.get_mut(&request(TCP)).unwrap().flags |= half_open_flags::SECOND;
    assert_eq!(answered(&mut tables, TCP, &sent), late(TCP));
    let (mut tables, sent) = asked(UDP);
    let entry = tables.half_open.get_mut(&request(UDP)).unwrap();
    (entry.flags, entry.flow.address) = (entry.flags | half_open_flags::SECOND, other(&sent));
    assert_eq!(answered(&mut tables, UDP, &sent), REPLIED);
}

#[test]
fn an_answer_whose_clients_entry_is_lost_is_delivered() {
    for protocol in [TCP, UDP] {
        let (mut tables, sent) = asked(protocol);
        tables.half_open.remove(&request(protocol)).unwrap();
        assert_eq!(answered(&mut tables, protocol, &sent), REPLIED);
        let flags = if protocol == TCP { ACK } else { 0 };
        let next = tables.ask(request(protocol), flags, Hook::POD_IN);
        assert_eq!((next.outcome, next.backend), (Outcome::Forwarded, sent.backend));
    }
}

/// The answered flow of another connection under the client's tuple, as the entry of this one but for its backend.
fn others(mine: &Flow<4>, sent: &Verdict<4>, seen_s: u32) -> Flow<4> {
    Flow { address: other(sent), state: flow_state::OPEN, seen_s, ..*mine }
}

#[test]
fn where_another_flow_has_the_clients_tuple_the_answer_opens_none_until_that_one_is_over() {
    for protocol in [TCP, UDP] {
        for (seconds, expected) in [(0, late(protocol)), (u64::from(limits::TCP_IDLE_TIMEOUT_S) + 1, REPLIED)] {
            let (mut tables, _) = asked(protocol);
            let seen_s = u32::try_from(tables.now_ns / 1_000_000_000).unwrap();
            tables.half_open.clear();
            tables.pass_seconds(seconds);
            let sent = tables.ask(request(protocol), if protocol == TCP { SYN } else { 0 }, Hook::POD_IN);
            let mine = tables.half_open[&request(protocol)].flow;
            tables.flows.insert(request(protocol), others(&mine, &sent, seen_s));
            if protocol == TCP {
                tables.half_open.remove(&request(protocol)).unwrap();
            }
            assert_eq!(answered(&mut tables, protocol, &sent), expected, "after {seconds} s");
            let leads_to = tables.flows.get(&request(protocol)).map(|flow| flow.address);
            let is_mine = seconds != 0;
            assert_eq!(leads_to == Some(other(&sent)), !is_mine, "another connection's entry stays while it lives");
            let connections = tables.health.get(&sent.backend).map_or(0, |health| health.connections);
            assert_eq!(connections, u32::from(is_mine && protocol == UDP), "counted once it is open");
        }
    }
}

#[test]
fn a_flow_that_another_processor_opened_meanwhile_is_counted_once() {
    let (mut tables, sent) = asked(UDP);
    let half_open = tables.half_open.clone();
    assert_eq!(answered(&mut tables, UDP, &sent), REPLIED);
    assert_eq!(tables.health[&sent.backend].connections, 1);
    // As this processor saw the tables when it began.
    tables.half_open = half_open;
    tables.flows.remove(&reply(UDP, &sent)).unwrap();
    assert_eq!(answered(&mut tables, UDP, &sent), REPLIED);
    assert_eq!((tables.flows.len(), tables.half_open.len()), (2, 0));
    assert_eq!(tables.health[&sent.backend].connections, 1);
}

#[test]
fn either_of_two_answers_may_be_acknowledged_however_often_they_come() {
    for number in [500, 600] {
        let (mut tables, sent) = asked(TCP);
        for seq in [500, 600, 600] {
            let again = tables.ask_numbered(reply(TCP, &sent), SYN | ACK, seq, ISN + 1, Hook::POD_OUT);
            assert_eq!(again.outcome, Outcome::Replied);
        }
        let opens = tables.ask_numbered(request(TCP), ACK, ISN + 1, number + 1, Hook::POD_IN);
        assert_eq!((opens.outcome, tables.flows.len()), (Outcome::Forwarded, 2), "{number}");
    }
}

#[test]
fn a_direct_connection_counts_for_no_backend() {
    let (mut tables, sent) = asked(TCP);
    tables.ports = SourcePorts::of_range(61_000, 8);
    assert_eq!(answered(&mut tables, TCP, &sent), REPLIED);
    assert_eq!(tables.ask(request(TCP), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    let direct = FlowKey { dst: sent.address, dst_port: sent.port, ..request(TCP) };
    let translated = tables.ask(direct, SYN, Hook::POD_IN);
    assert_eq!(translated.outcome, Outcome::DirectTranslated);
    let back = FlowKey { dst_port: translated.client_port, ..direct.reversed() };
    // The backend may still know an earlier connection of the tuple: the client judges.
    assert_eq!(
        tables.ask_numbered(back, ACK, 99, 77, Hook::POD_IN).action,
        Action::Pass,
        "the client's own link translates"
    );
    let earlier = tables.ask_numbered(back, ACK, 99, 77, Hook::POD_OUT);
    assert_eq!((earlier.action, earlier.client_port), (Action::ToClient, request(TCP).src_port));
    assert_eq!(tables.ask(back, SYN | ACK, Hook::POD_OUT).action, Action::ToClient);
    assert_eq!(tables.ask(direct, ACK, Hook::POD_IN).action, Action::ToBackend);
    assert!(tables.flows.values().all(|flow| flow.flags & flow_flags::COUNTED == 0 || flow.backend != 0));
    let counted: Vec<_> = tables.health.iter().map(|(id, health)| (*id, health.connections)).collect();
    assert_eq!(counted, [(sent.backend, 1)]);
}
