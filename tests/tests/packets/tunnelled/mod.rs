//! Direct server return, packet by packet through the loaded programs: what leaves in an outer header, and what is taken out of one.

mod scenario;

use std::net::SocketAddr;

use self::scenario::{ISN, NODE_PORT, PORT, Scenario, TARGET, TC, Who, XDP, ip};
use etherparse::Ipv4Header;
use lb_common::abi::backend_state;
use lb_tests::oracle::{ACK, Frame, Protocol, RST, SYN};
use lb_tests::test_run::{Hook, Ran};

const HOOKS: [Hook; 2] = [Hook::NodeIn, Hook::Xdp];

/// The backends that the slots name in turn, and what is asked then.
type Case = (&'static [Who], fn(&mut Scenario));

const CASES: [Case; 15] = [
    (&[Who::Away], a_connection_goes_whole_to_its_backends_node),
    (&[Who::AwayByTc], what_xdp_cannot_send_tc_does_and_its_flow_begins_once),
    (&[Who::Away, Who::Here, Who::Away], a_segment_of_another_nodes_flow_goes_where_that_one_sent_it_and_is_not_kept),
    (&[Who::Away, Who::Here], what_this_node_saw_of_a_backend_does_not_matter),
    (&[Who::Here], a_backend_of_this_node_is_served_here),
    (&[Who::Away], the_last_hop_is_told_to_the_client),
    (&[Who::Away], a_process_of_another_node_is_masqueraded),
    (&[Who::Here, Who::Away], what_another_node_sends_is_taken_out_and_answered_from_here),
    (&[Who::Away], the_next_packet_is_nobody_elses_choice),
    (&[Who::Here], who_is_no_node_opens_nothing),
    (&[Who::Here, Who::Away], a_backend_that_is_not_here_takes_nothing),
    (&[Who::Here], a_draining_backend_takes_what_another_node_sends_until_its_deadline),
    (&[Who::Here], others_tunnels_are_left_alone),
    (&[Who::Here, Who::Away], what_another_node_sends_of_a_service_that_does_not_go_whole_from_here_is_taken_out),
    (&[Who::Here], a_client_that_cannot_be_out_there_is_dropped),
];

/// One test: to load the programs takes longer than all of it.
#[test]
fn packets_become_what_they_must() {
    Scenario::with("tunnelled", |scenario| {
        for (v6, (backends, ask)) in [false, true].into_iter().flat_map(|v6| CASES.map(|case| (v6, case))) {
            scenario.v6 = v6;
            scenario.reset(backends);
            ask(scenario);
        }
    });
}

/// The packet becomes this, and nothing else is counted.
#[track_caller]
fn becomes(scenario: &mut Scenario, hook: Hook, bytes: &[u8], verdict: i32, out: &[u8], counted: &[(&str, u64)]) {
    let (ran, counts) = scenario.run(hook, bytes);
    let what = if scenario.v6 { "IPv6" } else { "IPv4" };
    let counts: Vec<(&str, u64)> = counts.into_iter().collect();
    assert_eq!(counts, counted, "{what} {hook:?}: {ran:02x?}");
    assert_eq!(ran, Ran { verdict, bytes: out.to_vec() }, "{what} {hook:?}");
}

/// The packet is dropped, and counted so.
#[track_caller]
fn is_dropped(scenario: &mut Scenario, hook: Hook, bytes: &[u8], outcome: &str) {
    let (ran, counts) = scenario.run(hook, bytes);
    let counts: Vec<(&str, u64)> = counts.into_iter().collect();
    assert_eq!(counts, [(outcome, 1)], "{hook:?}, IPv6: {}", scenario.v6);
    assert_eq!(ran.verdict, if hook == Hook::Xdp { XDP[1] } else { TC[1] });
}

/// Up the stack.
fn next(hook: Hook) -> i32 {
    if hook == Hook::Xdp { XDP[0] } else { TC[0] }
}

/// An answer to its sender goes by the routing table: the frame came from another node.
fn routed(answer: &[u8]) -> Vec<u8> {
    let (link, packet) = answer.split_at(14);
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        let (mut header, body) = Ipv4Header::from_slice(&packet).unwrap();
        header.time_to_live -= 1;
        header.header_checksum = header.calc_header_checksum();
        packet = [&*header.to_bytes(), body].concat();
    } else {
        packet[7] -= 1;
    }
    [&link[6..12], &link[..6], &link[12..], &packet].concat()
}

/// A source port of its own for each question.
fn port(hook: Hook) -> u16 {
    4_000 + 100 * u16::from(hook == Hook::Xdp)
}

