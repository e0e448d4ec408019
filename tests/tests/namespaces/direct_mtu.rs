//! Direct server return where a packet in its outer header is larger than the way takes, or an answer: the sender learns of it, whichever hop drops
//! it. Datagrams in fragments, errors about answers, and what nobody may send in an outer header.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use lb_common::map;
use lb_common::outcome::Outcome;
use lb_tables::Pinned;
use lb_tests::agent::{Agent, Manifest};
use lb_tests::external_client::{
    self, DNS, ODD, SINK, TARGET, client_addresses, far_client, load_balancer, service, tunnel,
};
use lb_tests::fixture;
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Server, eventually, fresh_port};
use lb_tests::topology::{Addresses, Checksums, Namespace, Node, NodeOptions, Pod, Topology, set_checksums};
use nix::sys::socket::{setsockopt, sockopt};

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);
const BYTES: usize = 300_000;
const PEERS: &str = "--dsr-peers=192.0.2.0/24,2001:db8:1::/64,172.30.0.0/24,fd00:30::/64";
const DIRECT: &[&str] = &["--mode=dsr", "--external-ips=on", PEERS];
/// What a router between the nodes takes, where there is one.
const ROUTER: u32 = 1_360;

/// How packets go from the first node to the backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Underlay {
    /// On the wire that both are on.
    Wire,
    /// In a VXLAN tunnel of its own.
    Overlay,
    /// By a router whose next link is narrow.
    Router,
}

/// A client behind a router asks the first node; the backend is on the second one. Fields in the order in which they must end.
struct Scenario {
    agents: [Agent; 2],
    _servers: Vec<Server>,
    client: Namespace,
    backend: Pod,
    nodes: [Node; 2],
    topology: Topology,
}

impl Scenario {
    fn new(underlay: Underlay, flags: &[&str]) -> Self {
        let topology = Topology::new("direct-mtu").unwrap();
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        match underlay {
            Underlay::Wire => nodes[0].route_to(&nodes[1]).unwrap(),
            Underlay::Overlay => tunnel(&nodes),
            Underlay::Router => by_router(&topology, &nodes),
        }
        let client = far_client(&topology);
        let backend = nodes[1].pod("backend").unwrap();
        let servers = fixture::serve(&backend, "far");
        let manifest = Manifest::of([service(&backend, &nodes[1])]);
        let agents = [0, 1].map(|node| Agent::start_with(&nodes[node], &manifest, &[DIRECT, flags].concat()).unwrap());
        Self { agents, _servers: servers, client, backend, nodes, topology }
    }

    /// The first node's port and the load balancer's address, both families.
    fn frontends(&self, node_port: u16, port: u16) -> Vec<SocketAddr> {
        let node = self.nodes[0].addresses().both().map(|address| SocketAddr::new(address, node_port));
        node.into_iter().chain(load_balancer().both().map(|address| SocketAddr::new(address, port))).collect()
    }

    fn target(&self, like: IpAddr) -> SocketAddr {
        SocketAddr::new(self.backend.addresses().like(like), TARGET)
    }

    fn counters(&self, node: usize) -> Counters {
        Counters::read(self.agents[node].bpffs()).unwrap()
    }

    /// Both nodes' counters of an outcome since then.
    fn since(&self, before: &[Counters; 2], outcome: Outcome) -> [u64; 2] {
        [0, 1].map(|node| self.counters(node).since(&before[node], outcome))
    }

    fn both(&self) -> [Counters; 2] {
        [0, 1].map(|node| self.counters(node))
    }

    /// Sends a stream of bytes from one end to the other, which confirms that it has them all.
    fn transfer(&self, to: SocketAddr, sender: Sender, bytes: usize) -> std::io::Result<()> {
        let listener = self.backend.netns().run(|| TcpListener::bind(self.target(to.ip())))?;
        let accepted = std::thread::spawn(move || {
            let (stream, peer) = listener.accept()?;
            let is_client = client_addresses().both().contains(&peer.ip());
            assert!(is_client, "the backend sees {peer}, not the client");
            if sender == Sender::Client { take(stream, bytes) } else { give(stream, bytes) }
        });
        let stream = self.client.netns().run(|| TcpStream::connect_timeout(&to, LIMIT))?;
        let done = if sender == Sender::Client { give(stream, bytes) } else { take(stream, bytes) };
        done.and(accepted.join().unwrap())
    }
}

