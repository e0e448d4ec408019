//! Ejection needs proof: the connections of two clients, which a backend left unanswered or refused, and another one answered.

use std::collections::BTreeSet;

use crate::openings::{answers, asks, serving};
use lb_common::abi::{FlowKey, TCP, UDP, flow_state};
use lb_common::decide::{Action, Hook, Packet, Step, Verdict, Work, as_refusal, leaves_half, open, retry};
use lb_common::limits::{EVIDENCE_S, PROBE_INTERVAL_S, UDP_ANSWER_S, UDP_UNANSWERED_FLOWS};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

const ANN: u8 = 2;
const BOB: u8 = 3;
const EVE: u8 = 4;

fn from(client: u8, protocol: u8, port: u16) -> FlowKey<4> {
    FlowKey { src: [10, 0, 1, client], ..asks(protocol, port) }
}

fn syn(tables: &mut Memory, key: FlowKey<4>) -> Verdict<4> {
    tables.ask(key, SYN, Hook::POD_IN)
}

fn accept(tables: &mut Memory, key: FlowKey<4>, sent: &Verdict<4>) -> Verdict<4> {
    tables.ask(answers(key, sent), SYN | ACK, Hook::POD_OUT)
}

/// A connection of the client to `wanted`, or to any backend, that nobody has answered yet.
fn asked(tables: &mut Memory, client: u8, wanted: Option<u32>) -> (FlowKey<4>, Verdict<4>) {
    let keys = (4_000..5_000).map(|port| from(client, TCP, port));
    let key = keys.into_iter().filter(|key| !tables.half_open.contains_key(key));
    for key in key.collect::<Vec<_>>() {
        let sent = syn(tables, key);
        if wanted.is_none_or(|wanted| sent.backend == wanted) {
            return (key, sent);
        }
        tables.half_open.clear();
    }
    panic!("{client} is never sent to {wanted:?}");
}

/// The backend leaves a connection of the client unanswered, and another one answers it.
fn meets_silence(tables: &mut Memory, client: u8, wanted: Option<u32>) -> u32 {
    let (key, sent) = asked(tables, client, wanted);
    tables.pass_seconds(1);
    let moved = syn(tables, key);
    assert_ne!(moved.backend, sent.backend);
    assert_eq!(accept(tables, key, &moved).outcome, Outcome::Replied);
    sent.backend
}

/// How many of a hundred connections of the client are sent to the backend.
fn sent_to(tables: &mut Memory, client: u8, backend: u32) -> usize {
    (10_000..10_100).filter(|port| syn(tables, from(client, TCP, *port)).backend == backend).count()
}

#[test]
fn what_one_client_has_met_keeps_only_that_client_away() {
    let mut tables = serving(2);
    let silent = meets_silence(&mut tables, ANN, None);
    assert_eq!(meets_silence(&mut tables, ANN, None), 3 - silent, "she is sent to the other one only");
    let mut tables = serving(4);
    let silent = meets_silence(&mut tables, ANN, None);
    assert_eq!(tables.notes, []);
    assert_eq!(sent_to(&mut tables, ANN, silent), 0);
    assert!(sent_to(&mut tables, BOB, silent) > 10, "another client has met nothing");
    tables.half_open.clear();
    tables.pass_seconds(u64::from(EVIDENCE_S) + 1);
    assert!(sent_to(&mut tables, ANN, silent) > 10, "it was long ago");
}

#[test]
fn the_evidence_of_a_second_client_ejects_the_backend_for_all_but_a_probe() {
    let mut tables = serving(4);
    let silent = meets_silence(&mut tables, ANN, None);
    meets_silence(&mut tables, BOB, Some(silent));
    assert_eq!(tables.notes, [(silent, Outcome::Ejected)]);
    tables.half_open.clear();
    assert_eq!(sent_to(&mut tables, EVE, silent), 0);
    tables.half_open.clear();
    tables.pass_seconds(u64::from(PROBE_INTERVAL_S));
    assert_eq!(sent_to(&mut tables, EVE, silent), 1);
    let probe = tables.half_open.iter().find(|(_, entry)| entry.flow.backend == silent).unwrap();
    assert!(probe.1.flow.backend == silent);
}

