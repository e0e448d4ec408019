//! Host processes at node ports and external addresses: by loopback, by the node's own addresses, past the policy for those outside.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod stage;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_tests::agent::{Endpoint, External, Manifest, Service};
use lb_tests::peers::{Datagrams, Stream, mapped};
use lb_tests::topology::{NodeOptions, Place};
use stage::{Pods, Stage};

const HTTP: u16 = 30_080;
const DNS: u16 = 30_053;
const LOOPBACK: [IpAddr; 3] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(127, 9, 0, 53)), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const NO_ADDRESS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

fn node_ports() -> External {
    External { node_ports: vec![HTTP, DNS], ..External::default() }
}

/// TCP, and UDP connected and not, reach a backend; the process believes throughout that it talks to `shown`.
fn serves(from: &Place, [http, dns]: [u16; 2], asked: IpAddr, shown: IpAddr) {
    let (to, peer) = (SocketAddr::new(asked, http), SocketAddr::new(shown, http));
    let mut stream = Stream::connect(from, to).unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
    stream.ask("hello").unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
    assert_eq!(stream.peer().unwrap(), peer);
    let (to, peer) = (SocketAddr::new(asked, dns), SocketAddr::new(shown, dns));
    let socket = Datagrams::connected(from, 0, to).unwrap();
    socket.ask_by_name(to, "hello").unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
    assert_eq!(socket.peer().unwrap(), peer);
    let socket = Datagrams::unconnected(from, 0, to).unwrap();
    for text in ["one", "two"] {
        socket.send_at(to, text).unwrap();
        let (said, answer) = socket.receive().unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
        assert_eq!((said, answer.text.as_str()), (peer, text), "asked {to}");
    }
}

fn refuses(from: &Place, to: SocketAddr) {
    let error = Stream::connect(from, to).expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}: {to}", from.name());
}

fn mapped_ip(address: IpAddr) -> IpAddr {
    mapped(SocketAddr::new(address, 0)).ip()
}

#[test]
fn a_host_process_reaches_node_ports_at_loopback() {
    let stage = Stage::new("loopback", Pods::Routed, 2, NodeOptions::default());
    let _agent = stage.agent(&Manifest::of([stage.web().with(node_ports())]), &[]);
    let host = stage.node.place();
    for address in LOOPBACK {
        serves(host, [HTTP, DNS], address, address);
        serves(host, [HTTP, DNS], mapped_ip(address), mapped_ip(address));
        refuses(host, SocketAddr::new(address, HTTP + 1));
    }
    // Without an address the kernel means loopback, and says so.
    for (asked, shown) in NO_ADDRESS.into_iter().zip([LOOPBACK[0], LOOPBACK[2]]) {
        serves(host, [HTTP, DNS], asked, shown);
    }
}

#[test]
fn loopback_of_a_pod_is_its_own() {
    let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
    let stage = Stage::new("podloop", Pods::Routed, 1, options);
    let _agent = stage.agent(&Manifest::of([stage.web().with(node_ports())]), &["--socket-lb", "all"]);
    let pod = stage.client.place().clone().in_cgroup(stage.node.cgroup());
    for address in LOOPBACK.into_iter().chain(NO_ADDRESS) {
        refuses(&pod, SocketAddr::new(address, HTTP));
    }
    serves(stage.node.place(), [HTTP, DNS], LOOPBACK[0], LOOPBACK[0]);
}

#[test]
fn no_packet_is_served_at_loopback() {
    let stage = Stage::new("looppacket", Pods::Routed, 1, NodeOptions::default());
    // Without the hook nobody translates, and nothing but a hook may: other hosts must not come by here.
    let _agent = stage.agent(&Manifest::of([stage.web().with(node_ports())]), &["--socket-lb", "off"]);
    for address in LOOPBACK.into_iter().chain(NO_ADDRESS) {
        refuses(stage.node.place(), SocketAddr::new(address, HTTP));
    }
    let own = stage.node.addresses().both().map(|address| SocketAddr::new(address, HTTP));
    for to in own {
        Stream::connect(stage.client.place(), to).unwrap().ask("hello").unwrap();
    }
}

#[test]
fn loopback_is_open_where_the_addresses_of_node_ports_hold_it() {
    let stage = Stage::new("looponly", Pods::Routed, 1, NodeOptions::default());
    let manifest = Manifest::of([stage.web().with(node_ports())]);
    let own = stage.node.addresses();
    let host = stage.node.place();
    {
        let _agent = stage.agent(&manifest, &[&format!("--nodeport-addresses={}/32", own.v4)]);
        serves(host, [HTTP, DNS], own.v4.into(), own.v4.into());
        for address in LOOPBACK {
            refuses(host, SocketAddr::new(address, HTTP));
        }
    }
    let _agent = stage.agent(&manifest, &["--nodeport-addresses=127.0.0.0/8"]);
    serves(host, [HTTP, DNS], LOOPBACK[0], LOOPBACK[0]);
    for to in [LOOPBACK[2], own.v4.into(), own.v6.into()] {
        refuses(host, SocketAddr::new(to, HTTP));
    }
}

