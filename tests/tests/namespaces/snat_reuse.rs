//! Tuples that are used again while the backend, which closed first, keeps them in TIME-WAIT: no connect waits for a second SYN's timeout. They are a
//! client's own port, or a SNAT port.
//!
//! Such a backend may acknowledge the old connection in answer to the SYN of the new one (RFC 9293, section 3.10.7.4). The client resets
//! it (section 3.10.7.3), and Linux sends the SYN again at once.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_tests::agent::{Endpoint, External, Manifest, Port, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::raw_tcp::{ACK, FIN, RST, RawTcp, SYN, Segment, lend};
use lb_tests::peers::{PATIENCE, Stream};
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Family, Network, Policy};
use lb_tests::topology::{NetNs, NodeOptions};

use crate::collisions::connect_when_free;

/// Connections of each kind, one after the other.
const CONNECTIONS: usize = 256;
const SNAT_PORTS: u16 = 64;
/// Linux sends an unanswered SYN again after a second.
const REPEATED: Duration = Duration::from_millis(900);
/// So many connects may take so long: a machine may stand still. Of those to a tuple in TIME-WAIT each would.
const SLOW: usize = 5;
/// Ports that clients bind, and keep under SNAT.
const OWN_PORTS: std::ops::Range<u16> = 20_000..20_032;
/// On each of its ports a client connects to these of two frontends, one after the other.
const TURNS: [usize; 6] = [0, 1, 0, 0, 1, 1];
const NODE_PORT: u16 = 30_900;
const TARGET: u16 = 9_000;

/// Accepts so many connections, and closes each one at once. The addresses that they came from.
fn closing_server(netns: &NetNs, at: SocketAddr, connections: usize) -> JoinHandle<Vec<SocketAddr>> {
    let listener = netns.run(|| TcpListener::bind(at)).unwrap();
    std::thread::spawn(move || (0..connections).map(|_| listener.accept().unwrap().1).collect())
}

/// Connects from this port (0: any), and waits for the server's end. Whether the SYN waited for its timeout.
fn waits(client: &NetNs, port: u16, to: SocketAddr) -> bool {
    let start = Instant::now();
    let mut stream = connect_when_free(client, port, to, "used again");
    let is_slow = stream.sent_again().unwrap() > 0 && start.elapsed() >= REPEATED;
    let end = stream.read_line().expect_err("the server says nothing");
    assert_eq!(end.kind(), ErrorKind::UnexpectedEof, "{to}: {end}");
    is_slow
}

/// How many waited for a second SYN, to each of both by turns. Each connection ends before the next one begins, and the server ends it first.
fn slow(client: &NetNs, both: [SocketAddr; 2]) -> [usize; 2] {
    let turns: Vec<[bool; 2]> = (0..CONNECTIONS).map(|_| both.map(|to| waits(client, 0, to))).collect();
    [0, 1].map(|at| turns.iter().filter(|turn| turn[at]).count())
}

