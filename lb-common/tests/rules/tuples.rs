//! Connections of one client port to one backend: through a service, through another one, and directly. Each keeps its own packets.

use crate::decide::{BACKENDS, CLIENT, VIP, answer, connect, frontend, key, serving, to_vip};
use lb_common::abi::{ServiceKey, TCP, UDP, network_flags};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::plain::ISN;
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

#[test]
fn direct_connections_work_before_during_and_after_a_service_connection() {
    let mut tables = serving(&BACKENDS[..1]);
    let direct = key(TCP, (CLIENT, 40_000), (BACKENDS[0], 8080));

    // Before: the service connection gives way.
    tables.direct.push(direct);
    let syn = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
    assert_eq!(syn.outcome, Outcome::PortTranslated);
    assert_ne!(syn.client_port, 40_000);
    let reply_to_direct = key(TCP, (BACKENDS[0], 8080), (CLIENT, 40_000));
    assert_eq!(tables.ask(reply_to_direct, ACK, Hook::POD_OUT).action, Action::Pass);
    let reply = tables.ask(answer(to_vip(TCP, 40_000), &syn), SYN | ACK, Hook::POD_OUT);
    assert_eq!((reply.address, reply.port, reply.client_port), (VIP, 80, 40_000));

    // During: the direct connection gives way.
    let mut tables = serving(&BACKENDS[..1]);
    connect(&mut tables, 40_000);
    let second = tables.ask(direct, SYN, Hook::POD_IN);
    assert_eq!(second.outcome, Outcome::DirectTranslated);
    assert_ne!(second.client_port, 40_000);
    let back = tables.ask(answer(direct, &second), SYN | ACK, Hook::POD_OUT);
    assert_eq!((back.address, back.port, back.client_port), (BACKENDS[0], 8080, 40_000));
    let more = tables.ask(direct, ACK, Hook::POD_IN);
    assert_eq!(more.client_port, second.client_port);
    let service = tables.ask(reply_to_direct, ACK, Hook::POD_OUT);
    assert_eq!((service.address, service.port), (VIP, 80), "the service connection goes on");

    // The translated service packet, seen again at the node's links, is not taken for the direct one.
    assert_eq!(tables.ask(direct, ACK, Hook::NODE_OUT).action, Action::Pass);

    // After, when the old entries have expired: untouched.
    tables.pass_seconds(u64::from(limits::TCP_IDLE_TIMEOUT_S) + 1);
    let mut tables_after = serving(&BACKENDS[..1]);
    connect(&mut tables_after, 40_000);
    tables_after.pass_seconds(u64::from(limits::TCP_IDLE_TIMEOUT_S) + 1);
    assert_eq!(tables_after.ask(direct, SYN, Hook::POD_IN).action, Action::Pass);
    assert_eq!(tables_after.ask(reply_to_direct, SYN | ACK, Hook::POD_OUT).action, Action::Pass);
}

#[test]
fn a_connection_that_is_over_gives_its_tuple_up_and_a_half_closed_one_keeps_it() {
    let direct = key(TCP, (CLIENT, 40_000), (BACKENDS[0], 8080));
    let reply = |syn: &Verdict<4>| answer(to_vip(TCP, 40_000), syn);

    let mut tables = serving(&BACKENDS[..1]);
    connect(&mut tables, 40_000);
    tables.ask(to_vip(TCP, 40_000), FIN | ACK, Hook::POD_IN);
    assert_eq!(tables.ask(direct, SYN, Hook::POD_IN).outcome, Outcome::DirectTranslated, "the backend still sends");

    for by_reset in [false, true] {
        let mut tables = serving(&BACKENDS[..1]);
        let syn = connect(&mut tables, 40_000);
        if by_reset {
            tables.ask(to_vip(TCP, 40_000), RST, Hook::POD_IN);
        } else {
            tables.ask(reply(&syn), FIN | ACK, Hook::POD_OUT);
            tables.ask_numbered(to_vip(TCP, 40_000), FIN | ACK, ISN + 1, ISN + 2, Hook::POD_IN);
            let last = tables.ask_numbered(reply(&syn), ACK, ISN + 2, ISN + 2, Hook::POD_OUT);
            assert_eq!(last.action, Action::ToClient, "the last ACK arrives");
        }
        // However often the port is used again, in turn: nothing piles up, nothing is translated.
        for _ in 0..5_000 {
            assert_eq!(tables.ask(direct, SYN, Hook::POD_IN).action, Action::Pass);
            assert_eq!(tables.ask(reply(&syn), SYN | ACK, Hook::POD_OUT).action, Action::Pass);
            let again = connect(&mut tables, 40_000);
            assert_eq!(again.client_port, 40_000);
            tables.ask(to_vip(TCP, 40_000), RST, Hook::POD_IN);
        }
        assert!(tables.flows.len() <= 2, "{}", tables.flows.len());
    }
}

