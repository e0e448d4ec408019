//! Direct server return over plain tables: the node that a client's packets come by, the backend's node, and one that takes over.

use lb_common::abi::{
    Endpoint, EndpointKey, FlowKey, Masquerade, Service, ServiceKey, TCP, UDP, backend_flags, backend_state,
    frontend_kind, network_flags, scheduler, seal, service_flags,
};
use lb_common::decide::{
    Action, Hook, Inside, Now, Packet, Verdict, Work, decide, inside, is_about_tunnelled, quoted_elsewhere,
};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

const CLIENT: [u8; 4] = [198, 51, 100, 7];
const VIP: [u8; 4] = [203, 0, 113, 80];
const PODS: [[u8; 4]; 3] = [[10, 0, 1, 11], [10, 0, 2, 12], [10, 0, 3, 13]];

fn from(port: u16, protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, port), (VIP, 80))
}

fn edit(tables: &mut Memory, edit: impl Fn(&mut Service)) {
    for (key, service) in &mut tables.services {
        edit(service);
        service.seal = seal(key, service);
    }
}

/// The tables of the node with this pod: ids are its own, the slots' order is every node's.
fn node(own: usize) -> Memory {
    let base = u32::try_from(own).unwrap() * 100;
    let networks = vec![([10, 0, 0, 0], 8, network_flags::PODS)];
    let mut tables = Memory { own: Some(Masquerade::new([192, 0, 2, 1], &[])), networks, ..Memory::default() };
    for (id, protocol) in [(1 + base, TCP), (2 + base, UDP)] {
        let frontend = ServiceKey { address: VIP, port: 80, protocol, pad: 0 };
        tables.serve(id, id * 50, frontend, &PODS, 8080);
        for (pod, backend) in PODS.iter().zip(id * 50 + 1..) {
            if *pod == PODS[own] {
                let key = EndpointKey { address: *pod, service: id };
                tables.endpoints.insert(key, Endpoint { backend, generation: 1 });
            } else {
                tables.backends.get_mut(&backend).unwrap().flags &= !backend_flags::LOCAL;
            }
        }
    }
    edit(&mut tables, |service| {
        service.kind = frontend_kind::LOAD_BALANCER;
        service.scheduler = scheduler::MAGLEV;
        service.flags = service_flags::DSR;
    });
    tables
}

/// The packet as it comes in the outer header, for this pod.
fn arrives(tables: &mut Memory, key: FlowKey<4>, tcp_flags: u8, chosen: [u8; 4]) -> Verdict<4> {
    let seq = if tcp_flags & SYN != 0 { ISN } else { ISN + 1 };
    let mut work = Work::new(Packet { seq, ack: ISN + 1, ..Packet::new(key, tcp_flags) });
    work.chosen = chosen;
    decide(tables, &mut work, Hook::NODE_IN);
    work.verdict
}

fn is_whole(verdict: &Verdict<4>) -> bool {
    verdict.action == Action::ToBackend && verdict.port == 0 && verdict.route && !verdict.masquerade
}

/// A port whose connection a node sends to another one's pod.
fn tunnelled(tables: &mut Memory) -> (u16, Verdict<4>) {
    let verdicts = (4000..4100).map(|port| (port, tables.ask(from(port, TCP), SYN, Hook::NODE_IN)));
    verdicts.into_iter().find(|(_, verdict)| is_whole(verdict)).unwrap()
}

#[test]
fn a_packet_goes_whole_to_the_pods_node_and_is_kept_there_once_the_client_saw_an_answer() {
    for hook in [Hook::NODE_IN, Hook::XDP] {
        let mut tables = node(0);
        let (port, sent) = tunnelled(&mut tables);
        assert_eq!(sent.outcome, Outcome::Tunnelled);
        assert!(tables.flows.is_empty(), "a SYN evicts no flow");
        let acked = tables.ask(from(port, TCP), ACK, hook);
        assert!(is_whole(&acked) && acked.address == sent.address);
        assert!(tables.flows.is_empty(), "no answer is seen here, so nothing shows that there is a connection");
        // From now on nothing that happens to the others matters.
        edit(&mut tables, |service| service.external_count = 1);
        let kept = tables.ask(from(port, TCP), ACK, hook);
        assert_eq!((kept.address, kept.outcome), (sent.address, Outcome::Forwarded));
        tables.pass_seconds(u64::from(tables.timeouts.half_open_s) + 1);
        assert_eq!(tables.ask(from(port, TCP), ACK, hook).address, sent.address, "as long as one that is established");
        let other = tables.ask_numbered(from(port, TCP), SYN, ISN + 77_777, 0, hook);
        assert_eq!((other.address, other.outcome), (sent.address, Outcome::Forwarded), "the backend answers it");
        assert!(is_whole(&tables.ask(from(port, TCP), FIN | ACK, hook)));
        assert!(is_whole(&tables.ask(from(port, TCP), ACK, hook)), "it may still acknowledge");
        let other = tables.ask_numbered(from(port, TCP), SYN, ISN + 77_777, 0, hook);
        assert_eq!(other.address, PODS[0], "the connection before is over, and one slot is left");
    }
}

