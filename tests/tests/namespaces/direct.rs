//! Direct connections to a backend's own address work before, during and after service connections on the same ports.
//!
//! Both look the same to the backend. An entry left over from a service connection must not rewrite a direct one's replies.

use std::net::SocketAddr;

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, PATIENCE, Stream};
use lb_tests::topology::{Checksums, NodeOptions, set_checksums};

fn talks(stream: &mut Stream, believed: SocketAddr, text: &str) {
    let answer = stream.ask(text).unwrap_or_else(|error| panic!("{believed}: {error}"));
    assert_eq!(stream.peer().unwrap(), believed);
    assert_eq!(answer.server, "b0");
}

/// Frontend and backend address of each family.
fn pairs(fixture: &Fixture, protocol: Protocol, port: u16) -> Vec<(SocketAddr, SocketAddr)> {
    let backend = fixture.backends[0].addresses();
    fixture
        .web()
        .frontends(protocol)
        .into_iter()
        .map(|frontend| (frontend, SocketAddr::new(backend.like(frontend.ip()), port)))
        .collect()
}

#[test]
fn tcp_on_the_same_client_port() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("direct", pods, 1, NodeOptions::default());
        let _agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
        let from = fixture.client.netns();
        for (index, (service, direct)) in (0_u16..).zip(pairs(&fixture, Protocol::Tcp, 8080)) {
            let port = 20_000 + index * 100;
            let connect = |to| Stream::connect_from(from, port, to, PATIENCE).unwrap_or_else(|e| panic!("{to}: {e}"));

            // Before: a direct connection is open when the service connection comes.
            let mut first = connect(direct);
            talks(&mut first, direct, "direct first");
            let mut second = connect(service);
            talks(&mut second, service, "service second");
            talks(&mut first, direct, "direct still");
            talks(&mut second, service, "service still");
            first.reset().unwrap();
            talks(&mut second, service, "service alone");
            drop(second);

            // During: a service connection is open when the direct one comes.
            let port = port + 1;
            let connect = |to| Stream::connect_from(from, port, to, PATIENCE).unwrap_or_else(|e| panic!("{to}: {e}"));
            let mut first = connect(service);
            talks(&mut first, service, "service first");
            let mut second = connect(direct);
            talks(&mut second, direct, "direct second");
            talks(&mut first, service, "service still");
            talks(&mut second, direct, "direct still");
            first.reset().unwrap();
            talks(&mut second, direct, "direct alone");
            second.reset().unwrap();

            // After: in turn, many times, ended by RST and in order.
            let port = port + 1;
            for round in 0..40 {
                let to = if round % 2 == 0 { service } else { direct };
                let mut stream = Stream::connect_from(from, port, to, PATIENCE)
                    .unwrap_or_else(|error| panic!("round {round} to {to}: {error}"));
                talks(&mut stream, to, "in turn");
                stream.reset().unwrap();
            }
        }
    }
}

#[test]
fn tcp_on_the_same_port_of_a_client_outside() {
    for xdp in ["native", "off"] {
        let options = NodeOptions { pod_checksums: Checksums::Complete, ..NodeOptions::default() };
        let fixture = Fixture::new("directo", Pods::Routed, 1, options);
        let outside = fixture.topology.outside("out", &fixture.node).unwrap();
        set_checksums(outside.namespace(), "eth0", Checksums::Complete).unwrap();
        let _agent = fixture.agent(&Manifest::of([fixture.web()]), &["--xdp-mode", xdp]);
        for (index, (service, direct)) in (0_u16..).zip(pairs(&fixture, Protocol::Tcp, 8080)) {
            // Its direct requests pass no link of its own: only the remaining packets can be distinguished, and must be.
            for round in 0..20 {
                let to = if round % 2 == 0 { service } else { direct };
                let mut stream = Stream::connect_from(outside.netns(), 23_000 + index, to, PATIENCE)
                    .unwrap_or_else(|error| panic!("XDP {xdp}, round {round} to {to}: {error}"));
                talks(&mut stream, to, "in turn");
                stream.reset().unwrap();
            }
        }
    }
}

#[test]
fn udp_on_the_same_client_port() {
    let fixture = Fixture::new("directu", Pods::Routed, 1, NodeOptions::default());
    let _agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    for (index, (service, direct)) in (0_u16..).zip(pairs(&fixture, Protocol::Udp, 5353)) {
        let socket = Datagrams::unconnected(fixture.client.netns(), 21_000 + index, service).unwrap();
        for round in 0..20 {
            let to = if round % 3 == 0 { direct } else { service };
            // The last sender owns the replies: an answer must come from the address that was asked.
            let answer = socket.ask_at(to, "in turn").unwrap_or_else(|error| panic!("round {round} to {to}: {error}"));
            assert_eq!(answer.server, "b0");
        }
    }
}

#[test]
fn one_client_port_through_two_services() {
    let fixture = Fixture::new("twovips", Pods::Routed, 1, NodeOptions::default());
    let first = fixture.web();
    let second = lb_tests::agent::Service::standard("other", 12, fixture.endpoints());
    let _agent = fixture.agent(&Manifest::of([first.clone(), second.clone()]), &[]);
    for (one, two) in first.frontends(Protocol::Tcp).into_iter().zip(second.frontends(Protocol::Tcp)) {
        let connect = |to| Stream::connect_from(fixture.client.netns(), 22_000, to, PATIENCE).unwrap();
        let (mut a, mut b) = (connect(one), connect(two));
        for _ in 0..3 {
            talks(&mut a, one, "one");
            talks(&mut b, two, "two");
        }
    }
}