#[test]
fn an_endpoint_on_the_node_itself_is_reached_by_loopback() {
    let stage = Stage::new("loophost", Pods::Routed, 0, NodeOptions::default());
    let _servers = stage::serve_at(stage.node.place(), stage.node.addresses(), "host");
    let endpoint = Endpoint::ready(stage.node.addresses()).on(&stage.node.node_name());
    let _agent = stage.agent(&Manifest::of([Service::web(vec![endpoint]).with(node_ports())]), &[]);
    for address in LOOPBACK {
        serves(stage.node.place(), [HTTP, DNS], address, address);
    }
}

#[test]
fn a_node_port_without_endpoints_is_refused_at_loopback() {
    let stage = Stage::new("loopempty", Pods::Routed, 0, NodeOptions::default());
    let _agent = stage.agent(&Manifest::of([stage.web().with(node_ports())]), &[]);
    for address in LOOPBACK {
        refuses(stage.node.place(), SocketAddr::new(address, HTTP));
        let error = Datagrams::connected(stage.node.place(), 0, SocketAddr::new(address, DNS)).expect_err("at connect");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

/// Addresses of a load balancer and external IPs that no node has.
fn published() -> External {
    let addresses = |texts: [&str; 2]| texts.map(|text| text.parse().unwrap()).to_vec();
    External {
        load_balancer_ips: addresses(["198.51.100.10", "2001:db8:5::10"]),
        external_ips: addresses(["203.0.113.7", "2001:db8:7::7"]),
        ..node_ports()
    }
}

#[test]
fn a_host_process_reaches_the_whole_cluster_whatever_the_policy_for_those_outside() {
    let stage = Stage::new("hostcluster", Pods::Routed, 1, NodeOptions::default());
    // The one endpoint is on another node, as the policy sees it.
    let endpoints = stage.backends.iter().map(|pod| Endpoint::ready(pod.addresses()).on("elsewhere")).collect();
    let external = External { local: true, ..published() };
    let ips = [external.load_balancer_ips.clone(), external.external_ips.clone()].concat();
    let _agent = stage.agent(&Manifest::of([Service::web(endpoints).with(external)]), &["--external-ips", "on"]);
    let host = stage.node.place();
    for address in stage.node.addresses().both().into_iter().chain(LOOPBACK) {
        serves(host, [HTTP, DNS], address, address);
        serves(host, [HTTP, DNS], mapped_ip(address), mapped_ip(address));
    }
    for address in ips {
        serves(host, [80, 53], address, address);
        serves(host, [80, 53], mapped_ip(address), mapped_ip(address));
    }
}

#[test]
fn the_node_passes_source_ranges_by_its_own_address_in_each_family() {
    let stage = Stage::new("hostranges", Pods::Routed, 1, NodeOptions::default());
    let own = stage.node.addresses();
    for (range, passes) in [(format!("{}/32", own.v4), own.v4.into()), (format!("{}/128", own.v6), own.v6.into())] {
        let passes: IpAddr = passes;
        let external = External { source_ranges: vec![range], ..published() };
        let ips = [external.load_balancer_ips.clone(), external.external_ips.clone()].concat();
        let _agent = stage.agent(&Manifest::of([stage.web().with(external)]), &["--external-ips", "on"]);
        let host = stage.node.place();
        for address in ips {
            for address in [address, mapped_ip(address)] {
                if address.to_canonical().is_ipv4() == passes.is_ipv4() {
                    serves(host, [80, 53], address, address);
                    continue;
                }
                // Ranges of one family leave nothing open in the other.
                let to = SocketAddr::new(address, 80);
                let error = Stream::connect_from(host, 0, to, Duration::from_secs(5)).expect_err("not in range");
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
            }
        }
        // Node ports are open to all.
        for address in own.both().into_iter().chain(LOOPBACK) {
            serves(host, [HTTP, DNS], address, address);
        }
    }
}

#[test]
fn one_socket_asks_by_every_address_of_the_node_and_hears_from_the_last() {
    let stage = Stage::new("loopturns", Pods::Routed, 1, NodeOptions::default());
    let service = stage.web();
    let _agent = stage.agent(&Manifest::of([service.clone().with(node_ports())]), &[]);
    let own = stage.node.addresses();
    let backend = stage.backends[0].addresses();
    let by_family: [[SocketAddr; 4]; 2] = [
        [
            (Ipv4Addr::LOCALHOST, DNS).into(),
            (own.v4, DNS).into(),
            (service.cluster_ips.v4, 53).into(),
            (backend.v4, 5353).into(),
        ],
        [
            (Ipv6Addr::LOCALHOST, DNS).into(),
            (own.v6, DNS).into(),
            (service.cluster_ips.v6, 53).into(),
            (backend.v6, 5353).into(),
        ],
    ];
    for ways in by_family {
        let socket = Datagrams::unconnected(stage.node.place(), 0, ways[0]).unwrap();
        for turn in 0..12 {
            // Each after each other one, in the end.
            let to = ways[(turn + turn / 4) % 4];
            socket.ask_at(to, &turn.to_string()).unwrap_or_else(|error| panic!("turn {turn}: {to}: {error}"));
        }
    }
}
