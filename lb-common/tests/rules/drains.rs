//! The end of a drain: after its period, only connections end that their backend leaves unanswered; at the eviction deadline, all do.

use lb_common::abi::{
    Backend, EndpointKey, FlowKey, SCTP, Service, ServiceKey, TCP, UDP, backend_state, flow_flags, flow_state,
    frontend_kind, seal, service_flags,
};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide};
use lb_common::limits::ANSWER_TIMEOUT_S;
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag::{ACK, FIN, PSH, RST, SYN};

use crate::ends::{Pair, request};
use lb_common::plain::{Memory, tuple};

/// Seconds from the begin of the drain.
const PERIOD_S: u32 = 30;
const MAX_S: u32 = 3_600;

/// All backends leave the API.
fn drain<const N: usize>(tables: &mut Memory<N>, period_s: u32, max_s: u32) {
    let now_ds = u32::try_from(tables.now_ns / 100_000_000).unwrap();
    for backend in tables.backends.values_mut() {
        backend.state = backend_state::DRAINING;
        (backend.drain_ds, backend.deadline_ds) = (now_ds + 10 * period_s, now_ds + 10 * max_s);
    }
}

/// A connection whose backend drains, at this second of the drain.
fn draining_at(second: u64) -> Pair {
    let mut pair = Pair::new();
    pair.asks(ACK, 10);
    pair.answers(ACK, 10);
    drain(&mut pair.tables, PERIOD_S, MAX_S);
    pair.tables.pass_seconds(second);
    pair
}

fn after_period() -> Pair {
    draining_at(u64::from(PERIOD_S) + 1)
}

#[track_caller]
fn goes_on(verdict: Verdict<4>) {
    assert!(matches!(verdict.outcome, Outcome::Forwarded | Outcome::Replied), "{:?}", verdict.outcome);
}

#[track_caller]
fn is_told(verdict: Verdict<4>) {
    assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::Evicted));
}

/// The same segment again.
fn again(pair: &mut Pair, payload: u32) -> Verdict<4> {
    let seq = pair.client.next.wrapping_sub(payload);
    let acked = pair.client.acked;
    pair.forged(true, ACK | PSH, seq, acked, payload)
}

#[test]
fn an_idle_connection_stays_until_the_eviction_deadline() {
    for client_first in [true, false] {
        let mut pair = draining_at(u64::from(MAX_S) - 1);
        goes_on(pair.asks(ACK, 10));
        goes_on(pair.answers(ACK, 10));
        pair.tables.pass_seconds(1);
        is_told(if client_first { pair.asks(ACK, 10) } else { pair.answers(ACK, 10) });
        is_told(if client_first { pair.answers(ACK, 10) } else { pair.asks(ACK, 10) });
    }
}

#[test]
fn a_connection_that_is_answered_goes_on_past_the_period() {
    let mut pair = draining_at(0);
    for second in 0..MAX_S {
        // Now and then a second passes between question and answer.
        goes_on(pair.asks(ACK | PSH, 100));
        pair.tables.pass_seconds(u64::from(second % 3 == 0));
        goes_on(pair.answers(ACK, 0));
        pair.tables.pass_seconds(u64::from(second % 3 != 0));
    }
    is_told(pair.asks(ACK | PSH, 100));
}

#[test]
fn a_segment_that_stays_unanswered_ends_the_connection() {
    let mut pair = after_period();
    goes_on(pair.asks(ACK | PSH, 100));
    for _ in 0..ANSWER_TIMEOUT_S {
        pair.tables.pass_seconds(1);
        goes_on(again(&mut pair, 100));
    }
    pair.tables.pass_seconds(1);
    is_told(again(&mut pair, 100));
    // A backend that comes to life again gets a RST as well.
    is_told(pair.answers(ACK, 10));
    is_told(again(&mut pair, 100));
    let new = pair.forged(true, SYN, 1, 0, 0);
    assert_ne!(new.outcome, Outcome::Forwarded, "the tuple is free");
}

/// It died at the begin of the drain: nobody waits for longer than the period.
#[test]
fn what_stayed_unanswered_within_the_period_ends_with_it() {
    let mut pair = draining_at(1);
    goes_on(pair.asks(ACK | PSH, 100));
    for second in [1, 3, 6, 13, 26] {
        pair.tables.pass_seconds(second / 2 + second % 2);
        goes_on(again(&mut pair, 100));
    }
    pair.tables.pass_seconds(26);
    is_told(again(&mut pair, 100));
}

