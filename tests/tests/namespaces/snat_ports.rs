//! Few source ports for masqueraded flows, used up: the next address stands in, where there is one; what finds no port at any is dropped
//! and counted, and served once one is free.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol};
use lb_tests::peers::{Stream, eventually};
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Family, Network, Policy};

/// Longest that one connection may take while there is a port: an attempt need not find the last one.
const PATIENCE: Duration = Duration::from_mins(1);
/// A connection that must fail sends more than one SYN in this time.
const USED_UP: Duration = Duration::from_millis(1500);
/// As [`Network::start`] says.
const CLUSTER: &str = "--cluster-cidr=10.244.0.0/16,fd00:244::/32";
const TIMEOUTS: &str = "--flow-timeouts=half-open=4s,closing=1s";

/// Packets that found no port on node 1, as the metrics tell.
fn dropped(network: &Network) -> u64 {
    network.agents[0].counted(Outcome::DroppedNoPort).unwrap()
}

/// The external client asks at node 1's port for the pod of node 2. Its port is of the local range, which is the node's as well: it cannot be kept.
fn connect(network: &Network, family: Family) -> std::io::Result<Stream> {
    let (protocol, policy, client, backend) = (Protocol::Tcp, Policy::Cluster, Client::Outside, Backend::PodByRoute);
    let cell = Cell { kind: AddressKind::NodePort, protocol, family, policy, client, backend };
    Stream::connect_from(network.client(cell), 0, cell.frontend(network.nodes[0].addresses()), USED_UP)
}

fn connected(network: &Network, family: Family) -> Stream {
    eventually("a connection", PATIENCE, || connect(network, family).ok())
}

/// Uses up the ports from `first` on, so many at each of these addresses, and frees some again.
fn use_up(network: &Network, family: Family, addresses: &[IpAddr], first: u16, ports: u16) {
    let all = usize::from(ports) * addresses.len();
    let mut held: Vec<Stream> = (0..all).map(|_| connected(network, family)).collect();
    let mut seen: BTreeMap<IpAddr, Vec<u16>> = BTreeMap::new();
    for (nth, stream) in held.iter_mut().enumerate() {
        let peer = stream.ask("which").unwrap().peer;
        assert!(nth > 0 || peer.ip() == addresses[0], "{peer} begins");
        seen.entry(peer.ip()).or_default().push(peer.port());
    }
    for (address, mut found) in seen {
        found.sort_unstable();
        assert!(addresses.contains(&address), "{address} stands in");
        assert_eq!(found, (first..first + ports).collect::<Vec<u16>>(), "ports of {address}");
    }

    let before = dropped(network);
    connect(network, family).expect_err("every port is in use");
    assert!(dropped(network) > before, "dropped, but not counted");
    for stream in &mut held {
        stream.ask("still").unwrap();
    }

    for stream in held.drain(..all / 4) {
        stream.reset().unwrap();
    }
    connected(network, family).ask("again").unwrap();
}

#[test]
fn a_used_up_range_recovers_and_every_address_that_is_named_stands_in() {
    let mut network = Network::new("ports").unwrap();
    let own = network.nodes[0].addresses();
    let others: [[IpAddr; 2]; 2] = [
        [[192, 0, 2, 101].into(), [192, 0, 2, 102].into()],
        ["2001:db8:1::101".parse().unwrap(), "2001:db8:1::102".parse().unwrap()],
    ];
    let mut named = Vec::new();
    for (family, others) in Family::ALL.into_iter().zip(others) {
        let [network_bits, all_bits] = if family == Family::V4 { [24, 32] } else { [64, 128] };
        let nodad = if family == Family::V6 { "nodad" } else { "" };
        for other in others {
            network.nodes[0].namespace().ip(&format!("address add {other}/{network_bits} dev eth0 {nodad}")).unwrap();
        }
        named.extend([own.of(family), others[0], others[1]].map(|address| format!("{address}/{all_bits}")));
    }
    let manifest = Manifest::of(network.services());
    network.start(&manifest, &["--snat-ports=23000-23063", TIMEOUTS]).unwrap();
    use_up(&network, Family::V4, &[own.v4.into()], 23_000, 64);

    let flags = [CLUSTER, "--snat-ports=23100-23107", TIMEOUTS, &format!("--snat-addresses={}", named.join(","))];
    drop(network.agents.remove(0));
    network.agents.insert(0, Agent::start_with(&network.nodes[0], &manifest, &flags).unwrap());
    for (family, others) in Family::ALL.into_iter().zip(others) {
        use_up(&network, family, &[own.of(family), others[0], others[1]], 23_100, 8);
    }
}
