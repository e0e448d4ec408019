//! What a client and a backend notice of the decision, packet by packet, over plain tables.

use lb_common::abi::{FlowKey, ServiceKey, TCP, UDP, Vip, VipKey, backend_flags, backend_state, vip_flags};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};
use proptest::prelude::*;

pub const CLIENT: [u8; 4] = [10, 0, 1, 2];
pub const VIP: [u8; 4] = [10, 96, 0, 10];
pub const BACKENDS: [[u8; 4]; 3] = [[10, 0, 1, 11], [10, 0, 1, 12], [10, 0, 2, 13]];

pub fn key(protocol: u8, src: ([u8; 4], u16), dst: ([u8; 4], u16)) -> FlowKey<4> {
    tuple(protocol, (src.0, src.1), (dst.0, dst.1))
}

pub fn frontend(protocol: u8) -> ServiceKey<4> {
    ServiceKey { address: VIP, port: 80, protocol, pad: 0 }
}

pub fn serving(backends: &[[u8; 4]]) -> Memory {
    let mut tables = Memory::default();
    tables.serve(1, 0, frontend(TCP), backends, 8080);
    tables.serve(2, 10, frontend(UDP), backends, 5353);
    tables
}

pub fn to_vip(protocol: u8, port: u16) -> FlowKey<4> {
    key(protocol, (CLIENT, port), (VIP, 80))
}

/// The packet that the backend sends in answer to one that it got.
pub fn answer(sent: FlowKey<4>, verdict: &Verdict<4>) -> FlowKey<4> {
    key(sent.protocol, (verdict.address, verdict.port), (sent.src, verdict.client_port))
}

/// Opens a connection through the service and returns the SYN's verdict.
pub fn connect(tables: &mut Memory, port: u16) -> Verdict<4> {
    let syn = tables.ask(to_vip(TCP, port), SYN, Hook::POD_IN);
    assert_eq!(syn.action, Action::ToBackend);
    let answered = tables.ask(answer(to_vip(TCP, port), &syn), SYN | ACK, Hook::POD_OUT);
    assert_eq!((answered.action, answered.address, answered.port), (Action::ToClient, VIP, 80));
    assert_eq!(answered.client_port, port, "the client sees its own port");
    assert_eq!(tables.ask(to_vip(TCP, port), ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    syn
}

#[test]
fn a_connection_stays_on_its_backend_whatever_becomes_of_the_others() {
    let mut tables = serving(&BACKENDS);
    let first = connect(&mut tables, 40_000);
    tables.serve(1, 100, frontend(TCP), &[[10, 0, 9, 9]], 9090);
    for _ in 0..50 {
        let next = tables.ask(to_vip(TCP, 40_000), ACK, Hook::POD_IN);
        assert_eq!((next.address, next.port), (first.address, first.port));
    }
}

#[test]
fn new_connections_spread_over_all_backends() {
    let mut tables = serving(&BACKENDS);
    let mut seen = std::collections::BTreeMap::new();
    for port in 20_000..23_000 {
        *seen.entry(tables.ask(to_vip(TCP, port), SYN, Hook::POD_IN).address).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 3);
    assert!(seen.values().all(|&count| (800..1200).contains(&count)), "{seen:?}");
}

#[test]
fn foreign_packets_are_left_alone() {
    let mut tables = serving(&BACKENDS);
    for hook in [Hook::POD_IN, Hook::POD_OUT, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP] {
        for flags in [SYN, ACK, FIN | ACK, RST] {
            let verdict = tables.ask(key(TCP, (CLIENT, 5000), ([8, 8, 8, 8], 443)), flags, hook);
            assert_eq!((verdict.action, verdict.outcome), (Action::Pass, Outcome::Passed));
        }
    }
    assert!(tables.flows.is_empty());
}

#[test]
fn a_service_without_endpoints_is_refused_but_never_a_rst() {
    let mut tables = serving(&[]);
    let refused = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
    assert_eq!((refused.action, refused.outcome), (Action::Refuse, Outcome::RefusedNoEndpoint));
    assert_eq!(tables.ask(to_vip(TCP, 40_000), RST, Hook::POD_IN).action, Action::Drop);
    assert_eq!(tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN).action, Action::Refuse);
}

#[test]
fn a_segment_without_a_flow_is_refused() {
    let mut tables = serving(&BACKENDS);
    for flags in [ACK, SYN | ACK, FIN | ACK] {
        let verdict = tables.ask(to_vip(TCP, 40_000), flags, Hook::POD_IN);
        assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedNoFlow));
    }
    assert!(tables.flows.is_empty());
}

