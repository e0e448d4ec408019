//! What depends on the node's own addresses: node ports, and source ranges that hold the node.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{External, Manifest, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, fresh_port};
use lb_tests::topology::{NetNs, NodeOptions};

/// TCP and UDP of the service that is served, of one with source ranges, and of one without endpoints.
pub const PLAIN: [u16; 2] = [30_080, 30_053];
const GUARDED: [u16; 2] = [30_081, 30_054];
const EMPTY: [u16; 2] = [30_082, 30_055];

pub fn node_ports(ports: [u16; 2]) -> External {
    External { node_ports: ports.to_vec(), ..External::default() }
}

/// TCP and UDP reach a backend, which sees the client as it is.
pub fn serves(fixture: &Fixture, from: &NetNs, [http, dns]: [u16; 2]) {
    for address in fixture.node.ips() {
        let to = SocketAddr::new(address, http);
        let mut stream = Stream::connect_from(from, fresh_port(), to, PATIENCE)
            .unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        let answer = stream.ask("hello").unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        assert_eq!(stream.peer().unwrap(), to, "the client believes it talks to the node");
        assert_eq!(answer.peer, stream.local().unwrap(), "the backend sees the client's own address");
        let to = SocketAddr::new(address, dns);
        let socket = Datagrams::connected(from, fresh_port(), to).unwrap();
        socket.ask("hello").unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
    }
}

#[test]
fn services_are_reached_by_the_nodes_addresses_and_source_ranges_guard_no_node_port() {
    let fixture = Fixture::new("nodeports", Pods::Routed, 2, NodeOptions::default());
    let service = |name, last, external| Service::standard(name, last, fixture.endpoints()).with(external);
    let guarded = External {
        load_balancer_ips: vec!["198.51.100.10".parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".into()],
        ..node_ports(GUARDED)
    };
    // The ranges hold the node.
    let held = External {
        load_balancer_ips: vec!["198.51.100.11".parse().unwrap(), "2001:db8:5::11".parse().unwrap()],
        source_ranges: fixture
            .node
            .addresses()
            .both()
            .map(|ip| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }))
            .to_vec(),
        ..External::default()
    };
    let frontends = held.load_balancer_ips.clone();
    let empty = Service { endpoints: vec![], ..service("empty", 12, node_ports(EMPTY)) };
    let all =
        [service("web", 10, node_ports(PLAIN)), service("guarded", 11, guarded), empty, service("held", 13, held)];
    let _agent = fixture.agent(&Manifest::of(all), &[]);
    let places = [fixture.client.netns(), fixture.node.netns()];
    for from in places {
        serves(&fixture, from, PLAIN);
        serves(&fixture, from, GUARDED);
    }
    for to in fixture.node.addresses().both().map(|address| SocketAddr::new(address, EMPTY[0])) {
        for from in places {
            let error = Stream::connect(from, to).expect_err("nobody serves");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}: {to}", from.name());
        }
    }
    for to in frontends.into_iter().map(|ip| SocketAddr::new(ip, 80)) {
        let mut stream = Stream::connect(fixture.node.netns(), to).unwrap_or_else(|e| panic!("{to}: {e}"));
        stream.ask("hello").unwrap();
        let dropped = Stream::connect_from(fixture.client.netns(), 0, to, Duration::from_millis(700));
        dropped.expect_err("the pod is in no range");
    }
}
