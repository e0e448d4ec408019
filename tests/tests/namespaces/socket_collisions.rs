//! Host sockets that lead to one backend at the same time, through two services and directly: each sees its own peer.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::Protocol;
use lb_tests::fixture::{Pods, SharedBackend};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, mapped};
use lb_tests::topology::NetNs;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::collisions::connect_when_free;

/// The three ways, in each family, and for IPv4 also through sockets of IPv6.
fn ways(scenario: &SharedBackend, protocol: Protocol) -> Vec<[SocketAddr; 3]> {
    let mut ways = scenario.ways(protocol);
    ways.push(ways[0].map(mapped));
    ways
}

/// Takes a port that nobody holds, and gives it back.
fn free_port(host: &NetNs, like: SocketAddr) -> u16 {
    Datagrams::unconnected(host, 0, like).unwrap().local().unwrap().port()
}

#[test]
fn many_connections_to_one_backend_are_each_told_their_own_peer() {
    let scenario = SharedBackend::new("sockpeers", Pods::Routed);
    let mut open = Vec::new();
    for to in ways(&scenario, Protocol::Tcp).into_iter().flatten() {
        open.extend((0..4).map(|_| (Stream::connect(scenario.fixture.node.netns(), to).unwrap(), to)));
    }
    for _ in 0..2 {
        for (stream, to) in &mut open {
            stream.ask("whoever").unwrap();
            assert_eq!(stream.peer().unwrap(), *to);
        }
        // Half of them close; nobody else's name goes with them.
        let mut odd = false;
        open.retain(|_| {
            odd = !odd;
            odd
        });
    }
}

#[test]
fn a_second_connection_of_the_same_port_is_refused_and_harms_nobody() {
    let scenario = SharedBackend::new("sockport", Pods::Routed);
    for ways in ways(&scenario, Protocol::Tcp) {
        for (turn, one) in ways.into_iter().enumerate() {
            // The last owner of the port may be in TIME-WAIT with the backend.
            let (mut first, port) = (0..100)
                .find_map(|_| {
                    let port = free_port(scenario.fixture.node.netns(), one);
                    Some((Stream::connect_from(scenario.fixture.node.netns(), port, one, PATIENCE).ok()?, port))
                })
                .expect("a free port");
            for two in [ways[(turn + 1) % 3], ways[(turn + 2) % 3]] {
                // Only the kernel could tell the two apart, and it knows the backend's address: it cannot.
                let error = Stream::connect_from(scenario.fixture.node.netns(), port, two, PATIENCE)
                    .expect_err("the tuple is taken");
                assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{one}, then {two}: {error}");
                first.ask("still").unwrap();
                assert_eq!(first.peer().unwrap(), one);
            }
            first.reset().unwrap();
            let two = ways[(turn + 1) % 3];
            let mut second = connect_when_free(scenario.fixture.node.netns(), port, two, "once it is free");
            second.ask("now").unwrap();
            assert_eq!(second.peer().unwrap(), two, "{one} was there before");
            second.reset().unwrap();
        }
    }
}

#[test]
fn a_udp_socket_that_is_connected_anew_is_told_its_last_peer() {
    let scenario = SharedBackend::new("sockanew", Pods::Routed);
    for ways in ways(&scenario, Protocol::Udp) {
        let socket =
            scenario.fixture.node.netns().run(|| Socket::new(Domain::for_address(ways[0]), Type::DGRAM, None).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for turn in 0..9 {
            // Through one service, directly, through the other one, and so on.
            let to = ways[[0, 2, 1][turn % 3]];
            socket.connect(&SockAddr::from(to)).unwrap();
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(to), "turn {turn}");
            socket.send(b"hello").unwrap();
            let from = socket.recv_from(&mut [std::mem::MaybeUninit::uninit(); 512]).unwrap().1.as_socket();
            assert_eq!(from, Some(to), "turn {turn}");
        }
    }
}

#[test]
fn udp_sockets_of_two_services_with_one_backend_hear_only_their_own_answers() {
    let scenario = SharedBackend::new("sockudp", Pods::Routed);
    for ways in ways(&scenario, Protocol::Udp) {
        let connected: Vec<_> =
            ways.map(|to| (Datagrams::connected(scenario.fixture.node.netns(), 0, to).unwrap(), to)).into();
        let unconnected: Vec<_> =
            ways.map(|to| (Datagrams::unconnected(scenario.fixture.node.netns(), 0, to).unwrap(), to)).into();
        for round in 0..3 {
            for (index, (socket, to)) in connected.iter().chain(&unconnected).enumerate() {
                let text = format!("{round} {index}");
                assert_eq!(socket.ask_at(*to, &text).unwrap().text, text);
            }
        }
        for (socket, _) in connected.iter().chain(&unconnected) {
            socket.set_patience(Duration::from_millis(10)).unwrap();
            socket.receive().expect_err("nobody else's answers came here");
        }
    }
}
