//! SNAT tuples that are used again while the backend, which closed first, keeps them in TIME-WAIT: no connect waits for a second SYN's timeout.
//!
//! Such a backend may acknowledge the old connection in answer to the SYN of the new one (RFC 9293, section 3.10.7.4). The client resets
//! it (section 3.10.7.3), and Linux sends the SYN again at once.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_tests::agent::{Endpoint, External, Manifest, Port, Protocol, Service};
use lb_tests::peers::{PATIENCE, Stream};
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Family, Network, Policy};
use lb_tests::topology::NetNs;

/// Connections of each kind, one after the other.
const CONNECTIONS: usize = 256;
const SNAT_PORTS: u16 = 64;
/// Linux sends an unanswered SYN again after a second.
const REPEATED: Duration = Duration::from_millis(900);
/// So many connects may take so long: a machine may stand still. Of those to a tuple in TIME-WAIT each would.
const SLOW: usize = 5;
const NODE_PORT: u16 = 30_900;
const TARGET: u16 = 9_000;

/// Accepts so many connections, and closes each one at once. The addresses that they came from.
fn closing_server(netns: &NetNs, at: SocketAddr, connections: usize) -> JoinHandle<Vec<SocketAddr>> {
    let listener = netns.run(|| TcpListener::bind(at)).unwrap();
    std::thread::spawn(move || (0..connections).map(|_| listener.accept().unwrap().1).collect())
}

/// How many waited for a second SYN, to each of both by turns. Each connection ends before the next one begins, and the server ends it first.
fn slow(client: &NetNs, both: [SocketAddr; 2]) -> [usize; 2] {
    let connect = |to| {
        let start = Instant::now();
        let mut stream = Stream::connect_from(client, 0, to, PATIENCE).unwrap();
        let is_slow = start.elapsed() >= REPEATED;
        let end = stream.read_line().expect_err("the server says nothing");
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof, "{to}: {end}");
        is_slow
    };
    let turns: Vec<[bool; 2]> = (0..CONNECTIONS).map(|_| both.map(connect)).collect();
    [0, 1].map(|at| turns.iter().filter(|turn| turn[at]).count())
}

/// Such a backend, of an external client: no connect by the service waits for a second SYN.
fn delays_no_connect(subject: &str, backend: Backend, kind: AddressKind) {
    let mut network = Network::new(subject).unwrap();
    let own = network.nodes[0].addresses();
    let (server, addresses) = network.server(backend).unwrap();
    if backend == Backend::Pod {
        // Direct connections, to compare with.
        let routes = Family::ALL.map(|family| format!("route add {} via {}\n", addresses.of(family), own.of(family)));
        network.topology.wire().ip(&routes.concat()).unwrap();
    }
    let at = backend.node().unwrap();
    let endpoint = Endpoint::ready(addresses).on(&network.nodes[at].node_name());
    let ports = vec![Port { name: "tcp", protocol: Protocol::Tcp, port: 80, target: TARGET }];
    let external = External { node_ports: vec![NODE_PORT], ..External::default() };
    let service = Service { ports, ..Service::standard("closing", 40, vec![endpoint]) }.with(external);
    let flags = [&format!("--snat-ports=23000-{}", 23_000 + SNAT_PORTS - 1)[..]];
    network.start_first(1, &Manifest::of([service.clone()]), &flags).unwrap();

    for family in Family::ALL {
        let (protocol, policy, client) = (Protocol::Tcp, Policy::Cluster, Client::Outside);
        let client = network.client(Cell { kind, protocol, family, policy, client, backend });
        let frontend = match kind {
            AddressKind::NodePort => SocketAddr::new(own.of(family), NODE_PORT),
            _ => SocketAddr::new(service.cluster_ips.of(family), 80),
        };
        let target = SocketAddr::new(addresses.of(family), TARGET);
        let accepting = closing_server(&server, target, 2 * CONNECTIONS);
        let [direct, through] = slow(client, [target, frontend]);

        let peers: Vec<SocketAddr> = accepting.join().unwrap().into_iter().skip(1).step_by(2).collect();
        assert!(peers.iter().all(|peer| network.is_of_node(0, peer.ip())), "each is masqueraded: {peers:?}");
        let used: BTreeSet<u16> = peers.iter().map(SocketAddr::port).collect();
        assert!(used.len() <= usize::from(SNAT_PORTS), "{used:?}");
        assert!(through <= direct + SLOW, "{family:?}: {through} waited for a second SYN, {direct} of the direct ones");
    }
}

#[test]
fn a_tuple_that_a_backend_elsewhere_keeps_in_time_wait_delays_no_connect() {
    delays_no_connect("reuse", Backend::PeerHost, AddressKind::NodePort);
}

#[test]
fn a_tuple_that_a_pod_of_the_node_keeps_in_time_wait_delays_no_connect() {
    delays_no_connect("reuse-pod", Backend::Pod, AddressKind::ClusterIp);
}
