//! A connection that was retried: each backend that was tried may answer, and the first answer that goes to the client decides.

use std::collections::BTreeSet;

use crate::openings::{accept, answers, asks, serving, syn, syn_again};
use lb_common::abi::{TCP, half_open_flags, is_claim};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

const PORT: u16 = 4000;

/// A backend's answer with this number.
fn answer(tables: &mut Memory, sent: &Verdict<4>, number: u32) -> (Action, Outcome) {
    let verdict = tables.ask_numbered(answers(asks(TCP, PORT), sent), SYN | ACK, number, ISN + 1, Hook::POD_OUT);
    (verdict.action, verdict.outcome)
}

/// The backend's RST.
fn refuse(tables: &mut Memory, sent: &Verdict<4>) -> (Action, Outcome) {
    let verdict = tables.ask(answers(asks(TCP, PORT), sent), RST | ACK, Hook::POD_OUT);
    (verdict.action, verdict.outcome)
}

/// The client's segment that acknowledges the answer with this number.
fn acknowledge(tables: &mut Memory, number: u32) -> Verdict<4> {
    tables.ask_numbered(asks(TCP, PORT), ACK, ISN + 1, number + 1, Hook::POD_IN)
}

/// The SYN, sent until each of so many backends has had it.
fn tried(count: usize) -> (Memory, Vec<Verdict<4>>) {
    let mut tables = serving(count);
    let mut sent = vec![syn(&mut tables, PORT)];
    sent.extend((1..count).map(|_| syn_again(&mut tables, PORT)));
    assert_eq!(sent.iter().map(|verdict| verdict.backend).collect::<BTreeSet<_>>().len(), count);
    (tables, sent)
}

const REPLIED: (Action, Outcome) = (Action::ToClient, Outcome::Replied);
const LATE: (Action, Outcome) = (Action::Refuse, Outcome::RefusedLate);
const SUPPRESSED: (Action, Outcome) = (Action::Drop, Outcome::SuppressedRefusal);

#[test]
fn whichever_backend_answers_first_gets_the_connection_and_the_others_a_reset() {
    for count in 2..=4 {
        for winner in 0..count {
            let (mut tables, sent) = tried(count);
            let number = |at: usize| 500 * u32::try_from(at + 1).unwrap();
            assert_eq!(answer(&mut tables, &sent[winner], number(winner)), REPLIED);
            for at in (0..count).filter(|at| *at != winner) {
                assert_eq!(answer(&mut tables, &sent[at], number(at)), LATE);
                assert_eq!(answer(&mut tables, &sent[at], number(at)), LATE, "and when it is sent again");
                assert_eq!(refuse(&mut tables, &sent[at]), (Action::Drop, Outcome::RefusedLate));
            }
            assert_eq!(answer(&mut tables, &sent[winner], number(winner)), REPLIED, "sent again, it passes");
            let again = syn_again(&mut tables, PORT);
            assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, sent[winner].backend));
            let data = acknowledge(&mut tables, number(winner));
            assert_eq!((data.outcome, data.backend), (Outcome::Forwarded, sent[winner].backend), "{winner} of {count}");
            assert_eq!((data.address, data.port), (sent[winner].address, sent[winner].port));
            assert_eq!(tables.flows.len(), 2);
            assert_eq!(tables.half_open.len(), count - 1, "the reply entries of the others expire");
            for at in (0..count).filter(|at| *at != winner) {
                assert_eq!(answer(&mut tables, &sent[at], number(at)), LATE, "and afterwards");
            }
        }
    }
}

#[test]
fn a_client_cannot_acknowledge_the_answer_of_a_backend_that_lost() {
    let (mut tables, sent) = tried(2);
    assert_eq!(answer(&mut tables, &sent[0], 500), REPLIED);
    assert_eq!(answer(&mut tables, &sent[1], 600), LATE);
    assert_eq!(acknowledge(&mut tables, 600).outcome, Outcome::RefusedNoFlow);
    assert_eq!(acknowledge(&mut tables, 500).backend, sent[0].backend);
}

#[test]
fn a_slow_backend_beside_dead_ones_is_reached_by_a_snat_port_too() {
    // A direct connection has the client's port at the first backend: the service's gets another one.
    let probe = syn(&mut serving(2), PORT);
    let mut tables = serving(2);
    tables.direct.push(answers(asks(TCP, PORT), &probe).reversed());
    let first = syn(&mut tables, PORT);
    let second = syn_again(&mut tables, PORT);
    assert!(first.client_port != PORT || second.client_port != PORT);
    assert_eq!(answer(&mut tables, &first, 500), REPLIED);
    let data = acknowledge(&mut tables, 500);
    assert_eq!((data.backend, data.address, data.client_port), (first.backend, first.address, first.client_port));
}