#[test]
fn an_acknowledgement_that_moves_begins_the_wait_anew() {
    let mut pair = after_period();
    for _ in 0..20 {
        goes_on(pair.asks(ACK | PSH, 100));
        pair.tables.pass_seconds(10);
        goes_on(again(&mut pair, 100));
        goes_on(pair.answers(ACK, 0));
        pair.tables.pass_seconds(10);
        // Its acknowledgement was lost.
        goes_on(again(&mut pair, 100));
        goes_on(pair.answers(ACK, 0));
    }
}

/// The way to the backend is cut, the way back is not.
#[test]
fn what_the_backend_sends_again_answers_nothing() {
    let mut pair = after_period();
    let (seq, acked) = (pair.server.next, pair.server.acked);
    goes_on(pair.answers(ACK | PSH, 1_000));
    goes_on(pair.asks(ACK | PSH, 100));
    for _ in 0..ANSWER_TIMEOUT_S {
        pair.tables.pass_seconds(1);
        goes_on(pair.forged(false, ACK | PSH, seq, acked, 1_000));
        goes_on(again(&mut pair, 100));
    }
    pair.tables.pass_seconds(1);
    is_told(again(&mut pair, 100));
}

/// A third party knows the tuple alone.
#[test]
fn a_forged_segment_waits_for_no_answer() {
    let mut pair = after_period();
    for _ in 0..3 {
        let (seq, ack) = (pair.client.next.wrapping_add(0x3000_0000), pair.client.acked.wrapping_add(0x3000_0000));
        goes_on(pair.forged(true, ACK | PSH, seq, ack, 100));
        goes_on(pair.forged(true, FIN | ACK, seq, ack, 0));
        pair.tables.pass_seconds(17);
    }
    assert!(!pair.tables.half_open.contains_key(&request()), "nothing is noted");
    goes_on(pair.asks(ACK | PSH, 100));
}

/// The backend sees none of these SYNs: no challenge ACK comes.
#[test]
fn a_forged_syn_begins_no_wait_of_the_client() {
    let mut pair = after_period();
    pair.tables.pass_seconds(1);
    goes_on(pair.forged(true, SYN, 77_000, 0, 0));
    pair.tables.pass_seconds(17);
    goes_on(pair.asks(ACK | PSH, 100));
    // A dead backend is found out all the same.
    pair.tables.pass_seconds(16);
    is_told(again(&mut pair, 100));
}

#[test]
fn acknowledgements_of_a_download_wait_for_nothing() {
    let mut pair = after_period();
    goes_on(pair.answers(ACK, 1_400));
    for _ in 0..40 {
        pair.tables.pass_seconds(2);
        goes_on(pair.asks(ACK, 0));
    }
    assert!(!pair.tables.half_open.contains_key(&request()), "nothing is noted");
    goes_on(pair.asks(ACK | PSH, 10));
    goes_on(pair.answers(ACK, 10));
}

#[test]
fn probes_of_an_idle_connection_keep_it_while_they_are_answered() {
    let mut pair = after_period();
    let probe = |pair: &mut Pair| {
        let (seq, ack) = (pair.client.next.wrapping_sub(1), pair.client.acked);
        pair.forged(true, ACK, seq, ack, 0)
    };
    for _ in 0..10 {
        goes_on(probe(&mut pair));
        goes_on(pair.answers(ACK, 0));
        pair.tables.pass_seconds(75);
    }
    goes_on(probe(&mut pair));
    pair.tables.pass_seconds(75);
    is_told(probe(&mut pair));
}

#[test]
fn a_fin_must_be_answered_and_a_reset_need_not() {
    let mut pair = after_period();
    goes_on(pair.asks(FIN | ACK, 0));
    pair.tables.pass_seconds(20);
    let (seq, ack) = (pair.client.next.wrapping_sub(1), pair.client.acked);
    is_told(pair.forged(true, FIN | ACK, seq, ack, 0));
    let mut pair = after_period();
    goes_on(pair.asks(ACK | PSH, 100));
    pair.tables.pass_seconds(20);
    let (seq, ack) = (pair.client.next, pair.client.acked);
    goes_on(pair.forged(true, RST | ACK, seq, ack, 0));
}

#[test]
fn connections_end_in_order_past_the_period() {
    let mut pair = after_period();
    goes_on(pair.asks(FIN | ACK, 0));
    goes_on(pair.answers(FIN | ACK, 0));
    goes_on(pair.asks(ACK, 0));
    assert_eq!(pair.tables.half_open[&request()].flow.state, flow_state::CLOSING);
    // The last acknowledgement was lost.
    let seq = pair.server.next.wrapping_sub(1);
    goes_on(pair.forged(false, FIN | ACK, seq, pair.server.acked, 0));
    goes_on(pair.asks(ACK, 0));
}