fn a_connection_goes_whole_to_its_backends_node(scenario: &mut Scenario) {
    for hook in HOOKS {
        scenario.reset(&[Who::Away]);
        for (flags, outcome) in [(SYN, "tunnelled"), (SYN, "forwarded"), (ACK, "forwarded"), (ACK, "forwarded")] {
            let asked = scenario.asks(Protocol::Tcp, port(hook), flags);
            let (verdict, out) = scenario.sent(hook, &asked, Who::Away);
            becomes(scenario, hook, &asked.bytes(), verdict, &out, &[(outcome, 1)]);
            assert_eq!(scenario.entries().0, 0, "no answer passes here");
        }
        let datagram = scenario.asks(Protocol::Udp, port(hook), 0);
        let (verdict, out) = scenario.sent(hook, &datagram, Who::Away);
        becomes(scenario, hook, &datagram.bytes(), verdict, &out, &[("tunnelled", 1)]);
        becomes(scenario, hook, &datagram.bytes(), verdict, &out, &[("forwarded", 1)]);
    }
}

fn what_xdp_cannot_send_tc_does_and_its_flow_begins_once(scenario: &mut Scenario) {
    let asked = scenario.asks(Protocol::Tcp, 4_000, SYN);
    becomes(scenario, Hook::Xdp, &asked.bytes(), XDP[0], &asked.bytes(), &[("handed_to_tc", 1), ("tunnelled", 1)]);
    let (verdict, out) = scenario.sent(Hook::NodeIn, &asked, Who::AwayByTc);
    becomes(scenario, Hook::NodeIn, &asked.bytes(), verdict, &out, &[("forwarded", 1)]);
}

fn a_segment_of_another_nodes_flow_goes_where_that_one_sent_it_and_is_not_kept(scenario: &mut Scenario) {
    let backends = [Who::Away, Who::Here, Who::Away];
    let mut followed = 0;
    for port in 4_000..4_060 {
        let asked = scenario.asks(Protocol::Tcp, port, SYN);
        let (_, whole) = scenario.sent(Hook::NodeIn, &asked, Who::Away);
        let is_away = scenario.run(Hook::NodeIn, &asked.bytes()).0.bytes == whole;
        // Another node, which has seen nothing of it but that a backend does not answer here.
        scenario.reset(&backends);
        scenario.ejected(0);
        for (hook, flags) in [(Hook::NodeIn, ACK), (Hook::Xdp, ACK), (Hook::NodeIn, RST | ACK)] {
            let segment = scenario.asks(Protocol::Tcp, port, flags);
            let (verdict, out) = scenario.sent(hook, &segment, Who::Away);
            if is_away {
                becomes(scenario, hook, &segment.bytes(), verdict, &out, &[("tunnelled", 1)]);
                followed += 1;
            } else {
                // A backend of this node would know it.
                assert_ne!(scenario.run(hook, &segment.bytes()).0.bytes, out);
            }
            assert_eq!(scenario.entries(), (0, 0));
        }
    }
    assert!((60..=170).contains(&followed), "{followed} of 180 segments");
}

fn what_this_node_saw_of_a_backend_does_not_matter(scenario: &mut Scenario) {
    let backends = [Who::Away, Who::Here];
    for port in 4_000..4_030 {
        let asked = scenario.asks(Protocol::Tcp, port, SYN);
        let before = scenario.run(Hook::NodeIn, &asked.bytes()).0;
        scenario.reset(&backends);
        scenario.ejected(0);
        assert_eq!(scenario.run(Hook::NodeIn, &asked.bytes()).0, before);
        scenario.reset(&backends);
    }
}

fn a_backend_of_this_node_is_served_here(scenario: &mut Scenario) {
    for hook in HOOKS {
        let asked = scenario.asks(Protocol::Tcp, port(hook), SYN);
        let out = Frame { dst: SocketAddr::new(ip(scenario.v6, Who::Here), TARGET), ..asked.clone() };
        becomes(scenario, hook, &asked.bytes(), next(hook), &out.bytes(), &[("selected", 1)]);
    }
}

fn the_last_hop_is_told_to_the_client(scenario: &mut Scenario) {
    let asked = Frame { hops: 1, ..scenario.asks(Protocol::Tcp, 4_000, SYN) };
    let counts = [("handed_to_tc", 1), ("tunnelled", 1)];
    becomes(scenario, Hook::Xdp, &asked.bytes(), XDP[0], &asked.bytes(), &counts);
    becomes(
        scenario,
        Hook::NodeIn,
        &asked.bytes(),
        TC[2],
        &asked.expiry(),
        &[("dropped_hop_limit", 1), ("forwarded", 1)],
    );
}