/// The answer to a pod whose source the node translates, or to a process of the node, has a node port as its destination where that is the asker's port.
#[test]
fn a_segment_from_outside_without_a_flow_at_an_address_of_the_node_is_the_nodes() {
    for backends in [&BACKENDS[..], &[]] {
        for hook in [Hook::NODE_IN, Hook::NODE_IN_L3, Hook::XDP] {
            let mut tables = serving(backends);
            for flags in [ACK, SYN | ACK, FIN | ACK, RST] {
                let verdict = tables.ask(to_vip(TCP, 40_000), flags, hook);
                assert_eq!((verdict.action, verdict.outcome), (Action::Pass, Outcome::Passed), "{hook:?}");
            }
            // Nobody but us could answer at the address of a service.
            tables.vips.insert(VipKey { address: VIP }, Vip { flags: vip_flags::ECHO });
            assert_ne!(tables.ask(to_vip(TCP, 40_000), ACK, hook).action, Action::Pass, "{hook:?}");
        }
    }
}

#[test]
fn a_drain_ends_by_its_deadline_for_both_sides() {
    let mut tables = serving(&BACKENDS[..1]);
    let syn = connect(&mut tables, 40_000);
    let backend = tables.backends.get_mut(&syn.backend).unwrap();
    backend.state = backend_state::DRAINING;
    backend.deadline_ds = u32::try_from(tables.now_ns / 100_000_000).unwrap() + 300;
    assert_eq!(tables.ask(to_vip(TCP, 40_000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded, "until then it stays");

    tables.pass_seconds(30);
    let client = tables.ask(to_vip(TCP, 40_000), ACK, Hook::POD_IN);
    assert_eq!((client.action, client.outcome), (Action::Refuse, Outcome::Evicted));
    let backend = tables.ask(answer(to_vip(TCP, 40_000), &syn), ACK, Hook::POD_OUT);
    assert_eq!((backend.action, backend.outcome), (Action::Refuse, Outcome::Evicted));
}

#[test]
fn an_id_given_to_another_backend_gets_none_of_the_old_flows() {
    let mut tables = serving(&BACKENDS[..1]);
    let syn = connect(&mut tables, 40_000);
    let record = tables.backends.get_mut(&syn.backend).unwrap();
    record.generation += 1;
    record.address = [10, 0, 7, 7];
    assert_eq!(tables.ask(to_vip(TCP, 40_000), ACK, Hook::POD_IN).outcome, Outcome::Evicted);
    assert_eq!(tables.ask(answer(to_vip(TCP, 40_000), &syn), ACK, Hook::POD_OUT).outcome, Outcome::Evicted);
}

#[test]
fn udp_leaves_a_backend_that_serves_no_more_at_its_next_packet() {
    let mut tables = serving(&BACKENDS[..2]);
    let first = tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN);
    let record = tables.backends.get_mut(&first.backend).unwrap();
    record.state = backend_state::UNREADY;
    assert_eq!(tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN).address, first.address, "it still serves");
    tables.backends.get_mut(&first.backend).unwrap().flags &= !backend_flags::SERVING;
    let other = BACKENDS[..2].iter().find(|address| **address != first.address).unwrap();
    tables.serve(2, 20, frontend(UDP), &[*other], 5353);
    let moved = tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN);
    assert_eq!((moved.outcome, moved.address), (Outcome::Moved, *other));
    let late = tables.ask(answer(to_vip(UDP, 40_000), &first), 0, Hook::POD_OUT);
    assert_eq!(late.action, Action::Pass, "the old backend's reply is no longer the service's");
}

#[test]
fn udp_whose_service_is_gone_passes_untouched() {
    let mut tables = serving(&BACKENDS);
    let first = tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN);
    tables.services.remove(&frontend(UDP));
    tables.backends.get_mut(&first.backend).unwrap().state = backend_state::DRAINING;
    assert_eq!(tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN).action, Action::Pass);
}

#[test]
fn a_reused_source_port_selects_anew_once_the_old_connection_closes() {
    let mut tables = serving(&BACKENDS[..1]);
    let syn = connect(&mut tables, 40_000);
    assert_eq!(
        tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN).outcome,
        Outcome::Forwarded,
        "open: no state changes"
    );
    let reset = tables.ask(answer(to_vip(TCP, 40_000), &syn), RST, Hook::POD_OUT);
    assert_eq!(reset.action, Action::ToClient);
    let again = tables.ask_numbered(to_vip(TCP, 40_000), SYN, ISN + 77_777, 0, Hook::POD_IN);
    assert_eq!(again.outcome, Outcome::Selected);
}

#[test]
fn a_missing_direction_is_written_again() {
    let mut tables = serving(&BACKENDS[..1]);
    let syn = connect(&mut tables, 40_000);
    let reply = answer(to_vip(TCP, 40_000), &syn);
    for lost in [reply, to_vip(TCP, 40_000)] {
        let kept = if lost == reply { to_vip(TCP, 40_000) } else { reply };
        let before = tables.flows[&lost];
        tables.flows.remove(&lost);
        tables.pass_seconds(1);
        let hook = if kept == reply { Hook::POD_OUT } else { Hook::POD_IN };
        tables.ask(kept, ACK, hook);
        let after = tables.flows[&lost];
        assert_eq!((after.address, after.port, after.client_port), (before.address, before.port, before.client_port));
        assert_eq!((after.backend, after.flags, after.tag), (before.backend, before.flags, before.tag));
    }
}

