//! Packets that are larger than the way to a backend of another node takes, or the way back: the sender learns of it, whichever hop drops them. And
//! packets that have come too far.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::external_client::{DNS, ExternalClient, ODD, SINK, TUNNEL, client_addresses};
use lb_tests::peers::{Datagrams, eventually};
use lb_tests::topology::{Namespace, NodeOptions};

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);
const BYTES: usize = 300_000;

/// Who sends what is too big.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Client,
    Backend,
}

/// Sends a stream of bytes from one end to the other, which confirms that it has them all.
fn transfer(beyond: &ExternalClient, to: SocketAddr, sender: Sender) -> std::io::Result<()> {
    let listener = beyond.backend.netns().run(|| TcpListener::bind(beyond.target(to.ip())))?;
    let accepted = std::thread::spawn(move || {
        let (stream, _) = listener.accept()?;
        if sender == Sender::Client { take(stream) } else { give(stream) }
    });
    let stream = beyond.client.netns().run(|| TcpStream::connect_timeout(&to, LIMIT))?;
    let done = if sender == Sender::Client { give(stream) } else { take(stream) };
    done.and(accepted.join().unwrap())
}

fn give(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&vec![b'x'; BYTES])?;
    stream.read_exact(&mut [0])
}

fn take(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.read_exact(&mut vec![0; BYTES])?;
    stream.write_all(b"!")
}

/// A narrow place on the way. It stays while others of the same sender are tried after it, which are narrower.
struct Narrow {
    what: &'static str,
    sender: Sender,
    mtu: u32,
    /// The hop that drops the packet: this node, or a router whose error this node translates.
    told_as: Outcome,
    make: fn(&ExternalClient),
}

const PLACES: [Narrow; 4] = [
    Narrow {
        what: "this node's tunnel to the backend",
        sender: Sender::Client,
        mtu: TUNNEL,
        told_as: Outcome::RefusedTooBig,
        make: |_| {},
    },
    Narrow {
        what: "the backend's link at the other node",
        sender: Sender::Client,
        mtu: 1_300,
        told_as: Outcome::IcmpTranslated,
        make: |beyond| {
            beyond.nodes[1].namespace().ip(&format!("link set {} mtu 1300", beyond.backend.link())).unwrap();
        },
    },
    Narrow {
        what: "the router's link to the client",
        sender: Sender::Backend,
        mtu: 1_300,
        told_as: Outcome::IcmpTranslated,
        make: |beyond| beyond.topology.wire().ip("link set far0 mtu 1300").unwrap(),
    },
    Narrow {
        what: "this node's way to the client",
        sender: Sender::Backend,
        mtu: 1_290,
        told_as: Outcome::RefusedTooBig,
        make: |beyond| {
            let node = beyond.nodes[0].namespace();
            node.ip("route add 198.51.100.0/24 via 192.0.2.254 mtu lock 1290").unwrap();
            node.ip("route add 2001:db8:100::/64 via 2001:db8:1::fe mtu lock 1290").unwrap();
        },
    },
];

/// What a host knows of the way to an address.
fn route(host: &Namespace, to: std::net::IpAddr) -> String {
    host.ip_show(&["route", "get", &to.to_string()]).unwrap()
}

#[test]
fn a_sender_learns_of_every_narrow_place_on_the_way_to_a_backend_of_another_node_and_back() {
    every_narrow_place_is_told("narrow", NodeOptions { rp_filter: 2, ..NodeOptions::default() });
}

/// On nodes with these options.
pub fn every_narrow_place_is_told(subject: &str, options: NodeOptions) {
    // What one end has learnt it tells the other as its segment size: each has a network of its own.
    let network = |_| ExternalClient::of(subject, options, &[], |service| service);
    let [client, backend] = [Sender::Client, Sender::Backend].map(network);
    for Narrow { what, sender, mtu, told_as, make } in PLACES {
        let beyond = if sender == Sender::Client { &client } else { &backend };
        make(beyond);
        for to in beyond.frontends(SINK) {
            let before = beyond.counters();
            transfer(beyond, to, sender).unwrap_or_else(|error| panic!("{what}, {to}: {error}"));
            let after = beyond.counters();
            let line = after.line_since(&before);
            assert!(after.since(&before, told_as) >= 1, "{what}, {to}: {line}");
            assert!(after.since(&before, Outcome::Masqueraded) >= 1, "{what}, {to}: {line}");
            let learnt = if sender == Sender::Client {
                route(&beyond.client, to.ip())
            } else {
                let peer = if to.is_ipv4() { "172.30.0.1" } else { "fd00:30::1" };
                route(beyond.backend.namespace(), peer.parse().unwrap())
            };
            assert!(learnt.contains(&format!("mtu {mtu}")), "{what}, {to}: {learnt}; {line}");
        }
    }
}

/// Datagrams that were sent in one piece, and those that were sent in fragments, which nothing on the way may cut further.
#[test]
fn a_sender_of_datagrams_makes_them_smaller_once_it_knows() {
    let beyond = ExternalClient::new("datagrams");
    for to in beyond.frontends(DNS) {
        for length in [1_440, 4_000] {
            let before = beyond.counters();
            let text = "0123456789".repeat(length / 10);
            let socket = Datagrams::connected(beyond.client.netns(), 0, to).unwrap();
            socket.set_patience(Duration::from_millis(300)).unwrap();
            // The first one is lost; the socket gets an error, and the next one is cut where it is sent.
            eventually(&format!("{to}, {length} bytes"), LIMIT, || socket.ask(&text).ok());
            let learnt = route(&beyond.client, to.ip());
            assert!(learnt.contains(&format!("mtu {TUNNEL}")), "{to}: {learnt}");
            let after = beyond.counters();
            assert!(after.since(&before, Outcome::FragmentFollowed) >= 1, "{to}: {}", after.line_since(&before));
        }
        assert!(beyond.counters().get(Outcome::RefusedTooBig) >= 1);
    }
}

/// As `traceroute` asks: a datagram whose last hop the node is.
#[test]
fn a_packet_that_has_come_too_far_is_answered_in_the_services_name() {
    let beyond = ExternalClient::new("hops");
    for to in beyond.frontends(ODD) {
        let before = beyond.counters();
        let error = beyond.client.netns().run(|| {
            let own = SocketAddr::new(client_addresses().like(to.ip()), 0);
            let socket = std::net::UdpSocket::bind(own).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket.connect(to).unwrap();
            // Two hops: the router's and the node's own.
            let (level, hops, errors) = if to.is_ipv4() {
                (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_RECVERR)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_RECVERR)
            };
            for (option, value) in [(hops, 2), (errors, 1)] {
                set(&socket, level, option, value);
            }
            socket.send(b"hello").unwrap();
            socket.recv(&mut [0; 16]).expect_err("nobody answers")
        });
        assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{to}: {error}");
        let after = beyond.counters();
        assert_eq!(after.since(&before, Outcome::DroppedHopLimit), 1, "{to}: {}", after.line_since(&before));
    }
}

fn set(socket: &std::net::UdpSocket, level: i32, option: i32, value: i32) {
    // SAFETY: a live socket, and a value of the size that is said.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
