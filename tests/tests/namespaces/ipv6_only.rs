//! A cluster without IPv4: clients of every kind reach services, drains end, and the kubelet's probes reach the agent. Needs root and BPF.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods, remove_ipv4};
use lb_tests::peers::{Datagrams, Stream, eventually, reaches_all, refused_at_once};
use lb_tests::topology::NodeOptions;

const NODE_PORTS: [u16; 2] = [30_080, 30_053];
/// The default of the one, and what a node without 127.0.0.1 needs of the other.
const BINDS: [&str; 2] = ["--health-bind=[::]:10256", "--metrics-bind=[::1]:10249"];

fn fixture(subject: &str) -> (Fixture, Service) {
    let fixture = Fixture::without_ipv4(subject, Pods::Routed, 2, NodeOptions::default());
    let external = External { node_ports: NODE_PORTS.into(), ..External::default() };
    let service = fixture.web().with(external).without_ipv4();
    (fixture, service)
}

/// From pods, processes of the node and an external client, TCP and UDP, by the first agent and the next.
#[test]
fn a_cluster_without_ipv4_is_served_and_probed() {
    let (fixture, service) = fixture("ipv6-only");
    let outside = fixture.topology.outside("client", &fixture.node).unwrap();
    remove_ipv4(outside.namespace());
    let empty = Service::standard("empty", 11, vec![]).without_ipv4();
    let mut agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &BINDS);
    let own: IpAddr = fixture.node.addresses().v6.into();
    let mut held = Stream::connect(fixture.client.place(), service.frontends(Protocol::Tcp)[0]).unwrap();
    for start in 0..2 {
        if start > 0 {
            agent.kill();
            held.ask("while no agent runs").unwrap();
            agent.restart().unwrap();
        }
        held.ask("with an agent").unwrap();
        for (from, client_seen) in [(fixture.client.place(), true), (fixture.node.place(), false)] {
            reaches_all(from, &service, 2, client_seen);
            refused_at_once(from, &empty);
        }
        let [http, dns] = NODE_PORTS.map(|port| SocketAddr::new(own, port));
        for from in [outside.place(), fixture.client.place(), fixture.node.place()] {
            Stream::connect(from, http).unwrap().ask("a node port").unwrap();
            Datagrams::connected(from, 0, dns).unwrap().ask("a node port").unwrap();
        }
        for path in ["/healthz", "/livez", "/readyz"] {
            eventually(path, SOON, || (agent.health(path).ok()?.0 == 200).then_some(()));
        }
        // As the kubelet probes, from the node.
        assert_eq!(agent.get_at(SocketAddr::new(own, 10_256), "/livez").unwrap().0, 200);
        assert!(agent.metrics().unwrap().contains("ballast_"));
    }
}

/// A dead backend is avoided; one that leaves keeps its connections until the deadline, and not longer.
#[test]
fn backends_that_die_and_drains_that_end_are_as_in_other_clusters() {
    let (mut fixture, service) = fixture("ipv6-ends");
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[&BINDS[..], &["--drain-period=2s"]].concat());
    let to = service.frontends(Protocol::Tcp)[0];
    let mut held = eventually("a connection to b0", SOON, || {
        let mut stream = Stream::connect(fixture.client.place(), to).ok()?;
        (stream.ask("who").ok()?.server == "b0").then_some(stream)
    });
    // Nobody answers for b1 any more, not even with a refusal.
    fixture.servers.truncate(1);
    fixture.backends[1].namespace().ip("link set eth0 down").unwrap();
    for _ in 0..8 {
        let mut stream = Stream::connect(fixture.client.place(), to).unwrap();
        assert_eq!(stream.ask("who lives").unwrap().server, "b0");
    }
    let left: Vec<Endpoint> = fixture.endpoints().split_off(1);
    agent.apply(&Manifest::of([Service { endpoints: left, ..service.clone() }])).unwrap();
    held.ask("within the drain period").unwrap();
    let error = eventually("the connection is told", SOON, || held.ask("still there").err());
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    let ends = |agent: &Agent| agent.json(&["status"]).unwrap()["agent"]["tables"]["drains"]["ends"].clone();
    eventually("the drains are over", SOON, || {
        let ends = ends(&agent);
        let count = |end: &str| ends[end].as_u64().unwrap_or_default();
        // Both ports of b0.
        (count("deadline") >= 1 && count("deadline") + count("empty") == 2).then_some(())
    });
}