/// The router has a way to the backend's node that takes less than the wire says.
fn by_router(topology: &Topology, nodes: &[Node; 2]) {
    let (wire, other) = (topology.wire(), &nodes[1]);
    for scope in ["all", "br0"] {
        wire.sysctl(&format!("net/ipv4/conf/{scope}/send_redirects"), "0").unwrap();
    }
    let (v4, v6) = (other.addresses().v4, other.addresses().v6);
    let (pods4, pods6) = (other.pod_net4(), other.pod_net6());
    wire.ip(&format!("route add {pods4} via {v4} mtu lock {ROUTER}\nroute add {pods6} via {v6} mtu lock {ROUTER}"))
        .unwrap();
    nodes[0]
        .namespace()
        .ip(&format!("route add {pods4} via 192.0.2.254\nroute add {pods6} via 2001:db8:1::fe"))
        .unwrap();
}

/// Who sends what is too big.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Client,
    Backend,
}

fn give(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&vec![b'x'; bytes])?;
    stream.read_exact(&mut [0])
}

fn take(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.read_exact(&mut vec![0; bytes])?;
    stream.write_all(b"!")
}

/// A narrow place, and what is learnt of it: of IPv4 and IPv6.
struct Narrow {
    what: &'static str,
    underlay: Underlay,
    sender: Sender,
    learnt: [u32; 2],
    /// Which node counts it, and as what.
    told: (usize, Outcome),
    make: fn(&Scenario),
}

const PLACES: [Narrow; 5] = [
    Narrow {
        what: "the first node's way to the other one",
        underlay: Underlay::Wire,
        sender: Sender::Client,
        learnt: [1_420, 1_400],
        told: (0, Outcome::RefusedTooBig),
        make: |scenario| {
            let (node, other) = (scenario.nodes[0].namespace(), &scenario.nodes[1]);
            let Addresses { v4, v6 } = other.addresses();
            node.ip(&format!("route replace {} via {v4} mtu lock 1440", other.pod_net4())).unwrap();
            node.ip(&format!("route replace {} via {v6} mtu lock 1440", other.pod_net6())).unwrap();
        },
    },
    Narrow {
        what: "an overlay between the nodes",
        underlay: Underlay::Overlay,
        sender: Sender::Client,
        learnt: [external_client::TUNNEL - 20, external_client::TUNNEL - 40],
        told: (0, Outcome::RefusedTooBig),
        make: |_| {},
    },
    Narrow {
        what: "a router between the nodes",
        underlay: Underlay::Router,
        sender: Sender::Client,
        learnt: [ROUTER - 20, ROUTER - 40],
        told: (0, Outcome::IcmpTranslated),
        make: |_| {},
    },
    Narrow {
        what: "the backend's link",
        underlay: Underlay::Wire,
        sender: Sender::Client,
        learnt: [1_300; 2],
        told: (1, Outcome::IcmpTranslated),
        make: |scenario| {
            scenario.nodes[1].namespace().ip(&format!("link set {} mtu 1300", scenario.backend.link())).unwrap();
        },
    },
    Narrow {
        what: "the router's link to the client",
        underlay: Underlay::Wire,
        sender: Sender::Backend,
        learnt: [1_300; 2],
        // By the first node, which has never seen the answers, to the backend's.
        told: (1, Outcome::IcmpTranslated),
        make: |scenario| scenario.topology.wire().ip("link set far0 mtu 1300").unwrap(),
    },
];

/// What a host knows of the way to an address.
fn route(host: &Namespace, to: IpAddr) -> String {
    host.ip_show(&["route", "get", &to.to_string()]).unwrap()
}

