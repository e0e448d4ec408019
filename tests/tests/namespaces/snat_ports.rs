//! SNAT ports. Few of them, used up: the next address stands in, where there is one; what finds no port at any is dropped and counted, and served
//! once one is free. The default range: enough for tens of thousands of connections to one port of a backend.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_seed::short_or_long;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Port, Protocol, Service};
use lb_tests::peers::{Stream, eventually};
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Family, Network, Policy};
use lb_tests::topology::NetNs;
use nix::sched::{CloneFlags, unshare};

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
    eventually("status names the service that is short of ports", PATIENCE, || {
        let said = String::from_utf8(network.agents[0].cli(&["status"]).unwrap().stdout).unwrap();
        let named = |line: &str| line.starts_with("Short of room:") && line.contains("pod-by-route");
        (said.contains("healthy and ready, degraded") && said.lines().any(named)).then_some(())
    });
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

/// Threads with descriptors of their own at each end, since a process may have few.
const PARTS: usize = 2;

/// Accepts so many connections and tells each client the address that it comes from, at once and again when all are there.
fn holding_server(netns: &NetNs, at: SocketAddr, connections: usize) -> JoinHandle<()> {
    let listener = netns.run(|| TcpListener::bind(at)).unwrap();
    let tell = |(mut stream, peer): (TcpStream, SocketAddr)| {
        writeln!(stream, "{peer}").unwrap();
        (stream, peer)
    };
    std::thread::spawn(move || {
        let all = Barrier::new(PARTS);
        in_parts(|| {
            let held: Vec<_> = (0..connections / PARTS).map(|_| tell(listener.accept().unwrap())).collect();
            all.wait();
            for connection in held {
                tell(connection);
            }
        });
    })
}

/// What [`PARTS`] threads return, each with descriptors of its own.
fn in_parts<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    let own = || {
        unshare(CloneFlags::CLONE_FILES).unwrap();
        work()
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..PARTS).map(|_| scope.spawn(own)).collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    })
}

#[test]
fn one_node_has_thousands_of_connections_to_one_port_of_a_remote_backend() {
    const TARGET: u16 = 9_000;
    const NODE_PORT: u16 = 30_900;
    let connections = short_or_long(5_000, 20_000);
    let mut network = Network::new("many").unwrap();
    let (server, addresses) = network.server(Backend::PodByRoute).unwrap();
    let endpoint = Endpoint::ready(addresses).on(&network.nodes[1].node_name());
    let ports = vec![Port { name: "tcp", protocol: Protocol::Tcp, port: 80, target: TARGET }];
    let external = External { node_ports: vec![NODE_PORT], ..External::default() };
    let service = Service { ports, ..Service::standard("many", 40, vec![endpoint]) }.with(external);
    network.start_first(1, &Manifest::of([service]), &[]).unwrap();
    for family in Family::ALL {
        let (kind, protocol, policy) = (AddressKind::NodePort, Protocol::Tcp, Policy::Cluster);
        let cell = Cell { kind, protocol, family, policy, client: Client::Outside, backend: Backend::PodByRoute };
        let frontend = SocketAddr::new(network.nodes[0].addresses().of(family), NODE_PORT);
        let accepting = holding_server(&server, SocketAddr::new(addresses.of(family), TARGET), connections);
        let connected = AtomicUsize::new(0);
        let connect = |nth| {
            let mut stream =
                Stream::connect_from(network.client(cell), 0, frontend, PATIENCE).unwrap_or_else(|error| {
                    panic!("{family:?}, connection {nth}: {error}; {} dropped for want of a port", dropped(&network))
                });
            let seen_as = stream.read_line().unwrap();
            connected.fetch_add(1, Ordering::Relaxed);
            (stream, seen_as)
        };
        let parts = in_parts(|| {
            let held: Vec<(Stream, String)> = (0..connections / PARTS).map(connect).collect();
            let is_all = || (connected.load(Ordering::Relaxed) == connections).then_some(());
            eventually("all to be connected", PATIENCE, is_all);
            held.into_iter()
                .map(|(mut stream, seen_as)| {
                    assert_eq!(stream.read_line().unwrap(), seen_as, "another client's");
                    seen_as
                })
                .collect::<Vec<String>>()
        });
        let seen: BTreeSet<String> = parts.into_iter().flatten().collect();
        assert_eq!(seen.len(), connections, "each client has a tuple of its own");
        accepting.join().unwrap();
        assert_eq!(dropped(&network), 0, "no SYN waited for a port");
    }
}
