//! Connect times: from the first SYN that a backend gets to its SYN+ACK, for each backend that was tried.

use crate::openings::{accept, answers, asks, syn, syn_again};
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::connect_times::{TICK_NS, ticks};
use lb_common::decide::{Hook, Packet, Verdict, Work, decide};
use lb_common::plain::{ISN, Memory};
use lb_common::state::tcp_flag::{ACK, RST, SYN};

const PORT: u16 = 4000;
const MS_NS: u64 = 1_000_000;

/// Tables of programs that measure.
fn serving(count: usize) -> Memory {
    Memory { measures: true, ..crate::openings::serving(count) }
}

/// The times that were counted, in whole milliseconds, by backend.
fn counted(tables: &Memory) -> Vec<(u32, u64)> {
    let rounded = |ticks: u32| (u64::from(ticks) * TICK_NS + MS_NS / 2) / MS_NS;
    tables.connect_times.iter().map(|(backend, ticks)| (*backend, rounded(*ticks))).collect()
}

#[test]
fn a_connect_time_is_that_between_syn_and_answer() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, PORT);
    tables.now_ns += 3 * MS_NS;
    accept(&mut tables, PORT, &sent);
    assert_eq!(counted(&tables), [(sent.backend, 3)]);
    // The answer sent again, the client's segments and the backend's add nothing.
    tables.now_ns += 50 * MS_NS;
    accept(&mut tables, PORT, &sent);
    tables.ask(asks(TCP, PORT), ACK, Hook::POD_IN);
    tables.ask(answers(asks(TCP, PORT), &sent), ACK, Hook::POD_OUT);
    accept(&mut tables, PORT, &sent);
    assert_eq!(counted(&tables).len(), 1);
}

#[test]
fn the_first_syn_to_a_backend_counts_when_it_is_sent_again() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, PORT);
    assert_eq!(syn_again(&mut tables, PORT).backend, sent.backend);
    tables.now_ns += 20 * MS_NS;
    accept(&mut tables, PORT, &sent);
    assert_eq!(counted(&tables), [(sent.backend, 1020)]);
}

#[test]
fn each_backend_that_was_tried_has_its_own_time_also_for_a_late_answer() {
    let mut tables = serving(2);
    let first = syn(&mut tables, PORT);
    let second = syn_again(&mut tables, PORT);
    assert_ne!(first.backend, second.backend);
    tables.now_ns += 2 * MS_NS;
    accept(&mut tables, PORT, &second);
    tables.now_ns += 500 * MS_NS;
    for _ in 0..2 {
        accept(&mut tables, PORT, &first);
    }
    assert_eq!(counted(&tables), [(second.backend, 2), (first.backend, 1502)]);
}

#[test]
fn another_connection_on_the_same_tuple_begins_anew() {
    let mut tables = serving(1);
    syn(&mut tables, PORT);
    tables.pass_seconds(5);
    let other = Packet { seq: ISN + 77, ..Packet::new(asks(TCP, PORT), SYN) };
    let mut work = Work::new(other);
    decide(&mut tables, &mut work, Hook::POD_IN);
    tables.now_ns += 4 * MS_NS;
    let reply = answers(asks(TCP, PORT), &work.verdict);
    tables.ask_numbered(reply, SYN | ACK, 500, ISN + 78, Hook::POD_OUT);
    assert_eq!(counted(&tables), [(work.verdict.backend, 4)]);
}

#[test]
fn an_answer_to_the_data_of_a_syn_is_counted() {
    let mut tables = serving(1);
    let mut work = Work::new(Packet { seq: ISN, payload: 100, ..Packet::new(asks(TCP, PORT), SYN) });
    decide(&mut tables, &mut work, Hook::POD_IN);
    tables.now_ns += MS_NS;
    let reply = answers(asks(TCP, PORT), &work.verdict);
    tables.ask_numbered(reply, SYN | ACK, 500, ISN + 101, Hook::POD_OUT);
    assert_eq!(counted(&tables), [(work.verdict.backend, 1)]);
}

#[test]
fn refusals_and_other_protocols_have_no_connect_time() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, PORT);
    tables.ask(answers(asks(TCP, PORT), &sent), RST | ACK, Hook::POD_OUT);
    let asked = tables.ask(asks(UDP, PORT), 0, Hook::POD_IN);
    tables.ask(answers(asks(UDP, PORT), &asked), 0, Hook::POD_OUT);
    let asked = tables.ask(asks(SCTP, PORT), SYN, Hook::POD_IN);
    tables.ask(answers(asks(SCTP, PORT), &asked), SYN | ACK, Hook::POD_OUT);
    assert_eq!(counted(&tables), []);
}

#[test]
fn a_connection_whose_entries_were_lost_has_no_connect_time() {
    let mut tables = serving(1);
    let sent = syn(&mut tables, PORT);
    tables.half_open.clear();
    accept(&mut tables, PORT, &sent);
    // The reply entry alone: the SYN that is sent again writes it anew.
    let sent = syn(&mut tables, PORT);
    tables.half_open.retain(|key, _| key.src_port != 8080);
    syn_again(&mut tables, PORT);
    accept(&mut tables, PORT, &sent);
    assert_eq!(counted(&tables), []);
}

#[test]
fn nothing_is_noted_or_counted_while_connect_times_are_off() {
    let mut tables = Memory { measures: false, ..serving(1) };
    let sent = syn(&mut tables, PORT);
    assert!(tables.half_open.values().all(|entry| entry.asked_at() == 0));
    accept(&mut tables, PORT, &sent);
    assert_eq!(counted(&tables), []);
    // Switched on, or off, during a handshake.
    let sent = syn(&mut tables, PORT + 1);
    tables.measures = true;
    accept(&mut tables, PORT + 1, &sent);
    let sent: Verdict<4> = syn(&mut tables, PORT + 2);
    assert!(tables.half_open.values().any(|entry| entry.asked_at() == ticks(tables.now_ns)));
    tables.measures = false;
    accept(&mut tables, PORT + 2, &sent);
    assert_eq!(counted(&tables), []);
}