/// The opposite direction of a connection on a node where an entry was lost.
#[test]
fn a_lost_reply_entry_is_written_again_and_waits_anew() {
    let mut pair = after_period();
    goes_on(pair.asks(ACK | PSH, 100));
    pair.tables.pass_seconds(20);
    let response = pair.response();
    pair.tables.flows.remove(&response);
    goes_on(again(&mut pair, 100));
    assert!(pair.tables.flows.contains_key(&response));
    pair.tables.pass_seconds(20);
    goes_on(again(&mut pair, 100));
    pair.tables.pass_seconds(20);
    is_told(again(&mut pair, 100));
}

/// Several SYNs of a third party, each a second apart, as in rule 1: the backend answers them.
#[test]
fn a_syn_past_the_period_goes_to_the_backend() {
    let mut pair = after_period();
    for _ in 0..20 {
        pair.tables.pass_seconds(1);
        goes_on(pair.forged(true, SYN, 99, 0, 0));
        goes_on(pair.answers(ACK, 0));
    }
    goes_on(pair.asks(ACK | PSH, 10));
}

#[test]
fn without_a_longest_drain_all_end_with_the_period() {
    let mut pair = Pair::new();
    drain(&mut pair.tables, PERIOD_S, PERIOD_S);
    pair.tables.pass_seconds(u64::from(PERIOD_S) - 1);
    goes_on(pair.asks(ACK, 10));
    goes_on(pair.answers(ACK, 10));
    pair.tables.pass_seconds(1);
    is_told(pair.asks(ACK, 10));
    is_told(pair.answers(ACK, 10));
}

#[test]
fn another_pod_at_the_address_ends_it_at_once() {
    let mut pair = after_period();
    goes_on(pair.asks(ACK, 10));
    for backend in pair.tables.backends.values_mut() {
        *backend = Backend { state: backend_state::GONE, generation: backend.generation + 1, drain_ds: 0, ..*backend };
    }
    is_told(pair.asks(ACK, 10));
    is_told(pair.answers(ACK, 10));
}

const CLIENT: [u8; 4] = [192, 0, 2, 9];
const FRONTEND: [u8; 4] = [10, 96, 0, 1];
const BACKEND: [u8; 4] = [10, 0, 1, 11];

fn key(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, 4000), (FRONTEND, 80))
}

fn served(protocol: u8) -> Memory {
    let mut tables = Memory::default();
    tables.serve(1, 0, ServiceKey { address: FRONTEND, port: 80, protocol, pad: 0 }, &[BACKEND], 8080);
    tables
}

fn response(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (BACKEND, 8080), (CLIENT, 4000))
}

#[test]
fn a_handshake_ends_with_the_period() {
    let mut tables = served(TCP);
    assert_eq!(tables.ask(key(TCP), SYN, Hook::POD_IN).outcome, Outcome::Selected);
    drain(&mut tables, 1, MAX_S);
    tables.pass_seconds(2);
    let verdict = tables.ask(response(TCP), SYN | ACK, Hook::POD_OUT);
    assert_eq!(verdict.outcome, Outcome::Evicted);
    assert_ne!(tables.ask(key(TCP), SYN, Hook::POD_IN).action, Action::ToBackend);
}

#[test]
fn datagrams_end_with_the_period_at_the_latest() {
    let mut tables = served(UDP);
    assert_eq!(tables.ask(key(UDP), 0, Hook::POD_IN).outcome, Outcome::Selected);
    assert_eq!(tables.ask(response(UDP), 0, Hook::POD_OUT).outcome, Outcome::Replied);
    drain(&mut tables, 1, MAX_S);
    tables.pass_seconds(2);
    assert_eq!(tables.ask(response(UDP), 0, Hook::POD_OUT).outcome, Outcome::Evicted);
    assert_ne!(tables.ask(key(UDP), 0, Hook::POD_IN).action, Action::ToBackend);
}

