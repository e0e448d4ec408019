//! Bulk data through cluster IPs: segments that offload left whole, segments of one MTU, both ways at once, on many connections.

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{Checksums, NetNs, NodeOptions};

/// Longer than any segment, socket buffer and window at the start of a connection.
const BULK: usize = 1_000_000;

/// Text that shows where bytes went missing or changed places.
fn text(length: usize) -> String {
    (0..length / 8).map(|number| format!("{number:07x}.")).collect::<Vec<_>>().concat()
}

fn transfers(what: &str, from: &NetNs, fixture: &Fixture) {
    let service = fixture.web();
    let bulk = text(BULK);
    for to in service.frontends(Protocol::Tcp) {
        let mut streams: Vec<Stream> = (0..6).map(|_| Stream::connect(from, to).unwrap()).collect();
        std::thread::scope(|scope| {
            for stream in &mut streams {
                scope.spawn(|| {
                    let answer = stream.ask(&bulk).unwrap_or_else(|error| panic!("{what}: tcp {to}: {error}"));
                    assert_eq!(answer.text.len(), bulk.len());
                });
            }
        });
    }
    for to in service.frontends(Protocol::Udp) {
        // One datagram and its answer each fit one packet.
        let socket = Datagrams::connected(from, 0, to).unwrap();
        for length in [0, 8, 600, 1200] {
            let answer = socket.ask(&text(length)).unwrap_or_else(|error| panic!("{what}: udp {to}: {error}"));
            assert_eq!(answer.text.len(), length);
        }
    }
}

#[test]
fn with_and_without_offload_from_pods_the_host_and_outside() {
    for pod_checksums in [Checksums::Partial, Checksums::Complete] {
        for pods in [Pods::Routed, Pods::Bridged] {
            let fixture = Fixture::new("bulk", pods, 2, NodeOptions { pod_checksums, ..NodeOptions::default() });
            let outside = fixture.topology.outside("out", &fixture.node).unwrap();
            let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
            let what = format!("{pods:?} {pod_checksums:?}");
            transfers(&format!("{what}, pod"), fixture.client.netns(), &fixture);
            transfers(&format!("{what}, host"), fixture.node.netns(), &fixture);
            transfers(&format!("{what}, outside"), outside.netns(), &fixture);
            drop(agent);
        }
    }
}

#[test]
fn through_the_links_that_catch_all() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("bulkall", pods, 2, NodeOptions::default());
        let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
        agent.kill();
        let orphan = fixture.pod("orphan");
        transfers(&format!("{pods:?}, pod without an agent"), orphan.netns(), &fixture);
    }
}