/// A fuzzer found that the time was rounded down to a second: a segment was sent to a backend that had gone in this second.
#[test]
fn a_segment_of_no_connection_goes_to_no_backend_whose_period_ended_in_this_second() {
    let mut tables = node(0);
    tables.now_ns += 900_000_000;
    let now_ds = Now::from_ns(tables.now_ns).ds;
    let (port, sent) = tunnelled(&mut tables);
    for (drain_ds, is_sent) in [(now_ds + 1, true), (now_ds - 1, false)] {
        tables.half_open.clear();
        tables.backends.get_mut(&sent.backend).unwrap().drain_ds = drain_ds;
        let verdict = tables.ask(from(port, TCP), ACK, Hook::NODE_IN);
        assert_eq!(is_whole(&verdict) && verdict.backend == sent.backend, is_sent, "{verdict:?}");
    }
}

/// The reply tuple of an encapsulated connection has port 0. A fuzzer found that a packet from port 0 was taken for the backend's answer.
#[test]
fn a_packet_from_port_0_answers_no_encapsulated_connection() {
    for protocol in [TCP, UDP] {
        let mut tables = node(0);
        let key = |port| from(port, protocol);
        let asked = (4000..4100).map(|port| (port, tables.ask(key(port), SYN, Hook::NODE_IN)));
        let (port, sent) = asked.into_iter().find(|(_, verdict)| is_whole(verdict)).unwrap();
        let answer = FlowKey { src: sent.address, dst: CLIENT, src_port: 0, dst_port: port, ..key(port) };
        assert_eq!(tables.ask(answer, SYN | ACK, Hook::NODE_OUT).action, Action::Pass, "protocol {protocol}");
    }
}

#[test]
fn every_node_leads_a_segment_that_it_does_not_know_to_the_same_pod() {
    let (mut first, mut second) = (node(0), node(1));
    let mut led = 0;
    for port in 4000..4300 {
        let sent = first.ask(from(port, TCP), SYN, Hook::NODE_IN);
        for flags in [ACK, RST] {
            let taken_over = second.ask(from(port, TCP), flags, Hook::XDP);
            if is_whole(&sent) && is_whole(&taken_over) {
                assert_eq!(taken_over.address, sent.address);
                led += 1;
            }
        }
    }
    assert!(led > 100, "{led}");
    assert!(second.flows.is_empty() && second.half_open.is_empty(), "what nobody has answered here takes no room");
}

#[test]
fn what_this_node_has_seen_of_a_pod_moves_nothing() {
    let mut tables = node(0);
    let before: Vec<_> = (4000..4200).map(|port| tables.ask(from(port, TCP), SYN, Hook::NODE_IN).address).collect();
    let mut seen = node(0);
    for id in seen.backends.keys().copied().collect::<Vec<_>>() {
        seen.eject(id);
    }
    let after: Vec<_> = (4000..4200).map(|port| seen.ask(from(port, TCP), SYN, Hook::NODE_IN).address).collect();
    assert_eq!(before, after);
}

#[test]
fn pods_of_other_nodes_are_answered_by_way_of_this_one() {
    let mut tables = node(0);
    let elsewhere = (4000..4100).filter(|port| {
        let verdict = tables.ask(FlowKey { src: PODS[1], ..from(*port, TCP) }, SYN, Hook::NODE_IN);
        assert!(!is_whole(&verdict), "a pod that is its own backend would come from the wire");
        assert_eq!(verdict.action, Action::ToBackend);
        verdict.masquerade
    });
    assert!(elsewhere.count() > 30);
}

