//! A closed socket leaves nothing in the tables, however it was used, and with no agent alive.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_common::abi::SOCKET_PAIRS;
use lb_common::map;
use lb_tables::Pinned;
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods, serve};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, mapped};
use lb_tests::topology::{NetNs, NodeOptions};
use socket2::{Domain, SockAddr, Socket, Type};

/// Entries of both families.
fn entries(agent: &Agent) -> usize {
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    maps.of::<map::Sockets<4>>().read().unwrap().len() + maps.of::<map::Sockets<16>>().read().unwrap().len()
}

/// Connects and closes, with a RST: 10,000 ports in TIME-WAIT would be missed by others.
fn short_connection(to: SocketAddr) {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    socket.connect_timeout(&SockAddr::from(to), PATIENCE).unwrap_or_else(|error| panic!("{to}: {error}"));
}

#[test]
fn ten_thousand_short_sockets_leave_no_entry() {
    const ROUNDS: usize = 1_250;
    let fixture = Fixture::new("short", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let (tcp, udp) = (service.frontends(Protocol::Tcp), service.frontends(Protocol::Udp));
    for agent_lives in [true, false] {
        if !agent_lives {
            agent.kill();
        }
        fixture.node.netns().run(|| {
            for _ in 0..ROUNDS {
                // Eight sockets a round: 10,000 with the agent alive, 10,000 with it dead; half of them of each protocol.
                for to in [tcp[0], tcp[1], mapped(tcp[0]), tcp[0]] {
                    short_connection(to);
                }
                for to in [udp[0], udp[1], mapped(udp[0])] {
                    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None).unwrap();
                    socket.connect(&SockAddr::from(to)).unwrap();
                }
                let unconnected = Socket::new(Domain::for_address(udp[0]), Type::DGRAM, None).unwrap();
                unconnected.send_to(b"x", &SockAddr::from(udp[0])).unwrap();
            }
        });
        assert_eq!(entries(&agent), 0, "agent alive: {agent_lives}");
    }
}

#[test]
fn an_open_socket_keeps_its_entries_while_others_close() {
    let fixture = Fixture::new("openclosed", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let mut streams: Vec<_> = service
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|to| (to, Stream::connect(fixture.node.netns(), to).unwrap()))
        .collect();
    let sockets: Vec<_> = service
        .frontends(Protocol::Udp)
        .into_iter()
        .map(|to| (to, Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap()))
        .collect();
    for (to, socket) in &sockets {
        socket.ask_at(*to, "before").unwrap();
    }
    // A TCP socket has one entry, a UDP socket one for each direction.
    let kept = streams.len() + 2 * sockets.len();
    assert_eq!(entries(&agent), kept);
    for to in service.frontends(Protocol::Tcp) {
        drop(Stream::connect(fixture.node.netns(), to).unwrap());
    }
    assert_eq!(entries(&agent), kept);
    for (to, stream) in &mut streams {
        stream.ask("after").unwrap();
        assert_eq!(stream.peer().unwrap(), *to);
    }
    for (to, socket) in &sockets {
        socket.ask_at(*to, "after").unwrap();
    }
    drop((streams, sockets));
    assert_eq!(entries(&agent), 0);
}

#[test]
fn a_connect_that_fails_leaves_no_entry() {
    let fixture = Fixture::new("failed", Pods::Routed, 1, NodeOptions::default());
    // Its ports lead to one that nobody listens on.
    let mut service = fixture.web();
    for port in &mut service.ports {
        port.target = 9;
    }
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for to in service.frontends(Protocol::Tcp) {
        let error = Stream::connect(fixture.node.netns(), to).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(entries(&agent), 0);
}

#[test]
fn a_socket_may_ask_more_services_than_its_record_names() {
    const SERVICES: usize = SOCKET_PAIRS + 4;
    let fixture = Fixture::new("manyasked", Pods::Routed, 0, NodeOptions::default());
    let names = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11"];
    assert_eq!(names.len(), SERVICES);
    let backend = fixture.pod("all");
    let _servers = serve(&backend, "all");
    let endpoint = lb_tests::agent::Endpoint::ready(backend.addresses());
    let services: Vec<_> =
        (20..).zip(names).map(|(last, name)| Service::standard(name, last, vec![endpoint.clone()])).collect();
    let agent = fixture.agent(&Manifest::of(services.clone()), &[]);
    let asked: Vec<_> = services.iter().map(|service| service.frontends(Protocol::Udp)[0]).collect();
    let ask = |netns: &NetNs| {
        let socket = Datagrams::unconnected(netns, 0, asked[0]).unwrap();
        for _ in 0..3 {
            for to in &asked {
                // Every answer names it.
                socket.ask_at(*to, "who").unwrap();
            }
        }
    };
    ask(fixture.node.netns());
    let left = entries(&agent);
    // All share one backend, and with it one entry for the answers.
    assert!(left <= SERVICES - SOCKET_PAIRS, "{left} entries are left");
}
