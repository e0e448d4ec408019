//! What depends on the node's own addresses: node ports, and source ranges that hold the node.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{External, Manifest};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{NetNs, NodeOptions};

const HTTP: u16 = 30_080;
const DNS: u16 = 30_053;

fn node_ports() -> External {
    External { node_ports: vec![HTTP, DNS], ..External::default() }
}

/// TCP and UDP reach a backend, which sees the client as it is.
fn serves(fixture: &Fixture, from: &NetNs) {
    for address in fixture.node.addresses().both() {
        let to = SocketAddr::new(address, HTTP);
        let mut stream = Stream::connect(from, to).unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        let answer = stream.ask("hello").unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        assert_eq!(stream.peer().unwrap(), to, "the client believes it talks to the node");
        assert_eq!(answer.peer, stream.local().unwrap(), "the backend sees the client's own address");
        let to = SocketAddr::new(address, DNS);
        let socket = Datagrams::connected(from, 0, to).unwrap();
        socket.ask("hello").unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
    }
}

#[test]
fn pods_and_host_processes_reach_a_service_by_the_nodes_addresses() {
    let fixture = Fixture::new("nodeports", Pods::Routed, 2, NodeOptions::default());
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(node_ports())]), &[]);
    for from in [fixture.client.netns(), fixture.node.netns()] {
        serves(&fixture, from);
    }
}

#[test]
fn a_node_port_without_endpoints_is_refused() {
    let fixture = Fixture::new("nodeportsempty", Pods::Routed, 0, NodeOptions::default());
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(node_ports())]), &[]);
    for to in fixture.node.addresses().both().map(|address| SocketAddr::new(address, HTTP)) {
        for from in [fixture.client.netns(), fixture.node.netns()] {
            let error = Stream::connect(from, to).expect_err("nobody serves");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}: {to}", from.name());
        }
    }
}

#[test]
fn source_ranges_do_not_guard_node_ports() {
    let fixture = Fixture::new("nodeportsranges", Pods::Routed, 1, NodeOptions::default());
    let external = External {
        load_balancer_ips: vec!["198.51.100.10".parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".into()],
        ..node_ports()
    };
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(external)]), &[]);
    for from in [fixture.client.netns(), fixture.node.netns()] {
        serves(&fixture, from);
    }
}

#[test]
fn a_host_process_passes_source_ranges_that_hold_the_node() {
    let fixture = Fixture::new("noderanges", Pods::Routed, 1, NodeOptions::default());
    let addresses = fixture.node.addresses().both();
    let external = External {
        load_balancer_ips: vec!["198.51.100.10".parse().unwrap(), "2001:db8:5::10".parse().unwrap()],
        source_ranges: addresses.map(|ip| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })).to_vec(),
        ..External::default()
    };
    let frontends = external.load_balancer_ips.clone();
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(external)]), &[]);
    for to in frontends.into_iter().map(|ip| SocketAddr::new(ip, 80)) {
        let mut stream = Stream::connect(fixture.node.netns(), to).unwrap_or_else(|e| panic!("{to}: {e}"));
        stream.ask("hello").unwrap();
        let dropped = Stream::connect_from(fixture.client.netns(), 0, to, Duration::from_millis(700));
        dropped.expect_err("the pod is in no range");
    }
}
