//! Connections of another proxy, from before the node's first start: their packets pass, and nothing takes their tuples.

use lb_common::abi::{Flow, FlowKey, SCTP, ServiceKey, TCP, UDP, fin, flow_flags, flow_state, tag};
use lb_common::decide::{Action, Hook, later_fragment, pair_key, quoted};
use lb_common::decide::{Packet, Work};
use lb_common::limits::TCP_IDLE_TIMEOUT_S;
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, PSH, RST, SYN};

const VIP: [u8; 4] = [10, 96, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 9];
const BACKEND: [u8; 4] = [10, 0, 1, 11];
const HOOKS: [Hook; 7] =
    [Hook::POD_IN, Hook::POD_OUT, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_IN_L3, Hook::NODE_OUT, Hook::XDP];
const PASSED: (Action, Outcome) = (Action::Pass, Outcome::Adopted);

fn original(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, 4000), (VIP, 80))
}

fn reply(protocol: u8) -> FlowKey<4> {
    tuple(protocol, (BACKEND, 8080), (CLIENT, 4000))
}

/// One backend, and an adopted connection with it of each protocol.
fn adopted() -> Memory {
    let mut tables = Memory::default();
    for (id, protocol) in [(1, TCP), (2, UDP), (3, SCTP)] {
        let frontend = ServiceKey { address: VIP, port: 80, protocol, pad: 0 };
        tables.serve(id, id * 10, frontend, &[BACKEND], 8080);
        let seen_s = u32::try_from(tables.now_ns / 1_000_000_000).unwrap();
        for (key, opposite, flags) in
            [(original(protocol), reply(protocol), 0), (reply(protocol), original(protocol), flow_flags::REPLY)]
        {
            let (address, client) =
                if flags == 0 { (opposite.src, opposite.dst) } else { (opposite.dst, opposite.src) };
            let (port, client_port) = if flags == 0 {
                (opposite.src_port, opposite.dst_port)
            } else {
                (opposite.dst_port, opposite.src_port)
            };
            let state = flow_state::ADOPTED;
            let flow = Flow { tag: tag(&key), seen_s, address, client, port, client_port, state, flags, ..Flow::ZERO };
            assert_eq!(pair_key(&key, &flow), opposite);
            tables.flows.insert(key, flow);
        }
    }
    tables
}

fn ask(tables: &mut Memory, key: FlowKey<4>, flags: u8, hook: Hook) -> (Action, Outcome) {
    let verdict = tables.ask(key, flags, hook);
    (verdict.action, verdict.outcome)
}

#[test]
fn packets_of_both_directions_pass_at_every_hook() {
    for hook in HOOKS {
        let mut tables = adopted();
        for protocol in [TCP, UDP, SCTP] {
            for key in [original(protocol), reply(protocol)] {
                assert_eq!(ask(&mut tables, key, 0, hook), PASSED, "{hook:?} {key:?}");
            }
        }
        for flags in [SYN, SYN | ACK, ACK, PSH | ACK, FIN | ACK, RST, RST | ACK] {
            let mut tables = adopted();
            for key in [original(TCP), reply(TCP)] {
                assert_eq!(ask(&mut tables, key, flags, hook), PASSED, "{hook:?} {flags} {key:?}");
            }
        }
        assert!(tables.half_open.is_empty() && tables.flows.len() == 6, "nothing else is written");
    }
}

#[test]
fn each_direction_is_noted_while_it_is_used() {
    let mut tables = adopted();
    let since = tables.flows[&original(TCP)].seen_s;
    tables.pass_seconds(50_000);
    ask(&mut tables, original(TCP), ACK, Hook::POD_IN);
    assert_eq!(tables.flows[&original(TCP)].seen_s, since + 50_000, "it passes after any silence");
    assert_eq!(tables.flows[&reply(TCP)].seen_s, since);
}

#[test]
fn a_syn_begins_a_new_connection_once_both_directions_have_ended() {
    let mut tables = adopted();
    for key in [original(TCP), reply(TCP)] {
        assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN), PASSED, "not yet");
        assert_eq!(ask(&mut tables, key, FIN | ACK, Hook::POD_IN), PASSED);
    }
    assert_eq!(ask(&mut tables, original(TCP), ACK, Hook::POD_IN), PASSED, "late segments pass");
    assert_eq!(ask(&mut tables, reply(TCP), ACK, Hook::POD_IN), PASSED, "late segments pass");
    let verdict = tables.ask(original(TCP), SYN, Hook::POD_IN);
    assert_eq!((verdict.action, verdict.outcome), (Action::ToBackend, Outcome::PortTranslated));
    assert_ne!(verdict.client_port, 4000, "conntrack knows the adopted connection's tuple still");
    assert_eq!(ask(&mut tables, reply(TCP), ACK, Hook::POD_IN), PASSED);
    let answer = FlowKey { dst_port: verdict.client_port, ..reply(TCP) };
    assert_eq!(ask(&mut tables, answer, SYN | ACK, Hook::POD_OUT), (Action::ToClient, Outcome::Replied));
    assert_eq!(ask(&mut tables, original(TCP), ACK, Hook::POD_IN), (Action::ToBackend, Outcome::Forwarded));
}