#[test]
fn a_client_with_affinity_has_one_backend_by_whatever_node_it_comes() {
    let (mut first, mut second) = (node(0), node(1));
    for tables in [&mut first, &mut second] {
        edit(tables, |service| service.affinity_timeout_s = 60);
    }
    let mut asked: Vec<[u8; 4]> =
        (4000..4050).map(|port| first.ask(from(port, TCP), SYN, Hook::NODE_IN).address).collect();
    asked.extend((4000..4050).map(|port| second.ask(from(port, TCP), SYN, Hook::NODE_IN).address));
    asked.dedup();
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[test]
fn the_pods_node_takes_the_choice_and_answers_by_itself() {
    let mut tables = node(1);
    let sent = arrives(&mut tables, from(4000, TCP), SYN, PODS[1]);
    assert_eq!((sent.action, sent.address, sent.port), (Action::ToBackend, PODS[1], 8080));
    assert_eq!((sent.client, sent.client_port, sent.masquerade), (CLIENT, 4000, false));
    let answer = tuple(TCP, (PODS[1], 8080), (CLIENT, 4000));
    let back = tables.ask(answer, SYN | ACK, Hook::NODE_OUT);
    assert_eq!((back.action, back.address, back.port), (Action::ToClient, VIP, 80));
    assert_eq!(arrives(&mut tables, from(4000, TCP), ACK, PODS[1]).outcome, Outcome::Forwarded);
}

#[test]
fn a_node_port_is_known_by_its_number_at_any_nodes_address() {
    let mut tables = node(1);
    let (key, service) = tables.services.iter().find(|(key, _)| key.protocol == TCP).map(|(k, s)| (*k, *s)).unwrap();
    let any = ServiceKey { address: [0; 4], port: 30_080, ..key };
    let service = Service { kind: frontend_kind::NODE_PORT, ..service };
    tables.services.insert(any, Service { seal: seal(&any, &service), ..service });
    let asked = FlowKey { dst: [192, 0, 2, 77], dst_port: 30_080, ..from(4000, TCP) };
    let overlay = FlowKey { dst: PODS[1], ..asked };
    assert_eq!(arrives(&mut tables, overlay, SYN, PODS[1]).action, Action::Pass, "an overlay of somebody else's");
    let sent = arrives(&mut tables, asked, SYN, PODS[1]);
    assert_eq!((sent.action, sent.address), (Action::ToBackend, PODS[1]));
    let direct = tables.ask(FlowKey { src_port: 4001, ..asked }, SYN, Hook::NODE_IN);
    assert_eq!(direct.action, Action::Pass, "only in an outer header");
}

#[test]
fn a_pod_that_is_not_here_is_told_to_nobody_and_counted() {
    let mut tables = node(1);
    let lost = arrives(&mut tables, from(4000, TCP), SYN, PODS[0]);
    assert_eq!((lost.action, lost.outcome), (Action::Drop, Outcome::DroppedNotHere));
    // Gone meanwhile: the same.
    for backend in tables.backends.values_mut() {
        backend.state = backend_state::GONE;
    }
    let gone = arrives(&mut tables, from(4001, TCP), SYN, PODS[1]);
    assert_eq!((gone.action, gone.outcome), (Action::Drop, Outcome::DroppedNotHere));
    assert!(tables.flows.is_empty() && tables.half_open.is_empty());
    // A segment that begins nothing belongs to no connection: its sender gets a RST.
    assert_eq!(arrives(&mut node(1), from(4002, TCP), ACK, PODS[1]).action, Action::Refuse);
}

#[test]
fn a_pod_of_this_node_is_served_as_ever() {
    let mut tables = node(0);
    let own = (4000..4100).map(|port| tables.ask(from(port, TCP), SYN, Hook::NODE_IN)).find(|v| v.address == PODS[0]);
    let own = own.unwrap();
    assert_eq!((own.port, own.client, own.route), (8080, CLIENT, false));
}

#[test]
fn datagrams_stay_with_their_pod_and_say_nothing_about_it() {
    let mut tables = node(0);
    let port = (4000..4100).find(|port| is_whole(&tables.ask(from(*port, UDP), 0, Hook::NODE_IN))).unwrap();
    let first = tables.ask(from(port, UDP), 0, Hook::NODE_IN);
    edit(&mut tables, |service| service.external_count = 1);
    assert_eq!(tables.ask(from(port, UDP), 0, Hook::NODE_IN).address, first.address);
    assert!(tables.health.values().all(|health| health.unanswered == 0), "no answer is to be seen here");
    tables.pass_seconds(u64::from(lb_common::limits::UDP_UNREPLIED_TIMEOUT_S) + 1);
    let anew = tables.ask(from(port, UDP), 0, Hook::NODE_IN);
    assert_eq!(anew.address, PODS[0], "nobody remembers it, and one slot is left");
}

/// An error about an answer, as the programs show it: the quoted tuple reversed, which is the client's.
fn quoted(tables: &mut Memory, key: FlowKey<4>) -> Option<Verdict<4>> {
    let mut work = Work::new(Packet::new(key, 0));
    quoted_elsewhere(tables, &mut work, Hook::NODE_IN).then_some(work.verdict)
}

#[test]
fn an_error_about_an_answer_goes_whole_to_the_node_that_gave_it() {
    let (mut first, mut second) = (node(0), node(1));
    let mut led = 0;
    for port in 4000..4300 {
        let sent = first.ask(from(port, TCP), SYN, Hook::NODE_IN);
        match quoted(&mut second, from(port, TCP)) {
            Some(verdict) => {
                assert!(is_whole(&verdict) && (!is_whole(&sent) || verdict.address == sent.address));
                led += 1;
            }
            // A pod of its own answers by flows that it knows.
            None => assert!(sent.address == PODS[1], "{sent:?}"),
        }
    }
    assert!(led > 100, "{led}");
    assert!(second.flows.is_empty() && second.half_open.is_empty(), "an error makes no flow");
    // Of what no service has answered, nothing is known.
    let other = FlowKey { dst_port: 81, ..from(4000, TCP) };
    assert!(quoted(&mut second, other).is_none());
    // Nor of a cluster IP, nor of a service whose answers come back here.
    for kind in [frontend_kind::CLUSTER_IP, frontend_kind::LOAD_BALANCER] {
        let mut tables = node(0);
        edit(&mut tables, |service| {
            service.kind = kind;
            service.flags = if kind == frontend_kind::CLUSTER_IP { service_flags::DSR } else { 0 };
        });
        assert!((4000..4100).all(|port| quoted(&mut tables, from(port, TCP)).is_none()));
    }
    // A pod inside is no client of another node's answers.
    let inside = FlowKey { src: [10, 0, 2, 99], ..from(4000, TCP) };
    assert!(quoted(&mut second, inside).is_none());
}

#[test]
fn an_error_about_an_outer_header_is_for_who_asked_a_service_with_direct_return() {
    let mut tables = node(0);
    let mut work = Work::new(Packet::new(from(4000, TCP), 0));
    assert!(is_about_tunnelled(&mut tables, &mut work));
    assert_eq!((work.verdict.action, work.verdict.outcome), (Action::Refuse, Outcome::IcmpTranslated));
    edit(&mut tables, |service| service.flags = 0);
    assert!(!is_about_tunnelled(&mut tables, &mut work), "another tunnel's");
}

#[test]
fn an_outer_header_is_for_a_service_with_direct_return_or_for_a_backend_that_is_here() {
    let whom = |tables: &mut Memory, key: FlowKey<4>, chosen: [u8; 4]| {
        let mut work = Work::new(Packet::new(key, SYN));
        work.chosen = chosen;
        inside(tables, &mut work)
    };
    let mut tables = node(1);
    let (here, away, other) = (PODS[1], PODS[0], FlowKey { dst_port: 81, ..from(4000, TCP) });
    assert_eq!(whom(&mut tables, from(4000, TCP), here), Inside::Direct);
    assert_eq!(whom(&mut tables, from(4000, TCP), away), Inside::Direct, "counted as not here");
    assert_eq!(whom(&mut tables, other, here), Inside::Foreign);
    // The mode of this node is another one.
    edit(&mut tables, |service| service.flags = 0);
    assert_eq!(whom(&mut tables, from(4000, TCP), here), Inside::Named);
    assert_eq!(whom(&mut tables, from(4000, TCP), away), Inside::Foreign);
    let sent = arrives(&mut tables, from(4000, TCP), SYN, here);
    assert_eq!((sent.action, sent.address, sent.masquerade), (Action::ToBackend, here, false));
    // No node sends what asks for a cluster IP whole.
    edit(&mut tables, |service| service.kind = frontend_kind::CLUSTER_IP);
    assert_eq!(whom(&mut tables, from(4000, TCP), here), Inside::Foreign);
}

/// Its packet would come home under its own address, which no stack takes.
#[test]
fn a_process_of_another_node_is_masqueraded_and_otherwise_a_client_outside() {
    let mut tables = node(0);
    tables.networks.push((CLIENT, 32, network_flags::PEER));
    let verdicts: Vec<_> = (4000..4100).map(|port| tables.ask(from(port, TCP), SYN, Hook::NODE_IN)).collect();
    let (here, away): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(|verdict| verdict.address == PODS[0]);
    assert!(here.len() > 10 && here.iter().all(|verdict| verdict.client == CLIENT));
    assert!(away.len() > 10 && away.iter().all(|verdict| verdict.masquerade && verdict.port == 8080));
    // A segment of no known flow was never encapsulated: the node refuses it.
    assert_eq!(tables.ask(from(5000, TCP), ACK, Hook::NODE_IN).action, Action::Pass);
    edit(&mut tables, |service| service.external_count = 0);
    assert_eq!(tables.ask(from(5001, TCP), SYN, Hook::NODE_IN).outcome, Outcome::RefusedNoEndpoint);
}
