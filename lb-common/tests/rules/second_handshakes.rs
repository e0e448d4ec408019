//! A SYN with another initial sequence number ends nothing: a second handshake begins beside what is there, and replaces it once it is complete.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi::{Health, TCP, flow_state, is_second, second, second_key};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory};
use lb_common::state::tcp_flag::{ACK, FIN, PSH, RST, SYN};

use super::openings::{accept, answers, asks, serving, syn, syn_again};

const PORT: u16 = 4000;
/// The first numbers of the client's other connection, and of the backend that answers it.
const OTHER: u32 = 900_000;
const ITS: u32 = 5_000_000;

/// A connection that is established, and the backend's place.
fn established(backends: usize) -> (Memory, Verdict<4>) {
    let mut tables = serving(backends);
    let sent = syn(&mut tables, PORT);
    accept(&mut tables, PORT, &sent);
    assert_eq!(tables.ask(asks(TCP, PORT), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    (tables, sent)
}

/// A client's segment with these numbers.
fn says(tables: &mut Memory, flags: u8, seq: u32, ack: u32) -> Verdict<4> {
    tables.ask_numbered(asks(TCP, PORT), flags, seq, ack, Hook::POD_IN)
}

/// SYNs of another connection, a second apart, until a second handshake begins.
fn begin(tables: &mut Memory) -> Verdict<4> {
    for _ in 0..limits::SECOND_HANDSHAKE_S + 3 {
        tables.pass_seconds(1);
        let sent = says(tables, SYN, OTHER, 0);
        if sent.outcome == Outcome::SecondHandshake {
            return sent;
        }
        assert_eq!(sent.outcome, Outcome::Forwarded);
    }
    panic!("no second handshake begins");
}

fn answer(tables: &mut Memory, sent: &Verdict<4>) -> Verdict<4> {
    tables.ask_numbered(answers(asks(TCP, PORT), sent), SYN | ACK, ITS, OTHER + 1, Hook::POD_OUT)
}

/// The connection goes on with its backend, in both directions.
#[track_caller]
fn lives(tables: &mut Memory, sent: &Verdict<4>) {
    let asked = says(tables, ACK | PSH, ISN + 1, ISN + 1);
    assert_eq!((asked.outcome, asked.backend, asked.client_port), (Outcome::Forwarded, sent.backend, sent.client_port));
    let reply = answers(asks(TCP, PORT), sent);
    let replied = tables.ask(reply, ACK, Hook::POD_OUT);
    assert_eq!((replied.action, replied.address, replied.client_port), (Action::ToClient, sent_to().0, PORT));
}

fn sent_to() -> ([u8; 4], u16) {
    (asks(TCP, PORT).dst, asks(TCP, PORT).dst_port)
}

#[test]
fn three_silent_syns_leave_the_connection_as_it_is() {
    let (mut tables, sent) = established(2);
    let other = begin(&mut tables);
    assert_ne!(other.client_port, PORT, "its answers have another tuple");
    lives(&mut tables, &sent);
    // Its answer reaches the client, which lives and answers with the numbers of its connection.
    let told = answer(&mut tables, &other);
    assert_eq!((told.action, told.address, told.client_port), (Action::ToClient, sent_to().0, PORT));
    lives(&mut tables, &sent);
    for (flags, seq, ack) in [
        (ACK, OTHER + 1, ITS),
        (ACK, OTHER + 1, ITS + 2),
        (ACK, OTHER - 1, ITS + 1),
        (RST, OTHER, 0),
        (ACK | FIN, 7, 7),
    ] {
        assert_eq!(says(&mut tables, flags, seq, ack).backend, sent.backend, "{flags}, {seq}, {ack}: forged");
        lives(&mut tables, &sent);
    }
    // Nobody completes it, and it is forgotten.
    tables.pass_seconds(u64::from(limits::TCP_HALF_OPEN_TIMEOUT_S) + 1);
    lives(&mut tables, &sent);
    assert_eq!(tables.flows[&asks(TCP, PORT)].second, 0);
    assert_eq!(says(&mut tables, ACK, OTHER + 1, ITS + 1).backend, sent.backend, "too late");
    lives(&mut tables, &sent);
}

#[test]
fn the_clients_own_acknowledgement_replaces_the_connection() {
    let (mut tables, sent) = established(2);
    let other = begin(&mut tables);
    answer(&mut tables, &other);
    let done = says(&mut tables, ACK, OTHER + 1, ITS + 1);
    assert_eq!((done.outcome, done.backend, done.client_port), (Outcome::Forwarded, other.backend, other.client_port));
    assert_eq!((tables.flows.len(), tables.half_open.len()), (2, 0), "of the old one nothing is left");
    assert!(tables.flows.values().all(|flow| (flow.isn, flow.second, flow.state) == (OTHER, 0, flow_state::OPEN)));
    assert!(!tables.flows.contains_key(&answers(asks(TCP, PORT), &sent)));
    let counted: u32 = tables.health.values().map(|health| health.connections).sum();
    assert_eq!((counted, tables.health[&other.backend].connections), (1, 1));
    assert!(tables.client_shares.values().all(|count| (0..=1).contains(count)), "{:?}", tables.client_shares);
    // It is the connection now, and ends as one.
    let reply = answers(asks(TCP, PORT), &other);
    tables.ask_numbered(reply, ACK, ITS + 1, OTHER + 1, Hook::POD_OUT);
    says(&mut tables, RST, OTHER + 1, ITS + 1);
    assert!(tables.flows.is_empty());
    assert!(tables.client_shares.values().all(|count| *count == 0), "{:?}", tables.client_shares);
}

#[test]
fn a_full_table_lets_the_connection_go_on() {
    let (mut tables, sent) = established(2);
    let other = begin(&mut tables);
    answer(&mut tables, &other);
    tables.capacity = 2;
    assert_eq!(says(&mut tables, ACK, OTHER + 1, ITS + 1).outcome, Outcome::DroppedTableFull);
    lives(&mut tables, &sent);
    tables.capacity = 100;
    assert_eq!(says(&mut tables, ACK, OTHER + 1, ITS + 1).backend, other.backend, "it is sent again");
    let (mut tables, sent) = established(2);
    tables.capacity = 0;
    for _ in 0..5 {
        tables.pass_seconds(1);
        let asked = says(&mut tables, SYN, OTHER, 0);
        assert!(asked.outcome == Outcome::DroppedTableFull || asked.backend == sent.backend, "{asked:?}");
    }
    tables.capacity = 100;
    lives(&mut tables, &sent);
}

#[test]
fn the_end_of_the_connection_lets_its_client_begin_anew() {
    let (mut tables, sent) = established(2);
    begin(&mut tables);
    // The challenge ACK of the old backend comes after all, and the client, which has restarted, resets it.
    tables.ask(answers(asks(TCP, PORT), &sent), ACK, Hook::POD_OUT);
    says(&mut tables, RST, ISN + 1, 0);
    assert!(tables.flows.is_empty());
    tables.pass_seconds(1);
    let anew = says(&mut tables, SYN, OTHER, 0);
    assert_eq!((anew.outcome, anew.client_port), (Outcome::Selected, PORT));
    assert!(tables.half_open.values().all(|entry| entry.flow.second & second::BESIDE == 0));
}

#[test]
fn a_client_resets_the_answer_that_it_does_not_want() {
    let (mut tables, sent) = established(2);
    let other = begin(&mut tables);
    answer(&mut tables, &other);
    let reset = says(&mut tables, RST, OTHER + 1, 0);
    assert_eq!((reset.outcome, reset.backend), (Outcome::Forwarded, other.backend));
    assert!(tables.half_open.keys().all(|key| !is_second(key)));
    lives(&mut tables, &sent);
}

#[test]
fn an_unanswered_second_handshake_moves_on_and_teaches_nothing() {
    let (mut tables, sent) = established(4);
    let known = |tables: &Memory| {
        tables.health.iter().filter(|(_, it)| it.generation != 0).map(|(id, it)| (*id, *it)).collect()
    };
    let before: BTreeMap<u32, Health> = known(&tables);
    let mut met = BTreeSet::new();
    begin(&mut tables);
    for _ in 0..60 {
        tables.pass_seconds(1);
        let again = says(&mut tables, SYN, OTHER, 0);
        assert_eq!(again.outcome, Outcome::SecondHandshake);
        met.insert(again.backend);
        assert_eq!(says(&mut tables, SYN, OTHER, 0).outcome, Outcome::Forwarded, "doubled by the network");
    }
    assert_eq!(met.len(), 4, "one of them may answer");
    let last = says(&mut tables, SYN, OTHER, 0);
    answer(&mut tables, &last);
    assert_eq!(known(&tables), before, "anybody may have sent the SYN");
    // Answered, it keeps its place for a moment.
    assert_eq!(says(&mut tables, SYN, OTHER, 0).backend, last.backend);
    for number in 1..5 {
        assert_eq!(says(&mut tables, SYN, OTHER + number, 0).backend, sent.backend);
    }
    assert_eq!(says(&mut tables, ACK, OTHER + 1, ITS + 1).backend, last.backend);
}

#[test]
fn no_other_syn_resets_a_handshake_in_progress() {
    for is_answered in [false, true] {
        let mut tables = serving(2);
        let sent = syn(&mut tables, PORT);
        if is_answered {
            accept(&mut tables, PORT, &sent);
        }
        for number in 0..20 {
            assert_eq!(says(&mut tables, SYN, 77 + number, 0).outcome, Outcome::SecondHandshake);
        }
        assert!(tables.half_open[&asks(TCP, PORT)].flow.isn == ISN);
        let again = syn_again(&mut tables, PORT);
        let sent = if is_answered { sent } else { again };
        assert_eq!(accept(&mut tables, PORT, &sent).outcome, Outcome::Replied);
        let done = tables.ask(asks(TCP, PORT), ACK, Hook::POD_IN);
        assert_eq!((done.outcome, done.backend), (Outcome::Forwarded, sent.backend));
        lives(&mut tables, &sent);
    }
}

#[test]
fn a_client_that_restarts_in_its_handshake_gets_in() {
    for first_answers_late in [false, true] {
        let mut tables = serving(2);
        let sent = syn(&mut tables, PORT);
        let other = says(&mut tables, SYN, OTHER, 0);
        assert_eq!(other.outcome, Outcome::SecondHandshake);
        assert_eq!(answer(&mut tables, &other).action, Action::ToClient);
        if first_answers_late {
            // The client resets what it does not know.
            accept(&mut tables, PORT, &sent);
            says(&mut tables, RST, ISN + 1, 0);
        }
        let done = says(&mut tables, ACK, OTHER + 1, ITS + 1);
        assert_eq!((done.outcome, done.backend), (Outcome::Forwarded, other.backend));
        assert_eq!(tables.flows.len(), 2);
        assert_eq!(
            accept(&mut tables, PORT, &sent).action,
            if first_answers_late { Action::Pass } else { Action::Refuse }
        );
    }
}

#[test]
fn its_backend_may_refuse_a_second_handshake() {
    let (mut tables, sent) = established(2);
    let other = begin(&mut tables);
    let refused = tables.ask_numbered(answers(asks(TCP, PORT), &other), RST | ACK, 0, OTHER + 1, Hook::POD_OUT);
    assert_eq!((refused.action, refused.client_port), (Action::ToClient, PORT), "the client judges");
    let mut key = asks(TCP, PORT);
    second_key(&mut key);
    assert!(!tables.half_open.contains_key(&key));
    lives(&mut tables, &sent);
}
