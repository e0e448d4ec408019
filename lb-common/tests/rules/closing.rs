//! Connections that have ended: they leave the table of established ones, what comes late finds them, and their tuples rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::{BACKENDS, answer, connect, key, serving, to_vip};
use lb_common::abi::{FlowKey, Masquerade, TCP, flow_state, network_flags};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits::TUPLE_REST_S;
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory};
use lb_common::state::{
    SourcePorts,
    tcp_flag::{ACK, FIN, RST, SYN},
};

/// A connection of this port, the backend's tuple, and the client's.
fn connected(tables: &mut Memory, port: u16) -> (FlowKey<4>, FlowKey<4>) {
    let syn = connect(tables, port);
    (to_vip(TCP, port), answer(to_vip(TCP, port), &syn))
}

/// Both ends say that they are done, and acknowledge each other's FIN.
fn close(tables: &mut Memory, asks: FlowKey<4>, answers: FlowKey<4>) -> [Verdict<4>; 4] {
    [
        tables.ask(asks, FIN | ACK, Hook::POD_IN),
        tables.ask_numbered(answers, ACK, ISN + 1, ISN + 2, Hook::POD_OUT),
        tables.ask_numbered(answers, FIN | ACK, ISN + 1, ISN + 2, Hook::POD_OUT),
        tables.ask_numbered(asks, ACK, ISN + 2, ISN + 2, Hook::POD_IN),
    ]
}