/// An agent on the first node with so many SNAT ports, and a service of two ports with this backend.
fn start(network: &mut Network, backend: Backend, snat_ports: u16) -> Service {
    let (_, addresses) = network.server(backend).unwrap();
    let endpoint = Endpoint::ready(addresses).on(&network.nodes[backend.node().unwrap()].node_name());
    let port = |name, port, target| Port { name, protocol: Protocol::Tcp, port, target };
    let ports = vec![port("tcp", 80, TARGET), port("other", 81, TARGET + 1)];
    let external = External { node_ports: vec![NODE_PORT, NODE_PORT + 1], ..External::default() };
    let service = Service { ports, ..Service::standard("closing", 40, vec![endpoint]) }.with(external);
    let flags = [&format!("--snat-ports=23000-{}", 23_000 + snat_ports - 1)[..]];
    network.start_first(1, &Manifest::of([service.clone()]), &flags).unwrap();
    service
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
    let service = start(&mut network, backend, SNAT_PORTS);

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

/// Runs nft with this script or these arguments. What it says.
fn nft(netns: &NetNs, arguments: &[&str]) -> String {
    let output = netns.run(|| Command::new("nft").args(arguments).output()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Counts anew what arrives in the namespace from this address.
fn count(netns: &NetNs, from: IpAddr) {
    let family = if from.is_ipv4() { "ip" } else { "ip6" };
    let rule = format!("add rule inet seen input {family} saddr {from} counter");
    let chain = "add chain inet seen input { type filter hook input priority 0; }";
    nft(netns, &[&format!("add table inet seen\ndelete table inet seen\nadd table inet seen\n{chain}\n{rule}\n")]);
}

/// How much was counted.
fn counted(netns: &NetNs) -> u64 {
    let listed = nft(netns, &["list", "chain", "inet", "seen", "input"]);
    let (_, number) = listed.split_once("packets ").expect("a counter");
    number.split_whitespace().next().unwrap().parse().unwrap()
}

/// On each port one connect to each of these, one after the other, on several ports at once. How many waited.
fn one_after_the_other(client: &NetNs, all: &[SocketAddr]) -> usize {
    const AT_ONCE: usize = 4;
    let ports: Vec<u16> = OWN_PORTS.collect();
    let of = |ports: &[u16]| {
        ports.iter().flat_map(|port| all.iter().map(|to| waits(client, *port, *to))).filter(|waits| *waits).count()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ports.chunks(ports.len() / AT_ONCE).map(|ports| scope.spawn(move || of(ports))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Each client has the same ports. So a masqueraded one has the tuples that a process of its node had, and a pod those of its direct connections.
#[test]
fn a_port_that_a_backend_keeps_in_time_wait_is_used_again_at_once_on_another_frontend() {
    let services = [("near", Backend::Pod, [41, 42]), ("far", Backend::PodByRoute, [43, 44])];
    let ways = [
        (Client::Process, AddressKind::ClusterIp),
        (Client::Pod, AddressKind::ClusterIp),
        (Client::Outside, AddressKind::ClusterIp),
        (Client::Outside, AddressKind::NodePort),
    ];
    let mut network = Network::new("reuse-own").unwrap();
    let node_port = |number: u8| NODE_PORT + u16::from(number);
    let manifest = services.iter().flat_map(|(_, backend, numbers)| {
        let (_, addresses) = network.server(*backend).unwrap();
        let endpoint = Endpoint::ready(addresses).on(&network.nodes[backend.node().unwrap()].node_name());
        numbers.map(|number| {
            let ports = vec![Port { name: "tcp", protocol: Protocol::Tcp, port: 80, target: TARGET }];
            let external = External { node_ports: vec![node_port(number)], ..External::default() };
            let name = ["one", "two", "three", "four"][usize::from(number) - 41];
            Service { ports, ..Service::standard(name, number, vec![endpoint.clone()]) }.with(external)
        })
    });
    let manifest = Manifest::of(manifest.collect::<Vec<_>>());
    network.start_first(1, &manifest, &[]).unwrap();
    let own = network.nodes[0].addresses();

    for family in Family::ALL {
        for (place, backend, numbers) in services {
            let (server, addresses) = network.server(backend).unwrap();
            let target = SocketAddr::new(addresses.of(family), TARGET);
            let accepted = OWN_PORTS.len() * (ways.len() * TURNS.len() + 1);
            let accepting = closing_server(&server, target, accepted);
            for (client, kind) in ways {
                let case = format!("{family:?}, {place}, {client:?}, {kind:?}");
                let (protocol, policy) = (Protocol::Tcp, Policy::Cluster);
                let netns = network.client(Cell { kind, protocol, family, policy, client, backend });
                let frontends = numbers.map(|number| match kind {
                    AddressKind::NodePort => SocketAddr::new(own.of(family), node_port(number)),
                    _ => SocketAddr::new(kind.addresses(number)[usize::from(family == Family::V6)], 80),
                });
                if client == Client::Pod {
                    one_after_the_other(netns, &[target]);
                }
                // The sockets of processes know the backend's address.
                if client != Client::Process {
                    count(netns, target.ip());
                }
                let slow = one_after_the_other(netns, &TURNS.map(|at| frontends[at]));
                assert!(slow <= SLOW, "{case}: {slow} of {} waited", OWN_PORTS.len() * TURNS.len());
                if client != Client::Process {
                    assert_eq!(counted(netns), 0, "{case}: segments with the backend's address");
                }
            }
            accepting.join().unwrap();
        }
    }
}

/// By hand: what a kernel sends in such a case depends on how its processors take turns. Numbers of a SYN are lower than those of the connection before
/// where a router gives one port to several hosts.
#[test]
fn what_a_backend_in_time_wait_says_reaches_the_client_from_the_service() {
    let fixture = Fixture::new("reuse-hand", Pods::Routed, 1, NodeOptions::default());
    let ports = vec![Port { name: "tcp", protocol: Protocol::Tcp, port: 80, target: TARGET }];
    let service = Service { ports, ..Service::standard("closing", 40, fixture.endpoints()) };
    let _agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let own = lend(&fixture.node, &fixture.client, 100..101).unwrap()[0];
    let client = RawTcp::new(fixture.client.netns()).unwrap();
    for to in service.frontends(Protocol::Tcp) {
        let at = SocketAddr::new(fixture.backends[0].addresses().like(to.ip()), TARGET);
        let accepting = closing_server(fixture.backends[0].netns(), at, 2);
        let from = SocketAddr::new(own.like(to.ip()), 20_000);
        let answer_to = |sent: Segment, flags: u8| {
            client.send(&sent);
            let answer = client.receive(SOON, |segment| segment.to == from).expect("an answer");
            assert_eq!((answer.from, answer.flags & (FIN | SYN | RST | ACK)), (to, flags), "to {sent:?}: {answer:?}");
            answer
        };
        let accepted = answer_to(Segment::syn(from, to, 1_000_000), SYN | ACK);
        let ended = answer_to(accepted.answer(ACK, 1_000_001), FIN | ACK);
        let last = answer_to(ended.answer(FIN | ACK, 1_000_001), ACK);
        assert_eq!(answer_to(ended.answer(FIN | ACK, 1_000_001), ACK).ack, last.ack, "a FIN that is sent again");

        let again = Segment::syn(from, to, 1_000);
        let old = answer_to(again, ACK);
        assert_eq!(old.ack, last.ack, "of the connection before");
        client.send(&Segment { seq: old.ack, ..old.answer(RST, old.ack) });
        let accepted = answer_to(again, SYN | ACK);
        client.send(&accepted.answer(ACK, 1_001));
        assert_eq!(accepting.join().unwrap(), [from; 2]);
        let ended = client.receive(SOON, |segment| segment.to == from && segment.is(FIN | ACK)).expect("the end");
        assert_eq!(ended.from, to);
    }
}

/// Of 1,024 SNAT ports to one port of a backend, 900 rest. Connects to it take no longer than to another port, to which all are free. Both come 300
/// times a second.
#[test]
fn connects_are_as_quick_while_most_snat_ports_rest() {
    const PORTS: u16 = 1_024;
    const RESTING: usize = 900;
    const MEASURED: usize = 100;
    const PACE: Duration = Duration::from_micros(3_333);
    let mut network = Network::new("reuse-pace").unwrap();
    let backend = Backend::PeerHost;
    start(&mut network, backend, PORTS);
    let (server, addresses) = network.server(backend).unwrap();
    for family in Family::ALL {
        let (kind, protocol, policy) = (AddressKind::NodePort, Protocol::Tcp, Policy::Cluster);
        let client = network.client(Cell { kind, protocol, family, policy, client: Client::Outside, backend });
        let at = |port| SocketAddr::new(addresses.of(family), port);
        let own = network.nodes[0].addresses().of(family);
        let both = [NODE_PORT, NODE_PORT + 1].map(|port| SocketAddr::new(own, port));
        let servers = [(TARGET, RESTING + MEASURED), (TARGET + 1, MEASURED)];
        let servers = servers.map(|(port, connections)| closing_server(&server, at(port), connections));
        let connect = |to| {
            let start = Instant::now();
            let mut stream = Stream::connect_from(client, 0, to, PATIENCE).unwrap();
            let took = start.elapsed();
            stream.read_line().expect_err("the server says nothing");
            took
        };
        for _ in 0..RESTING {
            connect(both[0]);
        }
        let turns = (0..MEASURED).map(|_| {
            let took = both.map(connect);
            std::thread::sleep(PACE.saturating_sub(took[0] + took[1]));
            took
        });
        let turns: Vec<[Duration; 2]> = turns.collect();
        let [resting, free] = [0, 1].map(|at| {
            let mut all: Vec<Duration> = turns.iter().map(|turn| turn[at]).collect();
            all.sort_unstable();
            all[MEASURED / 2]
        });
        for server in servers {
            server.join().unwrap();
        }
        println!("{family:?}: half of the connects within {resting:?} while most ports rest, within {free:?} else");
        assert!(resting < 10 * free, "{family:?}: {resting:?}, to a port that no SNAT port rests for {free:?}");
    }
}