#[test]
fn what_a_service_flow_leaves_behind_rewrites_no_direct_connection_of_any_client() {
    // Clients without a link of their own here: of another node, and of the host. No hook sees their direct requests as such.
    for (request, answers) in [(Hook::NODE_IN, Hook::NODE_OUT), (Hook::NODE_OUT, Hook::POD_IN)] {
        for by_reset in [false, true] {
            let mut tables = serving(&BACKENDS[..1]);
            tables.networks = vec![(CLIENT, 32, network_flags::PODS)];
            let syn = tables.ask(to_vip(TCP, 40_000), SYN, request);
            let reply = answer(to_vip(TCP, 40_000), &syn);
            assert_eq!(tables.ask(reply, SYN | ACK, answers).action, Action::ToClient);
            if by_reset {
                tables.ask(to_vip(TCP, 40_000), RST, request);
            } else {
                tables.ask(to_vip(TCP, 40_000), FIN | ACK, request);
                let fin = tables.ask_numbered(reply, FIN | ACK, ISN + 1, ISN + 2, answers);
                assert_eq!(fin.action, Action::ToClient);
                let last = tables.ask_numbered(to_vip(TCP, 40_000), ACK, ISN + 2, ISN + 2, request);
                assert_eq!(last.action, Action::ToBackend, "the last ACK arrives");
            }
            assert_eq!(tables.ask(reply, SYN | ACK, answers).action, Action::Pass, "answers the direct connection");
            assert_eq!(tables.ask(reply, ACK, answers).action, Action::Pass, "and so does the rest");
            assert!(tables.flows.is_empty());
        }
        let mut tables = serving(&BACKENDS[..1]);
        tables.networks = vec![(CLIENT, 32, network_flags::PODS)];
        let sent = tables.ask(to_vip(UDP, 40_000), 0, request);
        let reply = answer(to_vip(UDP, 40_000), &sent);
        assert_eq!(tables.ask(reply, 0, answers).action, Action::ToClient);
        tables.pass_seconds(u64::from(limits::UDP_REPLIED_TIMEOUT_S) + 1);
        assert_eq!(tables.ask(reply, 0, answers).action, Action::Pass);
        assert!(tables.flows.is_empty());
    }
}

#[test]
fn a_direct_datagram_moves_the_replies_only_from_the_link_that_leads_to_its_source() {
    for is_answered in [false, true] {
        let mut tables = serving(&BACKENDS[..1]);
        let sent = tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN);
        let reply = answer(to_vip(UDP, 40_000), &sent);
        if is_answered {
            assert_eq!(tables.ask(reply, 0, Hook::POD_OUT).outcome, Outcome::Replied);
        }
        let before = (tables.flows.clone(), tables.half_open.clone());
        let direct = reply.reversed();
        tables.comes_astray = true;
        let forged = tables.ask(direct, 0, Hook::POD_IN);
        assert_eq!((forged.action, forged.outcome), (Action::Pass, Outcome::AmbiguousUdp));
        assert_eq!((&tables.flows, &tables.half_open), (&before.0, &before.1), "another pod has forged it");
        tables.comes_astray = false;
        tables.ask(direct, 0, Hook::POD_IN);
        assert_eq!(tables.ask(reply, 0, Hook::POD_OUT).action, Action::Pass, "the client's own");
        tables.ask(to_vip(UDP, 40_000), 0, Hook::POD_IN);
        assert_eq!(tables.ask(reply, 0, Hook::POD_OUT).outcome, Outcome::Replied);
    }
}

#[test]
fn a_direct_connection_on_a_translated_port_gives_way_too() {
    let mut tables = serving(&BACKENDS[..1]);
    connect(&mut tables, 40_000);
    let first = tables.ask(key(TCP, (CLIENT, 40_000), (BACKENDS[0], 8080)), SYN, Hook::POD_IN);
    assert_eq!(first.outcome, Outcome::DirectTranslated);
    // The client's own socket has the very port that the first was translated to.
    let second = tables.ask(key(TCP, (CLIENT, first.client_port), (BACKENDS[0], 8080)), SYN, Hook::POD_IN);
    assert_eq!(second.outcome, Outcome::DirectTranslated);
    assert_ne!(second.client_port, first.client_port);
}

#[test]
fn no_port_is_translated_to_that_the_client_itself_uses() {
    let mut tables = serving(&BACKENDS[..1]);
    let last = limits::SOURCE_PORT_FIRST + (limits::SOURCE_PORT_COUNT - 1);
    let own: Vec<u16> = std::iter::once(40_000).chain(limits::SOURCE_PORT_FIRST..=last).filter(|p| p % 4 < 2).collect();
    tables.direct.extend(own.iter().map(|port| key(TCP, (CLIENT, *port), (BACKENDS[0], 8080))));
    for _ in 0..50 {
        let syn = tables.ask(to_vip(TCP, 40_000), SYN, Hook::POD_IN);
        assert!(syn.outcome == Outcome::DroppedNoPort || !own.contains(&syn.client_port), "{}", syn.client_port);
        tables.flows.clear();
    }
}

#[test]
fn one_client_port_through_two_services_to_one_backend_is_kept_apart() {
    let mut tables = serving(&BACKENDS[..1]);
    let second_vip = ServiceKey { address: [10, 96, 0, 11], ..frontend(TCP) };
    tables.serve(3, 30, second_vip, &BACKENDS[..1], 8080);
    let first = connect(&mut tables, 40_000);
    let other = key(TCP, (CLIENT, 40_000), (second_vip.address, 80));
    let second = tables.ask(other, SYN, Hook::POD_IN);
    assert_ne!(first.client_port, second.client_port);
    assert_eq!(tables.ask(answer(other, &second), SYN | ACK, Hook::POD_OUT).address, second_vip.address);
    assert_eq!(tables.ask(answer(to_vip(TCP, 40_000), &first), ACK, Hook::POD_OUT).address, VIP);
}