#[test]
fn a_second_client_must_come_within_the_time_that_evidence_counts() {
    let mut tables = serving(4);
    let silent = meets_silence(&mut tables, ANN, None);
    tables.pass_seconds(u64::from(EVIDENCE_S) + 1);
    meets_silence(&mut tables, BOB, Some(silent));
    assert_eq!(tables.notes, []);
    meets_silence(&mut tables, EVE, Some(silent));
    assert_eq!(tables.notes, [(silent, Outcome::Ejected)]);
}

#[test]
fn at_least_half_of_a_services_backends_stay() {
    for count in [1, 2, 3, 4] {
        let mut tables = serving(count);
        let ids: Vec<u32> = (1..).take(count).collect();
        let slots = u32::try_from(count).unwrap();
        let ejected = ids.iter().filter(|id| {
            let leaves_half = leaves_half(&mut tables, 0, slots, **id);
            if leaves_half {
                tables.eject(**id);
            }
            leaves_half
        });
        assert_eq!(ejected.count(), count / 2, "of {count}");
    }
}

#[test]
fn an_answer_to_anybody_since_the_connection_began_refutes_the_evidence() {
    let mut tables = serving(4);
    let (key, sent) = asked(&mut tables, ANN, None);
    let (other, to) = (from(BOB, TCP, 20_000), sent.backend);
    let others = (20_000..20_100).map(|port| from(BOB, TCP, port));
    let (other, verdict) =
        others.map(|key| (key, syn(&mut tables, key))).find(|(_, sent)| sent.backend == to).unwrap_or((other, sent));
    accept(&mut tables, other, &verdict);
    tables.pass_seconds(1);
    let moved = syn(&mut tables, key);
    accept(&mut tables, key, &moved);
    assert!(sent_to(&mut tables, ANN, sent.backend) > 10);
    meets_silence(&mut tables, BOB, Some(sent.backend));
    assert_eq!(tables.notes, [], "it has evidence of one client");
}

#[test]
fn an_ejected_backend_that_answers_is_cleared() {
    let mut tables = serving(4);
    let silent = meets_silence(&mut tables, ANN, None);
    meets_silence(&mut tables, BOB, Some(silent));
    tables.pass_seconds(u64::from(PROBE_INTERVAL_S));
    let mut all = (5_000..5_100).map(|port| from(EVE, TCP, port)).map(|key| (key, syn(&mut tables, key)));
    let (key, sent) = all.find(|(_, sent)| sent.outcome == Outcome::Probed).unwrap();
    assert_eq!(sent.backend, silent);
    accept(&mut tables, key, &sent);
    assert_eq!(tables.notes, [(silent, Outcome::Ejected), (silent, Outcome::Cleared)]);
    assert!(sent_to(&mut tables, ANN, silent) > 10, "her evidence is refuted as well");
}

#[test]
fn a_late_answer_is_refused_and_shows_that_its_backend_lives() {
    let mut tables = serving(4);
    let (key, first) = asked(&mut tables, ANN, None);
    tables.pass_seconds(1);
    let moved = syn(&mut tables, key);
    accept(&mut tables, key, &moved);
    let late = accept(&mut tables, key, &first);
    assert_eq!((late.action, late.outcome), (Action::Refuse, Outcome::RefusedLate));
    let reset = tables.ask(answers(key, &first), RST | ACK, Hook::POD_OUT);
    assert_eq!(reset.action, Action::Drop, "nothing of it reaches the client");
    meets_silence(&mut tables, BOB, Some(first.backend));
    assert_eq!(tables.notes, [], "the first evidence is refuted");
}

/// The connection's backend refuses it: by itself, or an ICMP error says so.
fn is_refused(tables: &mut Memory, key: FlowKey<4>, sent: &Verdict<4>, by_error: bool) {
    let packet = Packet { ack: ISN + 1, ..Packet::new(answers(key, sent), RST | ACK) };
    let mut work = Work::new(packet);
    if by_error {
        as_refusal(&mut work, ISN);
    }
    if open(tables, &mut work, Hook::POD_OUT, Step::Handshake) == Step::Retry {
        retry(tables, &mut work, Hook::POD_OUT, Step::Retry);
    }
    assert_eq!(work.verdict.outcome, Outcome::SuppressedRefusal);
}