/// Its packet might come home in an outer header, under its own address.
fn a_process_of_another_node_is_masqueraded(scenario: &mut Scenario) {
    for hook in HOOKS {
        for (protocol, flags) in [(Protocol::Tcp, SYN), (Protocol::Udp, 0)] {
            scenario.reset(&[Who::Away]);
            let mut asked = scenario.asks(protocol, port(hook), flags);
            asked.src.set_ip(ip(scenario.v6, Who::Peer));
            let (ran, counts) = scenario.run(hook, &asked.bytes());
            assert_eq!(counts.get("masqueraded"), Some(&1), "{hook:?}: {counts:?}");
            assert_eq!(ran.bytes.len(), asked.bytes().len(), "no outer header");
        }
    }
}

fn what_another_node_sends_is_taken_out_and_answered_from_here(scenario: &mut Scenario) {
    let here = SocketAddr::new(ip(scenario.v6, Who::Here), TARGET);
    for hook in HOOKS {
        for (flags, outcome) in [(SYN, "selected"), (SYN, "forwarded"), (ACK, "forwarded"), (ACK, "forwarded")] {
            let asked = scenario.asks(Protocol::Tcp, port(hook), flags);
            let arrived = scenario.wrapped(&asked, Who::Peer, Who::Here, 60);
            let out = Frame { dst: here, ..asked.clone() };
            becomes(scenario, hook, &arrived, next(hook), &out.bytes(), &[(outcome, 1)]);
            if flags == SYN {
                let answer = Frame {
                    src: here,
                    dst: asked.src,
                    tcp_flags: SYN | ACK,
                    sequence: 6,
                    acknowledgement: ISN + 1,
                    ..asked.clone()
                };
                let back = Frame { src: asked.dst, ..answer.clone() };
                becomes(scenario, Hook::NodeOut, &answer.bytes(), TC[0], &back.bytes(), &[("replied", 1)]);
            }
        }
        let datagram = scenario.asks(Protocol::Udp, port(hook), 0);
        let arrived = scenario.wrapped(&datagram, Who::Peer, Who::Here, 60);
        let out = Frame { dst: here, ..datagram };
        becomes(scenario, hook, &arrived, next(hook), &out.bytes(), &[("selected", 1)]);
        // A node port, asked for at the other node's address.
        let asked = scenario.asks(Protocol::Tcp, port(hook) + 1, SYN);
        let asked = Frame { dst: SocketAddr::new(ip(scenario.v6, Who::Peer), NODE_PORT), ..asked };
        let arrived = scenario.wrapped(&asked, Who::Peer, Who::Here, 60);
        let out = Frame { dst: here, ..asked };
        becomes(scenario, hook, &arrived, next(hook), &out.bytes(), &[("selected", 1)]);
    }
}

/// The backend that an outer header named is forgotten with it.
fn the_next_packet_is_nobody_elses_choice(scenario: &mut Scenario) {
    for hook in HOOKS {
        let arrived = scenario.wrapped(&scenario.asks(Protocol::Tcp, port(hook), SYN), Who::Peer, Who::Here, 60);
        is_dropped(scenario, hook, &arrived, "dropped_not_here");
        let asked = scenario.asks(Protocol::Tcp, port(hook) + 1, SYN);
        let (verdict, out) = scenario.sent(hook, &asked, Who::Away);
        becomes(scenario, hook, &asked.bytes(), verdict, &out, &[("tunnelled", 1)]);
    }
}

fn who_is_no_node_opens_nothing(scenario: &mut Scenario) {
    for from in [Who::NoPeer, Who::Client, Who::Own, Who::Vip] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let asked = scenario.asks(protocol, 4_000, SYN);
            let arrived = scenario.wrapped(&asked, from, Who::Here, 60);
            becomes(scenario, Hook::Xdp, &arrived, XDP[0], &arrived, &[]);
            is_dropped(scenario, Hook::NodeIn, &arrived, "dropped_no_peer");
        }
    }
    assert_eq!(scenario.entries(), (0, 0));
}

fn a_backend_that_is_not_here_takes_nothing(scenario: &mut Scenario) {
    for hook in HOOKS {
        for (protocol, to) in [
            (Protocol::Tcp, Who::Away),
            (Protocol::Udp, Who::Away),
            (Protocol::Tcp, Who::Own),
            (Protocol::Tcp, Who::NoPeer),
        ] {
            let arrived = scenario.wrapped(&scenario.asks(protocol, port(hook), SYN), Who::Peer, to, 60);
            is_dropped(scenario, hook, &arrived, "dropped_not_here");
        }
        // A segment that begins nothing belongs to no connection here: its sender gets a RST, by tc.
        let segment = scenario.asks(Protocol::Tcp, port(hook), ACK);
        let arrived = scenario.wrapped(&segment, Who::Peer, Who::Away, 60);
        let (verdict, out, outcome) = match hook {
            Hook::Xdp => (XDP[0], arrived.clone(), "handed_to_tc"),
            _ => (TC[2], routed(&segment.refusal().unwrap()), "refused_no_flow"),
        };
        becomes(scenario, hook, &arrived, verdict, &out, &[(outcome, 1)]);
    }
    assert_eq!(scenario.entries(), (0, 0));
}

