//! External clients: which set serves them, whose address the backend sees, and how its answers come back, over plain tables.

use lb_common::abi::{
    FlowKey, Masquerade, Service, ServiceKey, TCP, UDP, VipKey, backend_flags, frontend_kind, network_flags,
    service_flags,
};
use lb_common::abi::{Vip, vip_flags};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits::{SOURCE_PORT_COUNT, SOURCE_PORT_FIRST};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, reply, tuple};
use lb_common::state::{
    SourcePorts,
    tcp_flag::{ACK, FIN, RST, SYN},
};

pub const CLIENT: [u8; 4] = [198, 51, 100, 7];
pub const POD: [u8; 4] = [10, 0, 2, 9];
pub const NODE: [u8; 4] = [192, 0, 2, 1];
const OTHER: [u8; 4] = [192, 0, 2, 2];
const LOCAL: [u8; 4] = [10, 0, 1, 11];
pub const REMOTE: [u8; 4] = [10, 0, 2, 12];
pub const NODE_PORT: u16 = 30_080;
pub const FROM_THE_WIRE: [Hook; 2] = [Hook::NODE_IN, Hook::XDP];
/// Where an answer to this node is first seen: of a backend elsewhere, or of a pod of this node.
const FIRST_SEEN: [Hook; 5] = [Hook::NODE_IN, Hook::NODE_IN_L3, Hook::XDP, Hook::POD_IN, Hook::BRIDGE_IN];
const EXTERNAL: [u8; 3] = [frontend_kind::EXTERNAL_IP, frontend_kind::LOAD_BALANCER, frontend_kind::NODE_PORT];

fn frontend(protocol: u8) -> ServiceKey<4> {
    ServiceKey { address: NODE, port: NODE_PORT, protocol, pad: 0 }
}

pub fn from(client: [u8; 4], port: u16, protocol: u8) -> FlowKey<4> {
    tuple(protocol, (client, port), (NODE, NODE_PORT))
}

/// What the backend sends back to what the verdict made of a request.
fn answer(protocol: u8, sent: &Verdict<4>) -> FlowKey<4> {
    reply(protocol, sent)
}

/// One backend serves clients inside, another one those outside; `outside_is_local`: whether the other one is local.
pub fn serving(kind: u8, flags: u8, outside_is_local: bool) -> Memory {
    let networks = vec![([10, 0, 0, 0], 16, network_flags::PODS), (NODE, 32, network_flags::NODE)];
    let mut tables = Memory { own: Some(Masquerade::new(NODE, &[])), networks, ..Memory::default() };
    for (base, protocol) in [(0, TCP), (10, UDP)] {
        let outside = if outside_is_local { LOCAL } else { REMOTE };
        tables.serve(1, base, frontend(protocol), &[REMOTE, outside], 8080);
        for id in [base + 1, base + 2] {
            let backend = tables.backends.get_mut(&id).unwrap();
            if backend.address == REMOTE {
                backend.flags &= !backend_flags::LOCAL;
            }
        }
        let key = frontend(protocol);
        tables.edit(key, |service| {
            let (external_base, external_count) = (service.slot_base + 1, 1);
            *service = Service { kind, flags, slot_count: 1, external_base, external_count, ..*service };
        });
    }
    tables
}

#[test]
fn a_remote_backend_sees_the_node_and_its_answers_come_back_through_it() {
    for hook in FROM_THE_WIRE {
        for kind in EXTERNAL {
            for (protocol, asks, answers) in [(TCP, SYN, SYN | ACK), (UDP, 0, 0)] {
                let mut tables = serving(kind, 0, false);
                let sent = tables.ask(from(CLIENT, 40_000, protocol), asks, hook);
                assert_eq!((sent.action, sent.outcome), (Action::ToBackend, Outcome::Masqueraded));
                assert_eq!((sent.address, sent.client, sent.route), (REMOTE, NODE, true));
                assert!((SOURCE_PORT_FIRST..=SOURCE_PORT_FIRST + (SOURCE_PORT_COUNT - 1)).contains(&sent.client_port));
                let back = tables.ask(answer(protocol, &sent), answers, hook);
                assert_eq!((back.action, back.route, back.masquerade), (Action::ToClient, true, true));
                assert_eq!((back.address, back.port), (NODE, NODE_PORT));
                assert_eq!((back.client, back.client_port), (CLIENT, 40_000));
                let again = tables.ask(from(CLIENT, 40_000, protocol), if protocol == TCP { ACK } else { 0 }, hook);
                assert_eq!((again.client, again.client_port), (sent.client, sent.client_port));
            }
        }
    }
}