#[test]
fn a_refusal_is_evidence_and_an_icmp_error_is_none() {
    for by_error in [false, true] {
        let mut tables = serving(4);
        let mut refuses = None;
        for client in [ANN, BOB] {
            let (key, sent) = asked(&mut tables, client, refuses);
            is_refused(&mut tables, key, &sent, by_error);
            tables.pass_seconds(1);
            let moved = syn(&mut tables, key);
            assert_ne!(moved.backend, sent.backend, "either way the connection goes elsewhere");
            accept(&mut tables, key, &moved);
            refuses = Some(sent.backend);
        }
        let ejected = usize::from(!by_error);
        assert_eq!(tables.notes.len(), ejected, "a policy refuses by ICMP: {by_error}");
    }
}

#[test]
fn a_client_that_gets_no_answer_from_any_backend_is_no_evidence() {
    let mut tables = serving(4);
    for client in [ANN, BOB] {
        for port in 4000..4050 {
            for _ in 0..6 {
                tables.pass_seconds(1);
                syn(&mut tables, from(client, TCP, port));
            }
        }
    }
    assert!(tables.notes.is_empty());
    assert!(tables.health.values().all(|health| health.evidence_client == 0));
}

/// Asks by UDP; `answering`: the backend that answers.
fn query(tables: &mut Memory, client: u8, port: u16, answering: u32) -> u32 {
    let key = from(client, UDP, port);
    let sent = tables.ask(key, 0, Hook::POD_IN);
    if sent.backend == answering {
        tables.ask(answers(key, &sent), 0, Hook::POD_OUT);
    }
    sent.backend
}

#[test]
fn a_udp_backend_that_leaves_several_clients_unanswered_is_ejected_where_another_one_answers() {
    let mut tables = serving(2);
    let answering = query(&mut tables, ANN, 3_000, 0);
    let key = from(ANN, UDP, 3_000);
    tables.ask(answers(key, &Verdict { ..tables_verdict(&tables, key) }), 0, Hook::POD_OUT);
    for port in 4_000..4_100 {
        for client in [ANN, BOB, EVE] {
            query(&mut tables, client, port, answering);
        }
    }
    assert_eq!(tables.notes, [], "queries under way are no evidence");
    tables.pass_seconds(u64::from(UDP_ANSWER_S));
    for port in 5_000..5_010 {
        query(&mut tables, EVE, port, answering);
    }
    assert_eq!(tables.notes.iter().filter(|(_, what)| *what == Outcome::Ejected).count(), 1);
    assert!((6_000..6_100).all(|port| query(&mut tables, BOB, port, answering) == answering));
}

fn tables_verdict(tables: &Memory, key: FlowKey<4>) -> Verdict<4> {
    let flow = tables.half_open[&key].flow;
    Verdict {
        address: flow.address,
        port: flow.port,
        client: flow.client,
        client_port: flow.client_port,
        ..Work::new(Packet::new(key, 0)).verdict
    }
}

#[test]
fn a_udp_client_avoids_by_itself_whom_it_alone_has_met_silent() {
    let mut tables = serving(2);
    let answering = 11;
    for port in 4_000..4_100 {
        query(&mut tables, ANN, port, answering);
    }
    tables.pass_seconds(u64::from(UDP_ANSWER_S));
    assert!((5_000..5_050).all(|port| query(&mut tables, ANN, port, answering) == answering));
    assert_eq!(tables.notes, []);
    let others = (6_000..6_050).filter(|port| query(&mut tables, BOB, *port, answering) != answering).count();
    assert!(others >= UDP_UNANSWERED_FLOWS as usize - 1, "{others}");
}

#[test]
fn udp_becomes_a_stream_when_its_client_asks_again() {
    let mut tables = serving(2);
    let sent = tables.ask(asks(UDP, 4000), 0, Hook::POD_IN);
    tables.ask(answers(asks(UDP, 4000), &sent), 0, Hook::POD_OUT);
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::OPEN));
    tables.ask(asks(UDP, 4000), 0, Hook::POD_IN);
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::STREAM));
}

#[test]
fn a_service_that_never_answers_keeps_all_its_backends() {
    let mut tables = serving(2);
    let mut met = BTreeSet::new();
    for port in 4000..4200 {
        met.insert(query(&mut tables, [ANN, BOB, EVE][usize::from(port % 3)], port, 0));
        tables.pass_seconds(1);
    }
    assert_eq!(met.len(), 2);
    assert!(tables.notes.is_empty());
}