#[test]
fn a_sender_learns_of_every_narrow_place_on_the_way_and_back() {
    for Narrow { what, underlay, sender, learnt, told: (node, told), make } in PLACES {
        let scenario = Scenario::new(underlay, &[]);
        make(&scenario);
        for (index, to) in scenario.frontends(SINK, 81).into_iter().enumerate() {
            let before = scenario.both();
            scenario.transfer(to, sender, BYTES).unwrap_or_else(|error| panic!("{what}, {to}: {error}"));
            let line = scenario.counters(node).line_since(&before[node]);
            // The backend always sends to the same client: it has learnt by the first frontend of the family.
            if sender == Sender::Client || index < 2 {
                assert!(scenario.since(&before, told)[node] >= 1, "{what}, {to}: {line}");
            }
            assert!(scenario.since(&before, Outcome::Tunnelled)[0] >= 1, "{what}, {to}");
            let asked = if sender == Sender::Client {
                route(&scenario.client, to.ip())
            } else {
                route(scenario.backend.namespace(), client_addresses().like(to.ip()))
            };
            let mtu = learnt[usize::from(to.is_ipv6())];
            assert!(asked.contains(&format!("mtu {mtu}")), "{what}, {to}: {asked}; {line}");
        }
    }
}

/// Where segments come joined, the outer header's room is taken off each of them: nobody has to send them again.
#[test]
fn joined_segments_leave_in_outer_headers_of_their_own() {
    let scenario = Scenario::new(Underlay::Wire, &["--xdp-mode=off"]);
    set_checksums(&scenario.client, "eth0", Checksums::Partial).unwrap();
    set_checksums(scenario.topology.wire(), &scenario.nodes[0].port(), Checksums::Partial).unwrap();
    for to in scenario.frontends(SINK, 81) {
        scenario.transfer(to, Sender::Client, 10 * BYTES).unwrap_or_else(|error| panic!("{to}: {error}"));
    }
    assert_eq!(scenario.counters(0).get(Outcome::DroppedRewrite), 0);
    assert_eq!(scenario.counters(1).get(Outcome::DroppedRewrite), 0);
}

/// A client sends many datagrams in one piece (`UDP_SEGMENT`), as QUIC does, and the kernel forwards them so. `link`: of the link between the nodes,
/// which carries them joined, or for which the kernel parts them.
fn joined_datagrams_arrive(link: Checksums) {
    const DATAGRAMS: u8 = 20;
    const BURSTS: u8 = 10;
    let scenario = Scenario::new(Underlay::Wire, &["--xdp-mode=off"]);
    set_checksums(&scenario.client, "eth0", Checksums::Partial).unwrap();
    set_checksums(scenario.topology.wire(), &scenario.nodes[0].port(), Checksums::Partial).unwrap();
    set_checksums(scenario.nodes[0].namespace(), "eth0", link).unwrap();
    for to in scenario.frontends(ODD, 54) {
        let before = scenario.both();
        let server = scenario.backend.netns().run(|| UdpSocket::bind(scenario.target(to.ip()))).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let sending = |length: usize| {
            let client = scenario.client.netns().run(|| UdpSocket::bind((client_addresses().like(to.ip()), 0)))?;
            client.connect(to)?;
            let segment = i32::try_from(length).expect("a datagram's length");
            setsockopt(&client, sockopt::UdpGsoSegment, &segment)?;
            std::io::Result::Ok(client)
        };
        // Each fits the client's link, but not the link between the nodes with an outer header. An ICMP error names the MTU to the client.
        let headers = if to.is_ipv4() { 28 } else { 48 };
        let too_long = 1_500 - headers;
        eventually(&format!("{to}: the client learns the MTU"), LIMIT, || {
            sending(too_long).unwrap().send(&vec![b'x'; 3 * too_long]).err()
        });
        let counted = scenario.since(&before, Outcome::RefusedTooBig)[0];
        assert!(counted >= 1, "{to}: {}", scenario.counters(0).line_since(&before[0]));
        // The longest that fit.
        let length = too_long - if to.is_ipv4() { 20 } else { 40 };
        let client = sending(length).unwrap();
        let before = scenario.both();
        for burst in 0..BURSTS {
            let sent: Vec<u8> = (0..DATAGRAMS).flat_map(|index| vec![burst * DATAGRAMS + index; length]).collect();
            client.send(&sent).unwrap();
            let mut room = [0; 2_000];
            for (index, expected) in sent.chunks(length).enumerate() {
                let (got, from) = server.recv_from(&mut room).unwrap_or_else(|error| {
                    let [first, second] = [0, 1].map(|node| scenario.counters(node).line_since(&before[node]));
                    panic!("{to}, {link:?}: burst {burst}, datagram {index}: {error}; {first}; {second}")
                });
                assert!(room[..got] == *expected, "{to}: datagram {index} of {got} bytes");
                assert_eq!(from, client.local_addr().unwrap(), "{to}: the backend sees the client");
            }
        }
        // The first of a connection, and later ones.
        let sent = [Outcome::Tunnelled, Outcome::Forwarded].map(|outcome| scenario.since(&before, outcome)[0]);
        assert_eq!(sent.iter().sum::<u64>(), u64::from(BURSTS), "{to}: they come joined");
        assert_eq!(scenario.since(&before, Outcome::DroppedRewrite), [0, 0]);
    }
}