/// SCTP: DATA and HEARTBEAT are answered, an acknowledgement alone is not.
#[test]
fn associations_end_as_connections_do() {
    let mut tables = served(SCTP);
    let send = |tables: &mut Memory, from_client: bool, flags: u8, asks: bool| {
        let (key, hook) = if from_client { (key(SCTP), Hook::POD_IN) } else { (response(SCTP), Hook::POD_OUT) };
        let ack = if flags == SYN { 0 } else { lb_common::plain::ISN + 1 };
        let seq = if flags & SYN != 0 { lb_common::plain::ISN } else { 0 };
        let mut work = Work::new(Packet { seq, ack, payload: u32::from(asks), ..Packet::new(key, flags) });
        decide(tables, &mut work, hook);
        work.verdict.outcome
    };
    assert_eq!(send(&mut tables, true, SYN, false), Outcome::Selected);
    assert_eq!(send(&mut tables, false, SYN | ACK, false), Outcome::Replied);
    assert_eq!(send(&mut tables, true, ACK, false), Outcome::Forwarded);
    drain(&mut tables, PERIOD_S, MAX_S);
    tables.pass_seconds(u64::from(PERIOD_S) + 1);
    for _ in 0..10 {
        assert_eq!(send(&mut tables, true, ACK, true), Outcome::Forwarded);
        assert_eq!(send(&mut tables, false, ACK, false), Outcome::Replied);
        tables.pass_seconds(30);
        assert_eq!(send(&mut tables, true, ACK, false), Outcome::Forwarded);
    }
    assert_eq!(send(&mut tables, true, ACK, true), Outcome::Forwarded);
    tables.pass_seconds(30);
    assert_eq!(send(&mut tables, true, ACK, false), Outcome::Forwarded, "it wants no answer");
    assert_eq!(send(&mut tables, true, ACK, true), Outcome::Evicted);
}

/// A service that packets of external clients go to in an outer header.
fn direct(tables: &mut Memory) {
    let key = ServiceKey { address: FRONTEND, port: 80, protocol: TCP, pad: 0 };
    let service = tables.services[&key];
    let flags = service.flags | service_flags::DSR;
    let service = Service { kind: frontend_kind::LOAD_BALANCER, flags, seal: 0, ..service };
    tables.services.insert(key, Service { seal: seal(&key, &service), ..service });
}

/// The node that chooses sees no answer.
#[test]
fn an_encapsulated_connection_ends_with_the_period() {
    let mut tables = served(TCP);
    direct(&mut tables);
    tables.backends.values_mut().for_each(|backend| backend.flags &= !lb_common::abi::backend_flags::LOCAL);
    assert_eq!(tables.ask(key(TCP), SYN, Hook::NODE_IN).outcome, Outcome::Tunnelled);
    assert_eq!(tables.ask(key(TCP), ACK, Hook::NODE_IN).outcome, Outcome::Forwarded);
    drain(&mut tables, PERIOD_S, MAX_S);
    tables.pass_seconds(u64::from(PERIOD_S) - 1);
    assert_eq!(tables.ask(key(TCP), ACK, Hook::NODE_IN).outcome, Outcome::Forwarded);
    tables.pass_seconds(1);
    assert_eq!(tables.ask(key(TCP), ACK, Hook::NODE_IN).outcome, Outcome::Evicted);
}

/// The backend's own node: the node that chose tells the client at this moment.
#[test]
fn a_connection_that_came_encapsulated_ends_with_the_period() {
    let mut tables = served(TCP);
    direct(&mut tables);
    let named = EndpointKey { address: BACKEND, service: 1 };
    tables.endpoints.insert(named, lb_common::abi::Endpoint { backend: 1, generation: 1 });
    let asks = |tables: &mut Memory, flags: u8| {
        let isn = lb_common::plain::ISN;
        let (seq, ack) = if flags == SYN { (isn, 0) } else { (isn + 1, isn + 1) };
        let mut work = Work::new(Packet { seq, ack, ..Packet::new(key(TCP), flags) });
        work.chosen = BACKEND;
        decide(tables, &mut work, Hook::NODE_IN);
        work.verdict.outcome
    };
    assert_eq!(asks(&mut tables, SYN), Outcome::Selected);
    assert_eq!(tables.ask(response(TCP), SYN | ACK, Hook::NODE_OUT).outcome, Outcome::Replied);
    assert_eq!(asks(&mut tables, ACK), Outcome::Forwarded);
    assert_ne!(tables.flows[&response(TCP)].flags & flow_flags::ENCAPSULATED, 0);
    drain(&mut tables, PERIOD_S, MAX_S);
    tables.pass_seconds(u64::from(PERIOD_S) - 1);
    assert_eq!(tables.ask(response(TCP), ACK, Hook::NODE_OUT).outcome, Outcome::Replied);
    tables.pass_seconds(1);
    assert_eq!(tables.ask(response(TCP), ACK, Hook::NODE_OUT).outcome, Outcome::Evicted);
    assert_eq!(asks(&mut tables, ACK), Outcome::Evicted);
}