#[test]
fn an_unhooked_clients_reply_is_rewritten_where_it_is_first_seen() {
    let mut tables = serving(&BACKENDS[..1]);
    let syn = tables.ask(to_vip(TCP, 40_000), SYN, Hook::NODE_OUT);
    assert_eq!((syn.action, syn.route), (Action::ToBackend, true));
    let reply = tables.ask(answer(to_vip(TCP, 40_000), &syn), SYN | ACK, Hook::POD_IN);
    assert_eq!((reply.action, reply.route, reply.address), (Action::ToClient, true, VIP));
    // A hooked client's reply passes the backend's link untouched: it is rewritten at the client's.
    let mut tables = serving(&BACKENDS[..1]);
    let syn = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
    assert_eq!(tables.ask(answer(to_vip(TCP, 40_000), &syn), SYN | ACK, Hook::POD_IN).action, Action::Pass);
}

#[test]
fn a_full_table_drops_and_leaves_no_half_flow() {
    let mut tables = serving(&BACKENDS[..1]);
    tables.capacity = 1;
    let verdict = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
    assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::DroppedTableFull));
    assert!(tables.flows.is_empty());
}

#[test]
fn a_half_written_update_is_never_used() {
    let mut tables = serving(&BACKENDS);
    tables.slots.values_mut().for_each(|slot| slot.generation += 1);
    let verdict = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
    assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::DroppedTorn));
    let mut tables = serving(&BACKENDS);
    tables.slots.values_mut().for_each(|slot| slot.service += 1);
    assert_eq!(
        tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN).outcome,
        Outcome::DroppedTorn,
        "another service's slots of the same generation"
    );
    let mut tables = serving(&BACKENDS);
    tables.services.get_mut(&frontend(TCP)).unwrap().seal ^= 1;
    assert_eq!(
        tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN).outcome,
        Outcome::DroppedTorn,
        "another frontend's value"
    );
    let mut tables = serving(&BACKENDS);
    tables.backends.values_mut().for_each(|backend| backend.generation += 1);
    assert_eq!(
        tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN).outcome,
        Outcome::DroppedTorn,
        "another backend's record"
    );
    assert!(tables.flows.is_empty());
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 256))]

    /// Many clients, few ports, two services and direct traffic onto one backend: every reply goes to whom it belongs.
    #[test]
    fn no_reply_is_ever_misdelivered(steps in prop::collection::vec((0u8..2, 0u16..4, 0u8..3, 0u64..3), 1..60)) {
        let mut tables = serving(&BACKENDS[..1]);
        let second_vip = [10, 96, 0, 11];
        tables.serve(3, 30, ServiceKey { address: second_vip, ..frontend(TCP) }, &BACKENDS[..1], 8080);
        // What the backend's sockets are: (peer address, peer port) → who the client believes to talk to.
        let mut sockets = std::collections::HashMap::new();
        for (client, port, target, seconds) in steps {
            tables.pass_seconds(seconds);
            let client = ([10, 0, 1, 2 + client], 40_000 + port);
            let believed = match target { 0 => (VIP, 80), 1 => (second_vip, 80), _ => (BACKENDS[0], 8080) };
            let sent = key(TCP, client, believed);
            let verdict = tables.ask(sent, SYN, Hook::POD_IN);
            let source = match verdict.action {
                Action::ToBackend => (client.0, verdict.client_port),
                Action::Pass => client,
                other => { prop_assert!(false, "{other:?}"); unreachable!() }
            };
            if let Some(owner) = sockets.get(&source) {
                prop_assert_eq!(owner, &(client, believed), "two connections on one tuple of the backend");
            }
            sockets.insert(source, (client, believed));
            if verdict.action == Action::Pass {
                // The kernel knows the client's own connection from here on.
                tables.direct.push(sent);
            }
            for (peer, (client, believed)) in &sockets {
                let reply = key(TCP, (BACKENDS[0], 8080), *peer);
                let verdict = tables.ask(reply, SYN | ACK, Hook::POD_OUT);
                let seen = match verdict.action {
                    Action::ToClient => ((peer.0, verdict.client_port), (verdict.address, verdict.port)),
                    Action::Pass => (*peer, (BACKENDS[0], 8080)),
                    other => { prop_assert!(false, "{other:?}"); unreachable!() }
                };
                prop_assert_eq!(seen, (*client, *believed));
            }
            // The client has the answer.
            tables.ask(sent, ACK, Hook::POD_IN);
        }
    }
}
