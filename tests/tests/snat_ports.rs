//! A range of 64 source ports for masqueraded flows, used up: what finds none is dropped and counted, and served once one is free.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use lb_tests::agent::{Manifest, Protocol};
use lb_tests::peers::Stream;
use lb_tests::routed::{Backend, Cell, Client, Family, Kind, Network, Policy};

/// Ports of the range.
const PORTS: usize = 64;
/// Longest that one connection may take while there is a port: each SYN looks at half of the range.
const PATIENCE: Duration = Duration::from_mins(1);
/// A connection that must fail sends more than one SYN in this time.
const USED_UP: Duration = Duration::from_millis(1500);

/// Packets that found no port on node 1, as the metrics tell.
fn dropped(network: &Network) -> f64 {
    let metrics = network.agents[0].metrics().unwrap();
    let named = "ballast_outcomes_total{outcome=\"dropped_no_port\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(named)).unwrap().parse().unwrap()
}

#[test]
fn a_used_up_range_recovers() {
    let mut network = Network::new("ports").unwrap();
    let flags = ["--snat-ports=23000-23063", "--flow-timeouts=half-open=4s,closing=1s"];
    network.start(&Manifest::of(network.services()), &flags).unwrap();
    let (protocol, policy, client, backend) = (Protocol::Tcp, Policy::Cluster, Client::Outside, Backend::PodByRoute);
    let cell = Cell { kind: Kind::NodePort, protocol, family: Family::V4, policy, client, backend };
    let to = cell.frontend(network.nodes[0].addresses());
    // From a port of the local range, which is the node's as well: it cannot be kept.
    let connect = |limit| Stream::connect_from(network.client(client), 0, to, limit);
    let mut held: Vec<Stream> = (0..PORTS).map(|_| connect(PATIENCE).unwrap()).collect();
    for stream in &mut held {
        let seen = stream.ask("which").unwrap().peer;
        assert_eq!(seen.ip(), Family::V4.of(network.nodes[0].addresses()));
        assert!((23_000..23_064).contains(&seen.port()), "{seen}");
    }

    let before = dropped(&network);
    connect(USED_UP).expect_err("every port is in use");
    assert!(dropped(&network) > before, "dropped, but not counted");
    for stream in &mut held {
        stream.ask("still").unwrap();
    }

    for stream in held.drain(..PORTS / 4) {
        stream.reset().unwrap();
    }
    connect(PATIENCE).unwrap().ask("again").unwrap();
}
