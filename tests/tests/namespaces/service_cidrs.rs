//! Addresses of the service CIDRs that no Service has: what is sent there is dropped and counted, and never leaves by the default route.
//! Needs root and BPF.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::strays::{Gateway, SYN, segment, send, strays};
use lb_tests::topology::{NetNs, NodeOptions, SERVICE_NET4, SERVICE_NET6};

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);
/// No Service of the tests has them.
const NOBODYS: [&str; 2] = ["10.96.200.99", "fd00:96::c863"];

fn nobodys() -> [IpAddr; 2] {
    NOBODYS.map(|text| text.parse().unwrap())
}

fn flag() -> String {
    format!("--service-cidr={SERVICE_NET4},{SERVICE_NET6}")
}

fn counters(agent: &Agent) -> Counters {
    Counters::read(agent.bpffs()).unwrap()
}

/// Sends what may begin a connection and what may not, of several protocols, to these addresses; says how many packets that were.
fn send_all(from: &NetNs, to: &[IpAddr]) -> u64 {
    let all = to.iter().flat_map(|to| {
        let begins = (libc::IPPROTO_TCP, segment(SYN).to_vec());
        strays(*to).into_iter().chain([begins]).map(move |stray| (*to, stray))
    });
    all.map(|(to, (protocol, payload))| send(from, to, protocol, &payload).unwrap()).count() as u64
}

/// Whether a packet to each of these passes the router.
fn leave(gateway: &Gateway, from: &NetNs, to: &[IpAddr]) {
    for to in to {
        let (protocol, payload) = (libc::IPPROTO_TCP, segment(SYN));
        eventually("a packet leaves", LIMIT, || {
            send(from, *to, protocol, &payload).unwrap();
            gateway.seen().contains(&(*to, protocol)).then_some(())
        });
    }
}

#[test]
fn what_no_service_has_is_dropped_for_pods_processes_and_clients_outside() {
    let fixture = Fixture::new("cidrs", Pods::Routed, 1, NodeOptions::default());
    let outside = fixture.topology.outside("outside", &fixture.node).unwrap();
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[&flag()]);
    let gateway = Gateway::watch(&fixture.topology).unwrap();

    let before = counters(&agent);
    let places = [outside.netns(), fixture.client.netns(), fixture.node.netns()];
    let sent: u64 = places.map(|from| send_all(from, &nobodys())).iter().sum();
    let dropped = || counters(&agent).since(&before, Outcome::DroppedNoService);
    eventually("all are dropped", LIMIT, || (dropped() >= sent).then_some(()));
    assert_eq!(dropped(), sent, "{}", counters(&agent).line_since(&before));
    let gone: Vec<_> = gateway.seen().into_iter().filter(|(to, _)| nobodys().contains(to)).collect();
    assert!(gone.is_empty(), "{gone:?}");

    // The Service itself is served, and its other ports are refused, both as before.
    for from in places {
        for address in service.cluster_ips.both() {
            let served = Stream::connect(from, SocketAddr::new(address, 80)).unwrap().ask("who").unwrap();
            assert_eq!(served.server, "b0");
            let refused = Stream::connect(from, SocketAddr::new(address, 81)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        }
    }
    assert_eq!(dropped(), sent, "{}", counters(&agent).line_since(&before));
    // What is in no service CIDR leaves, and the watch at the router is awake.
    leave(&gateway, fixture.client.netns(), &["198.51.100.99", "2001:db8:5::63"].map(|text| text.parse().unwrap()));
}

#[test]
fn connections_of_a_deleted_service_go_on_and_new_ones_are_dropped() {
    let fixture = Fixture::new("cidrs-gone", Pods::Routed, 1, NodeOptions::default());
    let (web, other) = (fixture.web(), Service::standard("other", 77, fixture.endpoints()));
    let agent = fixture.agent(&Manifest::of([web, other.clone()]), &[&flag(), "--drain-period=10m"]);
    let gateway = Gateway::watch(&fixture.topology).unwrap();
    let addresses = other.cluster_ips.both();
    let client = fixture.client.netns();
    let mut connections = addresses.map(|address| Stream::connect(client, SocketAddr::new(address, 80)).unwrap());
    let socket = Datagrams::connected(client, 0, SocketAddr::new(addresses[0], 53)).unwrap();
    assert_eq!(socket.ask("who").unwrap().server, "b0");

    agent.apply(&Manifest::of([fixture.web()])).unwrap();
    let before = counters(&agent);
    let dropped = || counters(&agent).since(&before, Outcome::DroppedNoService);
    eventually("new connections are dropped", LIMIT, || {
        for to in addresses {
            send(client, to, libc::IPPROTO_TCP, &segment(SYN)).unwrap();
        }
        (dropped() >= 2).then_some(())
    });
    for connection in &mut connections {
        assert_eq!(connection.ask("still there?").unwrap().server, "b0");
    }
    let gone: Vec<_> = gateway.seen().into_iter().filter(|(to, _)| addresses.contains(to)).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

#[test]
fn the_tables_drop_without_an_agent_and_the_next_one_says_what_is_a_service_cidr() {
    let fixture = Fixture::new("cidrs-restart", Pods::Bridged, 1, NodeOptions::default());
    let manifest = Manifest::of([fixture.web()]);
    let mut with = fixture.agent(&manifest, &[&flag()]);
    let client = fixture.client.netns();
    let before = counters(&with);
    with.kill();
    let sent = send_all(client, &nobodys());
    let dropped = || counters(&with).since(&before, Outcome::DroppedNoService);
    eventually("all are dropped", LIMIT, || (dropped() >= sent).then_some(()));

    // An operator takes the flag away: a file names no service CIDR.
    let gateway = Gateway::watch(&fixture.topology).unwrap();
    let mut without = Agent::prepare(&fixture.node, &[]).unwrap();
    without.restart().unwrap();
    leave(&gateway, client, &nobodys());
    leave(&gateway, fixture.node.netns(), &nobodys());
}