#[test]
fn an_answer_that_crosses_the_retry_wins() {
    let mut tables = serving(2);
    let first = syn(&mut tables, PORT);
    tables.pass_seconds(1);
    // Another processor notes the answer after this one has read the entry.
    tables.answered_meanwhile = Some([500; 2]);
    let again = syn(&mut tables, PORT);
    assert_eq!(again.backend, first.backend, "the SYN goes where the answer came from");
    let other = tables.half_open.values().find(|entry| entry.flow.backend != first.backend).copied();
    let other = other.expect("the retry had reserved a tuple").flow;
    let other = Verdict { backend: other.backend, address: tables.backends[&other.backend].address, ..first };
    assert_eq!(answer(&mut tables, &other, 600), LATE);
    assert_eq!(answer(&mut tables, &first, 500), REPLIED);
    assert_eq!(acknowledge(&mut tables, 500).backend, first.backend);
}

#[test]
fn a_lost_original_entry_lets_nobody_win_twice() {
    for first in 0..2 {
        let (mut tables, sent) = tried(2);
        tables.half_open.remove(&asks(TCP, PORT)).unwrap();
        assert_eq!(answer(&mut tables, &sent[first], 500), REPLIED);
        assert_eq!(answer(&mut tables, &sent[1 - first], 600), LATE);
        tables.half_open.remove(&asks(TCP, PORT)).unwrap();
        assert_eq!(answer(&mut tables, &sent[1 - first], 600), LATE);
        assert_eq!(answer(&mut tables, &sent[first], 500), REPLIED, "sent again, it heals the entry");
        assert_eq!(acknowledge(&mut tables, 500).backend, sent[first].backend);
    }
}

#[test]
fn the_claim_alone_lets_nobody_win_twice() {
    for first in 0..2 {
        let (mut tables, sent) = tried(2);
        tables.half_open.remove(&asks(TCP, PORT)).unwrap();
        assert_eq!(answer(&mut tables, &sent[first], 500), REPLIED);
        tables.half_open.remove(&asks(TCP, PORT)).unwrap();
        assert_eq!(answer(&mut tables, &sent[1 - first], 600), LATE);
        assert_eq!(answer(&mut tables, &sent[first], 500), REPLIED, "sent again, it heals the entry");
        assert_eq!(acknowledge(&mut tables, 500).backend, sent[first].backend);
    }
}

/// Another backend is not tried: the client may have acknowledged the answer already.
#[test]
fn a_backend_that_ends_the_connection_after_its_answer_is_heard() {
    for is_written_anew in [false, true] {
        let mut tables = serving(2);
        let sent = syn(&mut tables, PORT);
        assert_eq!(answer(&mut tables, &sent, 500), REPLIED);
        if is_written_anew {
            // The original entry was lost, and the client's next SYN wrote it: the answer is noted in the reply entry alone.
            tables.half_open.get_mut(&asks(TCP, PORT)).unwrap().flags &= !half_open_flags::ANSWERED;
        }
        assert_eq!(refuse(&mut tables, &sent), REPLIED, "written anew: {is_written_anew}");
    }
}

#[test]
fn a_lost_claim_lets_nobody_win_twice() {
    let (mut tables, sent) = tried(2);
    assert_eq!(answer(&mut tables, &sent[0], 500), REPLIED);
    tables.half_open.retain(|key, _| !is_claim(key));
    assert_eq!(answer(&mut tables, &sent[1], 600), LATE);
    assert_eq!(acknowledge(&mut tables, 500).backend, sent[0].backend);
}

#[test]
fn where_a_flood_evicts_claim_and_original_entry_the_client_is_reset_and_not_misled() {
    let (mut tables, sent) = tried(2);
    assert_eq!(answer(&mut tables, &sent[0], 500), REPLIED);
    tables.half_open.retain(|key, _| !is_claim(key) && *key != asks(TCP, PORT));
    assert_eq!(answer(&mut tables, &sent[1], 600), REPLIED, "nothing tells of the first answer");
    let reset = acknowledge(&mut tables, 500);
    assert_eq!((reset.action, reset.outcome), (Action::Refuse, Outcome::RefusedNoFlow), "not to the second backend");
    assert!(tables.flows.is_empty());
}

#[test]
fn another_attempt_on_the_same_tuple_is_not_bound_by_the_claim_before() {
    let (mut tables, sent) = tried(2);
    assert_eq!(answer(&mut tables, &sent[0], 500), REPLIED);
    let syn = |tables: &mut Memory| {
        tables.pass_seconds(1);
        tables.ask_numbered(asks(TCP, PORT), SYN, ISN + 70_000, 0, Hook::POD_IN)
    };
    let first = syn(&mut tables);
    let second = syn(&mut tables);
    assert_eq!((first.outcome, second.outcome), (Outcome::SecondHandshake, Outcome::SecondHandshake));
    let key = answers(asks(TCP, PORT), &second);
    let told = tables.ask_numbered(key, SYN | ACK, 900, ISN + 70_001, Hook::POD_OUT);
    assert_eq!(told.outcome, Outcome::Replied);
    let data = tables.ask_numbered(asks(TCP, PORT), ACK, ISN + 70_001, 901, Hook::POD_IN);
    assert_eq!((data.outcome, data.backend), (Outcome::Forwarded, second.backend));
}