#[test]
fn a_backend_of_this_node_sees_the_client() {
    for kind in EXTERNAL {
        let mut tables = serving(kind, 0, true);
        let sent = tables.ask(from(CLIENT, 40_000, TCP), SYN, Hook::NODE_IN);
        assert_eq!((sent.address, sent.client, sent.client_port), (LOCAL, CLIENT, 40_000));
        assert_eq!((sent.masquerade, sent.route), (false, false));
        let back = tables.ask(answer(TCP, &sent), SYN | ACK, Hook::NODE_OUT);
        assert_eq!((back.action, back.address, back.client, back.route), (Action::ToClient, NODE, CLIENT, false));
    }
}

/// Upstream e2e: "should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local".
#[test]
fn a_pod_of_another_node_is_outside_for_the_external_policy() {
    for (hook, kind) in FROM_THE_WIRE.into_iter().flat_map(|hook| EXTERNAL.map(|kind| (hook, kind))) {
        let mut tables = serving(kind, service_flags::OUTSIDE_LOCAL, true);
        let sent = tables.ask(from(POD, 40_000, TCP), SYN, hook);
        assert_eq!((sent.address, sent.client), (LOCAL, POD), "the set of this node, which sees the client");
        let mut tables = serving(kind, 0, false);
        let sent = tables.ask(from(POD, 40_000, TCP), SYN, hook);
        assert_eq!((sent.address, sent.client), (REMOTE, NODE), "the backend's answer must come back here");
    }
    let flags = service_flags::OUTSIDE_LOCAL | service_flags::DROP_OUTSIDE_IF_EMPTY;
    let mut tables = serving(frontend_kind::NODE_PORT, flags, true);
    let key = frontend(TCP);
    tables.edit(key, |service| service.external_count = 0);
    let sent = tables.ask(from(POD, 40_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!((sent.action, sent.outcome), (Action::Drop, Outcome::DroppedNoLocalEndpoint));
}

#[test]
fn a_cluster_ip_shows_pods_and_hides_others() {
    for hook in FROM_THE_WIRE {
        let mut tables = serving(frontend_kind::CLUSTER_IP, 0, true);
        assert_eq!(tables.ask(from(POD, 40_000, TCP), SYN, hook).client, POD);
        let sent = tables.ask(from(CLIENT, 40_001, TCP), SYN, hook);
        assert_eq!((sent.client, sent.masquerade), (NODE, true));
    }
    let mut tables = serving(frontend_kind::CLUSTER_IP, 0, true);
    for hook in [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_OUT] {
        assert_eq!(tables.ask(from(CLIENT, 40_000, TCP), SYN, hook).client, CLIENT, "its link is one of this node");
    }
}

#[test]
fn a_process_of_this_node_as_backend_of_a_cluster_ip_sees_the_client() {
    let mut tables = serving(frontend_kind::CLUSTER_IP, 0, true);
    tables.networks.push((REMOTE, 32, network_flags::NODE));
    let backend = tables.backends.get_mut(&1).unwrap();
    backend.flags |= backend_flags::LOCAL;
    let sent = tables.ask(from(CLIENT, 40_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!((sent.client, sent.masquerade), (CLIENT, false), "the node's stack takes nothing from its own address");
}

#[test]
fn a_port_that_no_socket_of_the_node_may_take_is_kept() {
    for (port, kept) in [(20_000, true), (62_000, true), (40_000, false), (32_768, false), (30_100, false), (80, false)]
    {
        let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
        let sent = tables.ask(from(CLIENT, port, TCP), SYN, Hook::NODE_IN);
        assert_eq!(sent.client_port == port, kept, "{port}");
        // The next client on this port gets another one.
        let next = tables.ask(from([198, 51, 100, 8], port, TCP), SYN, Hook::NODE_IN);
        assert_ne!(next.client_port, sent.client_port, "{port}");
        assert_eq!(next.action, Action::ToBackend);
    }
}

#[test]
fn used_up_ports_are_counted_and_freed_ones_are_found() {
    let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
    tables.ports = SourcePorts::of_range(61_000, 16);
    let mut placed = Vec::new();
    let full = (1..=100_u8).find(|last| {
        let verdict = tables.ask(from([198, 51, 100, *last], 40_000, TCP), SYN, Hook::NODE_IN);
        placed.push(verdict.client_port);
        verdict.outcome == Outcome::DroppedNoPort
    });
    let full = full.expect("sixteen ports serve no hundred clients");
    placed.pop();
    placed.sort_unstable();
    placed.dedup();
    assert_eq!(placed.len(), usize::from(full) - 1, "no two clients have the same");
    assert!(placed.len() >= 8, "{} of 16 ports were found", placed.len());
    tables.pass_seconds(u64::from(lb_common::limits::TCP_HALF_OPEN_TIMEOUT_S) + 1);
    let verdict = tables.ask(from([198, 51, 100, 200], 40_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!(verdict.outcome, Outcome::Masqueraded, "nobody remembers the others");
}

#[test]
fn where_one_address_has_no_port_left_the_next_one_stands_in() {
    let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
    (tables.ports, tables.own) = (SourcePorts::of_range(61_000, 4), Some(Masquerade::new(NODE, &[OTHER])));
    let mut placed = Vec::new();
    for client in 1..=8 {
        let request = from([198, 51, 100, client], 40_000, TCP);
        let verdict = tables.ask(request, SYN, Hook::NODE_IN);
        assert_eq!(verdict.outcome, Outcome::Masqueraded, "{placed:?}");
        assert_eq!(verdict.client, if client <= 4 { NODE } else { OTHER }, "the first one as long as it has ports");
        // The tuple is claimed at the address that was taken: the answer finds its client.
        let back = tables.ask(answer(TCP, &verdict), SYN | ACK, Hook::NODE_IN);
        assert_eq!((back.action, back.client, back.address), (Action::ToClient, request.src, NODE));
        placed.push((verdict.client, verdict.client_port));
    }
    let kept = tables.ask(from([198, 51, 100, 9], 25_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!((kept.client, kept.client_port), (NODE, 25_000), "a port that is kept is kept at the first address");
    let none = tables.ask(from([198, 51, 100, 10], 40_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!((none.action, none.outcome), (Action::Drop, Outcome::DroppedNoPort));
    placed.sort_unstable();
    placed.dedup();
    assert_eq!(placed.len(), 8, "no two clients have the same tuple");
}

#[test]
fn what_a_backend_says_of_the_connection_before_on_a_snat_tuple_is_for_the_client_to_judge() {
    // Whether the SNAT address is a service's, too, says nothing.
    for own in [NODE, OTHER] {
        let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
        (tables.own, tables.ports) = (Some(Masquerade::new(own, &[])), SourcePorts::of_range(61_000, 8));
        let request = from(CLIENT, 40_000, TCP);
        let sent = tables.ask(request, SYN, Hook::NODE_IN);
        let (reply, before) = (answer(TCP, &sent), tables.half_open.clone());
        for hook in FIRST_SEEN {
            for (flags, ack) in [(ACK, 77), (ACK, ISN + 1), (FIN | ACK, 77), (FIN | ACK, ISN + 1)] {
                let back = tables.ask_numbered(reply, flags, 99, ack, hook);
                assert_eq!((back.action, back.outcome), (Action::ToClient, Outcome::Replied), "{flags} {ack} {hook:?}");
                assert_eq!((back.client, back.client_port), (CLIENT, 40_000));
                assert_eq!((back.address, back.port), (NODE, NODE_PORT));
            }
        }
        assert_eq!(tables.half_open, before, "it answers nothing, and refuses nothing");
        // The client resets what it does not know, and asks again.
        let reset = tables.ask_numbered(request, RST, 77, 0, Hook::NODE_IN);
        assert_eq!((reset.action, reset.address, reset.client_port), (Action::ToBackend, REMOTE, sent.client_port));
        let again = tables.ask(request, SYN, Hook::NODE_IN);
        assert_eq!((again.outcome, again.client_port), (Outcome::Forwarded, sent.client_port));
        assert_eq!(tables.ask(reply, SYN | ACK, Hook::NODE_IN).outcome, Outcome::Replied);
        assert_eq!(tables.ask_numbered(reply, ACK, 99, 77, Hook::NODE_IN).outcome, Outcome::Replied);
        assert_eq!(tables.ask(request, ACK, Hook::NODE_IN).outcome, Outcome::Forwarded);
        assert_eq!((tables.flows.len(), tables.half_open.len()), (2, 0));
    }
}

#[test]
fn segments_for_the_nodes_own_stack_pass() {
    const SERVER: u16 = 10_250;
    for own in [NODE, OTHER] {
        let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
        tables.own = Some(Masquerade::new(own, &[]));
        tables.ports = SourcePorts::of_range(62_000, 2);
        // A client may keep its port, within the SNAT range or not.
        for (port, is_translated) in [(SERVER, false), (61_999, false), (62_000, true), (62_001, true), (62_002, false)]
        {
            let sent = tables.ask(from(CLIENT, port, TCP), SYN, Hook::NODE_IN);
            assert_eq!(sent.client_port, port);
            let reply = answer(TCP, &sent);
            let action = if is_translated { Action::ToClient } else { Action::Pass };
            for flags in [ACK, FIN | ACK] {
                for hook in FIRST_SEEN {
                    let verdict = tables.ask_numbered(reply, flags, 99, 77, hook);
                    assert_eq!(verdict.action, action, "{port} {flags} {hook:?}");
                }
                let other = FlowKey { src: LOCAL, ..reply };
                assert_eq!(tables.ask_numbered(other, flags, 99, 77, Hook::NODE_IN).action, Action::Pass, "{port}");
            }
        }
    }
}

#[test]
fn without_an_address_of_the_family_nothing_is_sent() {
    let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
    tables.own = None;
    let verdict = tables.ask(from(CLIENT, 40_000, TCP), SYN, Hook::NODE_IN);
    assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::DroppedNoAddress));
    assert!(tables.half_open.is_empty() && tables.flows.is_empty());
}

#[test]
fn an_empty_local_set_drops_those_outside_alone() {
    for (flags, action) in [(service_flags::DROP_OUTSIDE_IF_EMPTY, Action::Drop), (0, Action::Refuse)] {
        let mut tables = serving(frontend_kind::LOAD_BALANCER, flags | service_flags::OUTSIDE_LOCAL, true);
        let key = frontend(TCP);
        tables.edit(key, |service| service.external_count = 0);
        assert_eq!(tables.ask(from(CLIENT, 40_000, TCP), SYN, Hook::NODE_IN).action, action);
        assert_eq!(tables.ask(from(POD, 40_000, TCP), SYN, Hook::POD_IN).action, Action::ToBackend);
    }
}

#[test]
fn a_source_that_cannot_be_out_there_is_dropped_and_counted() {
    let service = [10, 96, 0, 10];
    for hook in FROM_THE_WIRE {
        for source in [NODE, [127, 0, 0, 1], service] {
            let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
            tables.vips.insert(VipKey { address: service }, Vip { flags: vip_flags::REFUSE_UNSERVED });
            let verdict = tables.ask(from(source, 40_000, TCP), SYN, hook);
            assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::DroppedMartian), "{source:?}");
        }
    }
}

#[test]
fn two_clients_of_one_port_never_share_a_tuple() {
    let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
    let first = tables.ask(from(CLIENT, 20_000, UDP), 0, Hook::NODE_IN);
    let second = tables.ask(from([198, 51, 100, 8], 20_000, UDP), 0, Hook::NODE_IN);
    for (sent, client) in [(first, CLIENT), (second, [198, 51, 100, 8])] {
        let back = tables.ask(answer(UDP, &sent), 0, Hook::NODE_IN);
        assert_eq!((back.client, back.client_port), (client, 20_000));
    }
}

/// A port that an external client may keep, so that a process of this node can have the same one.
const KEPT: u16 = 20_000;

#[test]
fn a_tuple_that_a_socket_of_this_node_has_goes_to_no_client() {
    for hook in FROM_THE_WIRE {
        for (protocol, asks) in [(TCP, SYN), (UDP, 0)] {
            let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
            let kept = tables.ask(from(CLIENT, KEPT, protocol), asks, hook);
            assert_eq!((kept.outcome, kept.client_port), (Outcome::Masqueraded, KEPT), "a client keeps its port");

            let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
            // The one of the client's own port, and of most of the range.
            let ports = (SOURCE_PORT_FIRST..=SOURCE_PORT_FIRST + (SOURCE_PORT_COUNT - 1)).filter(|port| port % 2 == 0);
            tables.node_sockets = [KEPT].into_iter().chain(ports).map(|port| to_node(protocol, port)).collect();
            let sent = tables.ask(from(CLIENT, KEPT, protocol), asks, hook);
            assert_eq!((sent.action, sent.outcome), (Action::ToBackend, Outcome::Masqueraded));
            assert!(!tables.node_sockets.contains(&answer(protocol, &sent)), "{sent:?}");
        }
    }
}

/// What a socket of this node at this port receives from the backend.
fn to_node(protocol: u8, port: u16) -> FlowKey<4> {
    tuple(protocol, (REMOTE, 8080), (NODE, port))
}

#[test]
fn this_nodes_own_connection_on_the_tuple_of_a_client_gets_another_port() {
    for out in [Hook::NODE_OUT, Hook::POD_OUT] {
        for (protocol, asks, answers) in [(TCP, SYN, SYN | ACK), (UDP, 0, 0)] {
            let mut tables = serving(frontend_kind::NODE_PORT, 0, false);
            let sent = tables.ask(from(CLIENT, KEPT, protocol), asks, Hook::NODE_IN);
            assert_eq!(sent.client_port, KEPT);
            tables.ask(answer(protocol, &sent), answers, Hook::NODE_IN);
            let later = if protocol == TCP { ACK } else { 0 };
            tables.ask(from(CLIENT, KEPT, protocol), later, Hook::NODE_IN);

            // What leaves for the client has the same tuple as what the node's process sends.
            let own = to_node(protocol, KEPT).reversed();
            assert_eq!(tables.ask(own, asks, out).action, Action::Pass, "forwarded");
            tables.is_from_node = true;
            let first = tables.ask(own, asks, out);
            assert_eq!((first.outcome, first.address, first.route), (Outcome::DirectTranslated, REMOTE, false));
            assert_ne!(first.client_port, KEPT);
            assert_eq!(tables.ask(own, asks, out).client_port, first.client_port, "once more");
            // Translated, it leaves by a link below.
            assert_eq!(tables.ask(answer(protocol, &first).reversed(), asks, Hook::NODE_OUT).action, Action::Pass);
            tables.is_from_node = false;
            assert_eq!(tables.ask(own, later, out).action, Action::Pass, "forwarded");

            for hook in FIRST_SEEN {
                let back = tables.ask(answer(protocol, &first), answers, hook);
                assert_eq!((back.action, back.client, back.client_port), (Action::ToClient, NODE, KEPT), "{hook:?}");
                assert_eq!((back.address, back.port), (REMOTE, 8080));
                let theirs = tables.ask(answer(protocol, &sent), later, hook);
                assert_eq!((theirs.client, theirs.client_port), (CLIENT, KEPT), "the client's go to the client");
            }
            tables.is_from_node = true;
            let more = tables.ask(own, later, out);
            assert_eq!((more.client_port, more.route), (first.client_port, false));

            // Any other connection of the node is left alone, and costs no entry.
            let entries = tables.flows.len() + tables.half_open.len();
            for port in [KEPT + 1, 40_000, 80, SOURCE_PORT_FIRST] {
                let other = to_node(protocol, port).reversed();
                assert_eq!(tables.ask(other, asks, out).action, Action::Pass, "port {port}");
            }
            assert_eq!(tables.flows.len() + tables.half_open.len(), entries);
        }
    }
}

#[test]
fn this_nodes_own_connection_to_a_service_is_translated_once() {
    for (protocol, asks) in [(TCP, SYN), (UDP, 0)] {
        let mut tables = serving(frontend_kind::CLUSTER_IP, 0, false);
        tables.is_from_node = true;
        let sent = tables.ask(from(NODE, KEPT, protocol), asks, Hook::NODE_OUT);
        assert_eq!((sent.action, sent.client_port), (Action::ToBackend, KEPT));
        for hook in [Hook::NODE_OUT, Hook::POD_OUT] {
            let again = tables.ask(answer(protocol, &sent).reversed(), asks, hook);
            assert_eq!(again.action, Action::Pass, "where it leaves: {hook:?}");
        }
    }
}
