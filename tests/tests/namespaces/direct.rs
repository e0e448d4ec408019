//! Direct connections of an external client work after service connections on the same port: both look the same to the backend. An entry left over
//! from a service connection must not rewrite a direct one's replies. `collisions` has the same for pods and processes.

use std::net::SocketAddr;

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{PATIENCE, Stream};
use lb_tests::topology::{Checksums, NodeOptions, set_checksums};

fn talks(stream: &mut Stream, believed: SocketAddr, text: &str) {
    let answer = stream.ask(text).unwrap_or_else(|error| panic!("{believed}: {error}"));
    assert_eq!(stream.peer().unwrap(), believed);
    assert_eq!(answer.server, "b0");
}

/// Frontend and backend address of each family.
fn pairs(fixture: &Fixture) -> Vec<(SocketAddr, SocketAddr)> {
    let backend = fixture.backends[0].addresses();
    fixture
        .web()
        .frontends(Protocol::Tcp)
        .into_iter()
        .map(|frontend| (frontend, SocketAddr::new(backend.like(frontend.ip()), 8080)))
        .collect()
}

#[test]
fn tcp_on_the_same_port_of_a_client_outside() {
    let options = NodeOptions { pod_checksums: Checksums::Complete, ..NodeOptions::default() };
    let fixture = Fixture::new("directo", Pods::Routed, 1, options);
    let outside = fixture.topology.outside("out", &fixture.node).unwrap();
    set_checksums(outside.namespace(), "eth0", Checksums::Complete).unwrap();
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &["--xdp-mode", "native"]);
    for xdp in ["native", "off"] {
        if xdp == "off" {
            agent.restart_with(&fixture.node, &["--xdp-mode", xdp]).unwrap();
        }
        for (index, (service, direct)) in (0_u16..).zip(pairs(&fixture)) {
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