#[test]
fn a_closed_connection_leaves_with_its_last_segment_and_late_ones_still_arrive() {
    let mut tables = serving(&BACKENDS[..1]);
    let (asks, answers) = connected(&mut tables, 4_000);
    let outcomes = close(&mut tables, asks, answers).map(|verdict| verdict.outcome);
    assert_eq!(outcomes, [Outcome::Forwarded, Outcome::Replied, Outcome::Replied, Outcome::Forwarded]);
    assert!(tables.flows.is_empty());
    assert_eq!(tables.half_open.len(), 2);
    assert!(tables.half_open.values().all(|entry| entry.flow.state == flow_state::CLOSING));
    // The last acknowledgement was lost.
    let again = tables.ask(answers, FIN | ACK, Hook::POD_OUT);
    assert_eq!((again.action, again.outcome), (Action::ToClient, Outcome::Replied));
    let acknowledged = tables.ask(asks, ACK, Hook::POD_IN);
    assert_eq!((acknowledged.action, acknowledged.address), (Action::ToBackend, BACKENDS[0]));
    assert_eq!(tables.ask(asks, FIN | ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert!(tables.flows.is_empty(), "nothing that is late opens it again");
    tables.pass_seconds(u64::from(tables.timeouts.closing_s) + 1);
    assert_eq!(tables.ask(asks, ACK, Hook::POD_IN).outcome, Outcome::RefusedNoFlow, "nobody remembers it");
}

#[test]
fn a_reset_connection_leaves_at_once() {
    for by_backend in [false, true] {
        let mut tables = serving(&BACKENDS[..1]);
        let (asks, answers) = connected(&mut tables, 4_000);
        let (key, hook) = if by_backend { (answers, Hook::POD_OUT) } else { (asks, Hook::POD_IN) };
        assert_ne!(tables.ask(key, RST | ACK, hook).action, Action::Pass);
        assert!(tables.flows.is_empty());
        // Its port opens the next one.
        connected(&mut tables, 4_000);
        assert_eq!((tables.flows.len(), tables.half_open.len()), (2, 0));
    }
}

#[test]
fn a_half_closed_connection_stays() {
    let mut tables = serving(&BACKENDS[..1]);
    let (asks, answers) = connected(&mut tables, 4_000);
    tables.ask(asks, FIN | ACK, Hook::POD_IN);
    for _ in 0..3 {
        assert_eq!(tables.ask(answers, ACK, Hook::POD_OUT).outcome, Outcome::Replied);
    }
    assert_eq!(tables.flows.len(), 2);
}

/// External clients that share one SNAT address.
fn masqueraded(ports: u16) -> Memory {
    let mut tables = serving(&BACKENDS[..1]);
    for (key, service) in &mut tables.services {
        service.kind = lb_common::abi::frontend_kind::NODE_PORT;
        service.seal = lb_common::abi::seal(key, service);
    }
    for backend in tables.backends.values_mut() {
        backend.flags &= !lb_common::abi::backend_flags::LOCAL;
    }
    tables.own = Some(Masquerade::new([192, 0, 2, 1], &[]));
    tables.networks = vec![([10, 0, 0, 0], 8, network_flags::PODS)];
    tables.ports = SourcePorts::of_range(61_000, ports);
    tables
}

fn outside(host: u16) -> FlowKey<4> {
    // A port that a masqueraded connection cannot keep.
    let [net, host] = host.to_be_bytes();
    FlowKey { src: [198, 51, net, host], src_port: 40_000, ..to_vip(TCP, 0) }
}

fn masqueraded_answer(syn: &Verdict<4>) -> FlowKey<4> {
    key(TCP, (syn.address, syn.port), (syn.client, syn.client_port))
}

/// A connection of an external client that is reset by the client. The SNAT port that it had; `None`: there was none for it.
fn opened_and_reset(tables: &mut Memory, host: u16) -> Option<u16> {
    let asks = outside(host);
    let syn = tables.ask(asks, SYN, Hook::NODE_IN);
    if syn.action != Action::ToBackend {
        assert_eq!(syn.outcome, Outcome::DroppedNoPort);
        return None;
    }
    tables.ask(masqueraded_answer(&syn), SYN | ACK, Hook::NODE_IN);
    assert_eq!(tables.ask_numbered(asks, ACK, ISN + 1, ISN + 1, Hook::NODE_IN).outcome, Outcome::Forwarded);
    assert_eq!(tables.ask(asks, RST, Hook::NODE_IN).outcome, Outcome::Forwarded);
    Some(syn.client_port)
}

#[test]
fn the_tuple_of_an_ended_connection_rests_while_another_one_is_left() {
    // Where the search begins differs from client to client.
    let is_given_after = |seconds: u32, host: u16| {
        let mut tables = masqueraded(8);
        let first = opened_and_reset(&mut tables, host).unwrap();
        tables.pass_seconds(u64::from(seconds));
        let others: Vec<u16> = (1..=3).map(|next| opened_and_reset(&mut tables, host + next).unwrap()).collect();
        others.contains(&first)
    };
    for seconds in [0, 1, TUPLE_REST_S - 1] {
        let given: Vec<u16> = (1..=40).filter(|host| is_given_after(seconds, *host)).collect();
        assert!(given.is_empty(), "the tuple of {given:?} after {seconds} s");
    }
    assert!((1..=40).any(|host| is_given_after(TUPLE_REST_S + 1, host)), "after a while everybody gets it");
}

#[test]
fn tuples_that_have_rested_are_free() {
    let mut tables = masqueraded(8);
    for host in 1..=4 {
        opened_and_reset(&mut tables, host).unwrap();
    }
    tables.pass_seconds(u64::from(TUPLE_REST_S) + 1);
    let mut later: Vec<u16> = (5..=12).map(|host| opened_and_reset(&mut tables, host).unwrap()).collect();
    later.sort_unstable();
    later.dedup();
    assert_eq!(later.len(), 8, "each of the ports, none twice: {later:?}");
}

#[test]
fn what_a_backend_says_late_finds_the_masqueraded_client() {
    let mut tables = masqueraded(8);
    opened_and_reset(&mut tables, 1).unwrap();
    let (answers, _) = tables.half_open.iter().find(|(key, _)| key.src == BACKENDS[0]).unwrap();
    let answers = *answers;
    for flags in [ACK, FIN | ACK] {
        let late = tables.ask(answers, flags, Hook::NODE_IN);
        assert_eq!((late.action, late.client), (Action::ToClient, outside(1).src), "{flags}");
    }
    tables.pass_seconds(u64::from(tables.timeouts.closing_s) + 1);
    assert_eq!(tables.ask(answers, ACK, Hook::NODE_IN).action, Action::Pass, "nobody remembers it");
}

#[test]
fn three_hundred_new_connections_a_second_use_no_tuple_that_rests_and_more_reuse_a_few_ports() {
    let mut tables = masqueraded(1);
    tables.ports = SourcePorts::DEFAULT;
    let (a_second, seconds) = (300, u16::try_from(TUPLE_REST_S).unwrap());
    let mut used = BTreeMap::new();
    for nth in 0..seconds * a_second {
        // Clients use a port of theirs again before a minute is over. A client may meet its own tuple.
        let host = nth % 5_000;
        let port = opened_and_reset(&mut tables, host).unwrap();
        let before = used.insert(port, host).unwrap_or(host);
        assert_eq!(before, host, "port {port} again after {} s at most", nth / a_second + 1);
        if nth % a_second == a_second - 1 {
            tables.pass_seconds(1);
        }
    }
    let more = (seconds * a_second..2 * seconds * a_second).map(|host| opened_and_reset(&mut tables, host).unwrap());
    let reused: BTreeSet<u16> = more.filter(|port| used.insert(*port, 0).is_some()).collect();
    assert!(!reused.is_empty() && *reused.first().unwrap() >= 61_000, "{reused:?}");
}

#[test]
fn a_node_has_twenty_eight_thousand_connections_to_one_port_of_a_backend() {
    let mut tables = masqueraded(1);
    tables.ports = SourcePorts::DEFAULT;
    let taken = [61_000, 8_080, 10_250];
    let to_node = |port: u16| key(TCP, (BACKENDS[0], 8080), ([192, 0, 2, 1], port));
    tables.node_sockets = taken.map(to_node).to_vec();
    let mut used = BTreeSet::new();
    for client in 0..28_000 {
        let syn = tables.ask(outside(client), SYN, Hook::NODE_IN);
        assert_eq!(syn.outcome, Outcome::Masqueraded, "client {client}");
        let port = syn.client_port;
        assert!(used.insert(port) && !taken.contains(&port), "port {port}");
        assert!(matches!(port, 1_024..=29_999 | 61_000..), "port {port} is the kernel's, or a node port");
    }
}

#[test]
fn a_tuple_that_rests_is_taken_if_no_other_is_left() {
    let mut tables = masqueraded(1);
    for host in 1..=5 {
        assert_eq!(opened_and_reset(&mut tables, host), Some(61_000));
    }
    // One that is in use is never taken.
    let asks = outside(6);
    let syn = tables.ask(asks, SYN, Hook::NODE_IN);
    tables.ask(masqueraded_answer(&syn), SYN | ACK, Hook::NODE_IN);
    tables.ask_numbered(asks, ACK, ISN + 1, ISN + 1, Hook::NODE_IN);
    assert_eq!(opened_and_reset(&mut tables, 7), None);
}
