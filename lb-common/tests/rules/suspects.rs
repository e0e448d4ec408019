//! A backend that leaves unanswered what another one answers is suspect: new connections avoid it, but for a probe.

use crate::memory::Memory;
use crate::openings::{accept, answers, asks, serving, syn, syn_again};
use lb_common::abi::{TCP, UDP, flow_state};
use lb_common::decide::{Action, Hook};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag::{ACK, RST};

#[test]
fn whoever_answers_too_late_is_refused_and_was_silent() {
    let mut tables = serving(2);
    let first = syn(&mut tables, 4000);
    let second = syn_again(&mut tables, 4000);
    let late = accept(&mut tables, 4000, &first);
    assert_eq!((late.action, late.outcome), (Action::Refuse, Outcome::RefusedLate));
    let reset = tables.ask(answers(asks(TCP, 4000), &first), RST | ACK, Hook::POD_OUT);
    assert_eq!(reset.action, Action::Drop, "nothing of it reaches the client");
    assert_eq!(accept(&mut tables, 4000, &second).outcome, Outcome::Replied);
    assert_eq!(tables.notes, [(first.backend, Outcome::Suspected)]);
    assert_eq!(accept(&mut tables, 4000, &first).outcome, Outcome::RefusedLate, "then as well");
    // Others avoid it, but for a probe.
    let to_first = |tables: &mut Memory| (5000..5100).filter(|p| syn(tables, *p).backend == first.backend).count();
    assert_eq!(to_first(&mut tables), 0);
    tables.pass_seconds(u64::from(limits::PROBE_INTERVAL_S));
    let probes: Vec<_> = (5200..5300).map(|p| syn(&mut tables, p)).filter(|v| v.backend == first.backend).collect();
    assert_eq!(probes.len(), 1);
    assert_eq!(probes[0].outcome, Outcome::Probed);
}

#[test]
fn a_suspect_that_answers_is_cleared() {
    let mut tables = serving(2);
    let first = syn(&mut tables, 4000);
    let second = syn_again(&mut tables, 4000);
    accept(&mut tables, 4000, &second);
    tables.pass_seconds(u64::from(limits::PROBE_INTERVAL_S));
    let probe =
        (5000..5100).map(|port| (port, syn(&mut tables, port))).find(|(_, sent)| sent.outcome == Outcome::Probed);
    let (port, sent) = probe.unwrap();
    accept(&mut tables, port, &sent);
    assert_eq!(tables.notes, [(first.backend, Outcome::Suspected), (first.backend, Outcome::Cleared)]);
}

#[test]
fn a_client_whom_nobody_answers_accuses_nobody() {
    let mut tables = serving(4);
    for port in 4000..4050 {
        for _ in 0..6 {
            syn_again(&mut tables, port);
        }
    }
    assert!(tables.notes.is_empty());
}

#[test]
fn udp_becomes_a_stream_and_a_silent_backend_is_avoided_where_others_answer() {
    let mut tables = serving(2);
    let sent = tables.ask(asks(UDP, 4000), 0, Hook::POD_IN);
    tables.ask(answers(asks(UDP, 4000), &sent), 0, Hook::POD_OUT);
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::OPEN));
    tables.ask(asks(UDP, 4000), 0, Hook::POD_IN);
    assert!(tables.flows.values().all(|flow| flow.state == flow_state::STREAM));
    for port in 4001..4100 {
        let verdict = tables.ask(asks(UDP, port), 0, Hook::POD_IN);
        if verdict.backend == sent.backend {
            tables.ask(answers(asks(UDP, port), &verdict), 0, Hook::POD_OUT);
        }
    }
    assert_eq!(tables.notes.iter().filter(|(_, what)| *what == Outcome::Suspected).count(), 1);
    assert!((4200..4300).all(|port| tables.ask(asks(UDP, port), 0, Hook::POD_IN).backend == sent.backend));
}

#[test]
fn a_service_that_never_answers_keeps_all_its_backends() {
    let mut tables = serving(2);
    let backends: std::collections::BTreeSet<_> =
        (4000..4200).map(|port| tables.ask(asks(UDP, port), 0, Hook::POD_IN).backend).collect();
    assert_eq!(backends.len(), 2);
    assert!(tables.notes.is_empty());
}
