//! The main job: a packet to a cluster IP reaches a live backend, both protocols, both families, from pods and from the host.

use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, reaches_all, refused_at_once};
use lb_tests::topology::{Checksums, Families, NodeOptions, set_checksums};

#[test]
fn pods_and_host_processes_reach_all_backends() {
    for families in Families::ALL {
        for pods in [Pods::Routed, Pods::Bridged] {
            let fixture = Fixture::new("reach", pods, 3, NodeOptions { families, ..NodeOptions::default() });
            let (service, empty) = (fixture.web(), fixture.empty());
            let agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &[]);
            reaches_all(fixture.client.netns(), &service, 3, true);
            refused_at_once(fixture.client.netns(), &empty);
            reaches_all(fixture.node.netns(), &service, 3, false);
            refused_at_once(fixture.node.netns(), &empty);
            if pods == Pods::Routed {
                an_unready_or_terminating_backend_takes_no_new_flows(&fixture, &agent);
            }
            if (families, pods) == (Families::Both, Pods::Routed) {
                agent.apply(&Manifest::of([service])).unwrap();
                mapped_addresses_are_served_as_ipv4(&fixture);
                unknown_traffic_passes_untouched(&fixture, &agent);
            }
        }
    }
}

#[test]
fn tcx_and_clsact_serve_alike() {
    let fixture = Fixture::new("attach", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--tc-attach", "tcx"]);
    for attach in ["tcx", "clsact"] {
        if attach != "tcx" {
            agent.restart_with(&fixture.node, &["--tc-attach", attach]).unwrap();
        }
        let status = agent.json(&["status"]).unwrap().to_string();
        assert!(status.contains(attach), "{status}");
        reaches_all(fixture.client.netns(), &service, 2, true);
    }
}

#[test]
fn host_processes_are_served_without_the_socket_hook() {
    for families in Families::ALL {
        let options = NodeOptions { rp_filter: 2, families, ..NodeOptions::default() };
        let fixture = Fixture::new("nosock", Pods::Routed, 2, options);
        let (service, empty) = (fixture.web(), fixture.empty());
        let _agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &["--socket-lb", "off"]);
        reaches_all(fixture.node.netns(), &service, 2, true);
        refused_at_once(fixture.node.netns(), &empty);
    }
}

#[test]
fn checksums_are_right_without_offload() {
    let options = NodeOptions { pod_checksums: Checksums::Complete, ..NodeOptions::default() };
    let fixture = Fixture::new("sums", Pods::Routed, 2, options);
    let service = fixture.web();
    let empty = Service::standard("empty", 11, vec![]);
    let _agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &[]);
    reaches_all(fixture.client.netns(), &service, 2, true);
    refused_at_once(fixture.client.netns(), &empty);
}

#[test]
fn answers_to_partial_checksums_are_right_on_a_link_that_completes_them() {
    let fixture = Fixture::new("mixed", Pods::Routed, 1, NodeOptions::default());
    // The pod leaves its checksums to others, the way back to it completes whatever is marked as left undone.
    set_checksums(fixture.node.namespace(), fixture.client.link(), Checksums::Complete).unwrap();
    let service = fixture.web();
    let empty = Service::standard("empty", 11, vec![]);
    let _agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &[]);
    reaches_all(fixture.client.netns(), &service, 1, true);
    refused_at_once(fixture.client.netns(), &empty);
}

fn mapped_addresses_are_served_as_ipv4(fixture: &Fixture) {
    let service = fixture.web();
    let mapped = |to: &SocketAddr| match to {
        SocketAddr::V4(to) => Some(SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port())),
        SocketAddr::V6(_) => None,
    };
    for to in service.frontends(Protocol::Tcp).iter().filter_map(mapped) {
        let mut stream = Stream::connect(fixture.node.netns(), to).unwrap();
        stream.ask("hello").unwrap();
        assert_eq!(stream.peer().unwrap(), to);
    }
    for to in service.frontends(Protocol::Udp).iter().filter_map(mapped) {
        Datagrams::connected(fixture.node.netns(), 0, to).unwrap().ask("hello").unwrap();
        Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap().ask_at(to, "hello").unwrap();
    }
}

fn unknown_traffic_passes_untouched(fixture: &Fixture, agent: &Agent) {
    for address in fixture.backends[0].addresses().both() {
        let to = SocketAddr::new(address, 8080);
        let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
        let answer = stream.ask("hello").unwrap();
        assert_eq!((answer.peer, answer.local), (stream.local().unwrap(), to));
    }
    // A port that nobody serves stays the host's own business: its answer, not ours.
    let to = SocketAddr::new(fixture.backends[0].addresses().v4.into(), 9);
    let error = Stream::connect_from(fixture.client.netns(), 0, to, Duration::from_secs(2)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let connections = agent.json(&["get", "connections", "-A"]).unwrap();
    let all = connections["items"].as_array().unwrap();
    let is_direct = |item: &serde_json::Value| item["frontendPort"] == 8080 || item["frontendPort"] == 9;
    assert!(!all.iter().any(is_direct), "each is of a service: {connections}");
}

fn an_unready_or_terminating_backend_takes_no_new_flows(fixture: &Fixture, agent: &Agent) {
    let [a, b, c] = [0, 1, 2].map(|index| fixture.backends[index].addresses());
    let changed = fixture.web_of(vec![Endpoint::ready(a), Endpoint::unready(b), Endpoint::terminating(c)]);
    agent.apply(&Manifest::of([changed.clone()])).unwrap();
    reaches_all(fixture.client.netns(), &changed, 1, true);
    reaches_all(fixture.node.netns(), &changed, 1, false);
    // No ready endpoint at all: those that still serve while they terminate take over (KEP-1669).
    let fallback = fixture.web_of(vec![Endpoint::unready(a), Endpoint::unready(b), Endpoint::terminating(c)]);
    agent.apply(&Manifest::of([fallback.clone()])).unwrap();
    reaches_all(fixture.client.netns(), &fallback, 1, true);
}