#[test]
fn a_reset_of_the_backend_ends_the_connection_but_none_of_the_client() {
    let mut tables = adopted();
    ask(&mut tables, original(TCP), RST, Hook::NODE_IN);
    ask(&mut tables, original(TCP), FIN | ACK, Hook::NODE_IN);
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::NODE_IN), PASSED, "anybody may have sent them");
    ask(&mut tables, reply(TCP), RST | ACK, Hook::POD_IN);
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN).0, Action::ToBackend);
}

#[test]
fn a_syn_begins_a_new_connection_where_conntrack_says_that_the_one_before_is_over() {
    let mut tables = adopted();
    let flow = tables.flows.get_mut(&original(TCP)).unwrap();
    (flow.fin, flow.opposite_fin) = (fin::SENT, fin::SENT);
    assert_eq!(ask(&mut tables, original(TCP), ACK, Hook::POD_IN), PASSED);
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_OUT), PASSED, "that is no hook for requests");
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN).0, Action::ToBackend);
}

#[test]
fn a_syn_to_a_service_that_is_gone_is_counted_as_a_direct_one() {
    let mut tables = adopted();
    tables.services.clear();
    let flow = tables.flows.get_mut(&original(TCP)).unwrap();
    (flow.fin, flow.opposite_fin) = (fin::SENT, fin::SENT);
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN), (Action::Pass, Outcome::Passed));
}

#[test]
fn a_syn_after_a_silence_of_hours_begins_a_new_connection() {
    let mut tables = adopted();
    tables.pass_seconds(u64::from(TCP_IDLE_TIMEOUT_S));
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN), PASSED);
    tables.pass_seconds(u64::from(TCP_IDLE_TIMEOUT_S) + 1);
    assert_eq!(ask(&mut tables, original(TCP), SYN, Hook::POD_IN).0, Action::ToBackend);
}

#[test]
fn no_connection_gets_the_reply_tuple() {
    for protocol in [TCP, UDP] {
        let mut tables = adopted();
        // The adopted connection came by a frontend that another proxy served.
        tables.flows.remove(&original(protocol));
        let verdict = tables.ask(original(protocol), SYN, Hook::POD_IN);
        assert_eq!(verdict.action, Action::ToBackend);
        assert_ne!(verdict.client_port, 4000, "{protocol}");
        tables.pass_seconds(1_000_000);
        assert_eq!(ask(&mut tables, reply(protocol), ACK, Hook::POD_IN), PASSED, "{protocol}");
    }
}

#[test]
fn direct_packets_of_the_client_to_the_backend_pass() {
    for (protocol, flags) in [(TCP, SYN), (UDP, 0)] {
        let mut tables = adopted();
        let direct = reply(protocol).reversed();
        let passed = ask(&mut tables, direct, flags, Hook::POD_IN);
        assert_eq!(passed, (Action::Pass, Outcome::Passed), "the host's NAT tells the two apart");
        assert!(tables.flows.contains_key(&reply(protocol)));
        assert_eq!(tables.flows[&original(protocol)].flags & flow_flags::REPLY_LOST, 0);
    }
}

#[test]
fn later_fragments_and_icmp_errors_pass() {
    for key in [original(UDP), reply(UDP)] {
        for hook in HOOKS {
            let mut tables = adopted();
            let mut work = Work::new(Packet::new(key, 0));
            later_fragment(&mut tables, &mut work, hook);
            assert_eq!((work.verdict.action, work.verdict.outcome), PASSED, "{hook:?}");
            quoted(&mut tables, &mut work, hook);
            assert_eq!((work.verdict.action, work.verdict.outcome), PASSED, "{hook:?}");
        }
    }
}

#[test]
fn other_connections_of_the_client_are_served() {
    let mut tables = adopted();
    let other = FlowKey { src_port: 4001, ..original(TCP) };
    assert_eq!(ask(&mut tables, other, SYN, Hook::POD_IN), (Action::ToBackend, Outcome::Selected));
}