#[test]
fn a_refusal_is_suppressed_while_a_backend_that_was_tried_may_answer() {
    for silent in 0..2 {
        let (mut tables, sent) = tried(2);
        assert_eq!(refuse(&mut tables, &sent[1 - silent]), SUPPRESSED);
        assert_eq!(answer(&mut tables, &sent[silent], 500), REPLIED, "it may take its time");
        assert_eq!(acknowledge(&mut tables, 500).backend, sent[silent].backend);
    }
}

#[test]
fn the_refusal_of_the_last_one_that_could_answer_is_passed_on() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let (mut tables, sent) = tried(3);
        assert_eq!(refuse(&mut tables, &sent[order[0]]), SUPPRESSED);
        assert_eq!(refuse(&mut tables, &sent[order[0]]), SUPPRESSED, "it counts once");
        assert_eq!(refuse(&mut tables, &sent[order[1]]), SUPPRESSED);
        assert_eq!(refuse(&mut tables, &sent[order[2]]), REPLIED, "{order:?}");
        assert!(!tables.half_open.contains_key(&asks(TCP, PORT)), "the connection is forgotten");
    }
}

#[test]
fn with_all_tried_the_syn_goes_to_each_again_but_not_to_one_that_refused() {
    let (mut tables, sent) = tried(2);
    let again = syn_again(&mut tables, PORT);
    assert_eq!((again.outcome, again.backend), (Outcome::Retried, sent[0].backend), "its SYN may have been lost");
    assert_eq!(syn_again(&mut tables, PORT).backend, sent[1].backend);
    assert_eq!(refuse(&mut tables, &sent[0]), SUPPRESSED);
    let stays = syn_again(&mut tables, PORT);
    assert_eq!((stays.outcome, stays.backend), (Outcome::Forwarded, sent[1].backend));
    assert_eq!(answer(&mut tables, &sent[1], 500), REPLIED);
    assert_eq!(acknowledge(&mut tables, 500).backend, sent[1].backend);
}

#[test]
fn no_four_syns_in_a_row_go_to_the_same_backend_while_there_are_others() {
    let mut tables = serving(4);
    let mut seen = vec![syn(&mut tables, PORT).backend];
    for _ in 0..3 {
        let again = syn_again(&mut tables, PORT);
        assert_eq!(again.outcome, Outcome::Retried);
        assert!(!seen.contains(&again.backend), "{} was tried", again.backend);
        seen.push(again.backend);
    }
    for _ in 0..20 {
        let again = syn_again(&mut tables, PORT);
        assert_ne!(Some(&again.backend), seen.last());
        seen.push(again.backend);
    }
    let last: BTreeSet<_> = seen[4..].iter().collect();
    assert_eq!(last.len(), 4, "all are asked again: {seen:?}");
}

#[test]
fn a_lost_syn_is_sent_again_to_a_backend_that_answers_others() {
    let (mut tables, sent) = tried(2);
    // The latest answers others.
    for port in 5000..5040 {
        let other = syn(&mut tables, port);
        if other.backend == sent[1].backend {
            accept(&mut tables, port, &other);
        }
    }
    let again = syn_again(&mut tables, PORT);
    assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, sent[1].backend));
}

#[test]
fn a_backend_is_not_blamed_for_being_asked_later_than_the_one_that_answered() {
    let (mut tables, sent) = tried(3);
    assert_eq!(answer(&mut tables, &sent[1], 500), REPLIED);
    let has_evidence =
        |at: usize| tables.health.get(&sent[at].backend).is_some_and(|health| health.evidence_client != 0);
    assert_eq!([has_evidence(0), has_evidence(1), has_evidence(2)], [true, false, false], "not the third one");
}

/// A SYN with data (TCP Fast Open).
fn syn_with_data(tables: &mut Memory) -> Verdict<4> {
    tables.pass_seconds(1);
    let mut work = Work::new(Packet { seq: ISN, payload: 100, ..Packet::new(asks(TCP, PORT), SYN) });
    decide(tables, &mut work, Hook::POD_IN);
    work.verdict
}

#[test]
fn a_syn_with_data_is_never_retried() {
    let mut tables = serving(4);
    let first = syn_with_data(&mut tables);
    for _ in 0..3 {
        let again = syn_with_data(&mut tables);
        assert_eq!((again.outcome, again.backend), (Outcome::Forwarded, first.backend));
        let without = syn_again(&mut tables, PORT);
        assert_eq!((without.outcome, without.backend), (Outcome::Forwarded, first.backend), "its data may be there");
    }
    assert_eq!(refuse(&mut tables, &first), REPLIED);
    // Data that comes only with the second SYN.
    let mut tables = serving(4);
    let first = syn(&mut tables, PORT);
    assert_eq!(syn_with_data(&mut tables).backend, first.backend);
}