#[test]
fn joined_datagrams_arrive_by_a_link_that_carries_them_joined() {
    joined_datagrams_arrive(Checksums::Partial);
}

#[test]
fn joined_datagrams_arrive_by_a_link_for_which_the_kernel_parts_them() {
    joined_datagrams_arrive(Checksums::Complete);
}

#[test]
fn datagrams_in_fragments_arrive_whole() {
    let scenario = Scenario::new(Underlay::Overlay, &[]);
    let before = scenario.both();
    for to in scenario.frontends(DNS, 53) {
        for length in [1_440, 4_000, 20_000] {
            let text = "0123456789".repeat(length / 10);
            // The kernel may choose the port of a flow to another frontend: to the backend, both are one tuple.
            let socket = Datagrams::connected(scenario.client.netns(), fresh_port(), to).unwrap();
            socket.set_patience(Duration::from_secs(1)).unwrap();
            // The first one is lost; the host gets an error, and the next one is cut where it is sent.
            let answer = eventually(&format!("{to}, {length} bytes"), LIMIT, || socket.ask(&text).ok());
            assert_eq!(answer.peer, socket.local().unwrap(), "the backend sees the client");
        }
    }
    let [first, second] = scenario.since(&before, Outcome::FragmentFollowed);
    assert!(first >= 1 && second >= first, "{first} sent on, {second} taken out");
    assert_eq!(scenario.since(&before, Outcome::DroppedFragment), [0, 0]);
}

/// A client that is gone by the time of the answer says so: its error comes to the first node, and must find the backend.
#[test]
fn an_error_about_an_answer_finds_the_backend() {
    for is_known in [true, false] {
        let scenario = Scenario::new(Underlay::Wire, &[]);
        for to in scenario.frontends(ODD, 54) {
            let server = scenario.backend.netns().run(|| UdpSocket::bind(scenario.target(to.ip()))).unwrap();
            server.set_read_timeout(Some(LIMIT)).unwrap();
            let client = Datagrams::unconnected(scenario.client.netns(), 0, to).unwrap();
            client.send_at(to, "hello").unwrap();
            let (_, peer) = server.recv_from(&mut [0; 64]).unwrap();
            assert_eq!(peer.ip(), client_addresses().like(to.ip()));
            drop(client);
            if !is_known {
                // As another node would: this one has never seen the flow.
                forget(scenario.agents[0].bpffs());
            }
            server.connect(peer).unwrap();
            let error = eventually("the backend is told", LIMIT, || server.send(b"answer").err());
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
        }
        assert!(scenario.counters(1).get(Outcome::IcmpTranslated) >= 1);
    }
}

/// Empties a node's tables of flows.
fn forget(bpffs: &Path) {
    let tables = Pinned::open(&bpffs.join("ballast/tables")).unwrap();
    for (key, _) in tables.of::<map::HalfOpen<4>>().read().unwrap() {
        tables.of::<map::HalfOpen<4>>().remove(&key).unwrap();
    }
    for (key, _) in tables.of::<map::HalfOpen<16>>().read().unwrap() {
        tables.of::<map::HalfOpen<16>>().remove(&key).unwrap();
    }
}