/// Nodes get a change at different moments: until its deadline a backend that drains takes what another node sends it.
fn a_draining_backend_takes_what_another_node_sends_until_its_deadline(scenario: &mut Scenario) {
    let here = SocketAddr::new(ip(scenario.v6, Who::Here), TARGET);
    for hook in HOOKS {
        for state in [backend_state::TERMINATING, backend_state::DRAINING, backend_state::MAINTENANCE] {
            scenario.reset(&[Who::Here]);
            scenario.change(0, (state, u32::MAX / 2, 1));
            let asked = scenario.asks(Protocol::Tcp, port(hook), SYN);
            let arrived = scenario.wrapped(&asked, Who::Peer, Who::Here, 60);
            let out = Frame { dst: here, ..asked };
            becomes(scenario, hook, &arrived, next(hook), &out.bytes(), &[("selected", 1)]);
            // Asked by the client itself, this node sends no new one there.
        }
        let over: [(u8, u32, u32); 3] =
            [(backend_state::DRAINING, 1, 1), (backend_state::GONE, 0, 1), (backend_state::ACTIVE, 0, 2)];
        for life in over {
            scenario.reset(&[Who::Here]);
            scenario.change(0, life);
            let arrived = scenario.wrapped(&scenario.asks(Protocol::Tcp, port(hook), SYN), Who::Peer, Who::Here, 60);
            is_dropped(scenario, hook, &arrived, "dropped_not_here");
            assert_eq!(scenario.entries(), (0, 0));
        }
    }
}

fn others_tunnels_are_left_alone(scenario: &mut Scenario) {
    let asked = scenario.asks(Protocol::Tcp, 4_000, SYN);
    // Another port, a service whose packets do not go whole, and no address of services.
    let vip = asked.dst.ip();
    for (dst, from) in [
        (SocketAddr::new(vip, PORT + 7), Who::Peer),
        (SocketAddr::new(vip, PORT + 1), Who::NoPeer),
        (SocketAddr::new(ip(scenario.v6, Who::NoPeer), PORT), Who::Peer),
    ] {
        let arrived = scenario.wrapped(&Frame { dst, ..asked.clone() }, from, Who::Here, 60);
        becomes(scenario, Hook::Xdp, &arrived, XDP[0], &arrived, &[]);
        becomes(scenario, Hook::NodeIn, &arrived, TC[0], &arrived, &[("passed", 1)]);
    }
}

/// Nodes may be set otherwise: a packet that one has encapsulated for a backend of this node is decapsulated for that backend alone.
fn what_another_node_sends_of_a_service_that_does_not_go_whole_from_here_is_taken_out(scenario: &mut Scenario) {
    let here = SocketAddr::new(ip(scenario.v6, Who::Here), TARGET);
    for hook in HOOKS {
        for (flags, outcome) in [(SYN, "selected"), (SYN, "forwarded")] {
            let mut asked = scenario.asks(Protocol::Tcp, port(hook), flags);
            asked.dst.set_port(PORT + 1);
            let arrived = scenario.wrapped(&asked, Who::Peer, Who::Here, 60);
            let out = Frame { dst: here, ..asked.clone() };
            becomes(scenario, hook, &arrived, next(hook), &out.bytes(), &[(outcome, 1)]);
        }
        // The backend of another node, which is none here.
        let mut asked = scenario.asks(Protocol::Tcp, port(hook) + 1, SYN);
        asked.dst.set_port(PORT + 1);
        let arrived = scenario.wrapped(&asked, Who::Peer, Who::Away, 60);
        let counted: &[(&str, u64)] = if hook == Hook::Xdp { &[] } else { &[("passed", 1)] };
        becomes(scenario, hook, &arrived, next(hook), &arrived, counted);
    }
}

/// A node is believed where a client is, no more: who cannot be out there is not, in an outer header either.
fn a_client_that_cannot_be_out_there_is_dropped(scenario: &mut Scenario) {
    for hook in HOOKS {
        let asked = scenario.asks(Protocol::Tcp, port(hook), SYN);
        let forged = Frame { src: SocketAddr::new(ip(scenario.v6, Who::Own), 4_000), ..asked };
        let arrived = scenario.wrapped(&forged, Who::Peer, Who::Here, 60);
        is_dropped(scenario, hook, &arrived, "dropped_martian");
    }
}
