//! What surrounds the flows of external clients to backends of other nodes: ICMP errors both ways, datagrams in fragments; and what the
//! addresses of services answer to such clients by themselves.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::external_client::{DNS, ExternalClient, HTTP, ODD, external_ip, load_balancer};
use lb_tests::peers::{Datagrams, Stream, eventually, fresh_port};
use lb_tests::ping::pings;
use lb_tests::topology::NetNs;
use socket2::{Domain, Socket, Type};

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);

/// What the backend sees in the client's place: the node's address in the tunnel.
fn masquerade(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { "172.30.0.1" } else { "fd00:30::1" }.parse().unwrap()
}

#[test]
fn errors_find_their_way_to_a_client_and_to_a_backend_of_another_node() {
    let beyond = ExternalClient::new("errors");
    for to in beyond.frontends(ODD) {
        let before = beyond.counters();
        let watch = Errors::open(beyond.client.netns(), to.ip());
        let socket = Datagrams::connected(beyond.client.netns(), 0, to).unwrap();
        let error = socket.ask("hello").expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
        assert_eq!(watch.from(), to.ip(), "the error comes from whom the client talks to");
        let line = beyond.counters().line_since(&before);
        assert!(beyond.counters().since(&before, Outcome::IcmpTranslated) >= 1, "{to}: {line}");

        // The other way: the backend answers a client that has gone.
        let server = beyond.backend.netns().run(|| UdpSocket::bind(beyond.target(to.ip()))).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let client = Datagrams::unconnected(beyond.client.netns(), 0, to).unwrap();
        client.send_at(to, "hello").unwrap();
        let (_, peer) = server.recv_from(&mut [0; 64]).unwrap();
        assert_eq!(peer.ip(), masquerade(to.ip()), "the backend sees an address of the node");
        drop(client);
        server.connect(peer).unwrap();
        // The error arrives behind the datagram that it is about, and a later call returns it.
        let error = eventually("the backend is told", LIMIT, || server.send(b"answer").err());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
    }
}

/// A raw socket that sees the ICMP errors of one family.
struct Errors {
    socket: Socket,
    is_v4: bool,
}

impl Errors {
    fn open(netns: &NetNs, like: IpAddr) -> Self {
        let is_v4 = like.is_ipv4();
        let (domain, protocol) =
            if is_v4 { (Domain::IPV4, socket2::Protocol::ICMPV4) } else { (Domain::IPV6, socket2::Protocol::ICMPV6) };
        let socket = netns.run(|| Socket::new(domain, Type::RAW, Some(protocol))).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, is_v4 }
    }

    /// The sender of the next error that says that a destination is unreachable.
    fn from(&self) -> IpAddr {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "no error");
            let mut room = [MaybeUninit::uninit(); 2048];
            let (length, from) = self.socket.recv_from(&mut room).unwrap();
            // SAFETY: the kernel wrote so many bytes.
            let got: Vec<u8> = room[..length].iter().map(|byte| unsafe { byte.assume_init() }).collect();
            // A raw socket of IPv4 is given the network header, too.
            let kind = if self.is_v4 { got[20] == 3 } else { got[0] == 1 };
            if kind {
                return from.as_socket().unwrap().ip();
            }
        }
    }
}

#[test]
fn large_datagrams_reach_a_backend_of_another_node_whole_and_so_do_their_answers() {
    let beyond = ExternalClient::new("pieces");
    let before = beyond.counters();
    for to in beyond.frontends(DNS) {
        for length in [4_000, 20_000] {
            let text = "0123456789".repeat(length / 10);
            let socket = Datagrams::connected(beyond.client.netns(), 0, to).unwrap();
            socket.set_patience(Duration::from_secs(1)).unwrap();
            // The tunnel is narrower than the client knows at first.
            let answer = eventually(&format!("{to}, {length} bytes"), LIMIT, || socket.ask(&text).ok());
            assert_eq!(answer.peer.ip(), masquerade(to.ip()), "the backend sees an address of the node");
        }
    }
    let after = beyond.counters();
    let line = after.line_since(&before);
    // Of each family at least one datagram of 3 and one of 15 later fragments there and, in pieces that the tunnel takes, back.
    assert!(after.since(&before, Outcome::FragmentFollowed) >= 2 * 2 * (2 + 14), "{line}");
    assert_eq!(after.since(&before, Outcome::DroppedFragment), 0, "{line}");
}

#[test]
fn addresses_of_services_answer_clients_outside_and_a_nodes_own_speaks_for_itself() {
    let beyond = ExternalClient::new("unserved");
    let client = beyond.client.netns();
    for address in load_balancer().both() {
        let before = beyond.counters();
        let error = Stream::connect(client, SocketAddr::new(address, 8081)).expect_err("nobody serves");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "tcp {address}: {error}");
        // TCP's port of the service, but UDP.
        let asked = Datagrams::connected(client, 0, SocketAddr::new(address, 80)).and_then(|s| s.ask("hello"));
        let error = asked.expect_err("nobody serves");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "udp {address}: {error}");
        let after = beyond.counters();
        assert_eq!(after.since(&before, Outcome::RefusedUnserved), 2, "{address}: {}", after.line_since(&before));
    }
    for address in load_balancer().both().into_iter().chain(external_ip().both()) {
        let before = beyond.counters();
        assert!(pings(client, address, 56).unwrap(), "{address} answers");
        assert_eq!(beyond.counters().since(&before, Outcome::EchoReplied), 1, "{address}");
    }
    // The node's own address is its own: it answers for itself, and no port of it is refused in its name.
    let before = beyond.counters();
    for address in beyond.nodes[0].addresses().both() {
        let listener = beyond.nodes[0].netns().run(|| std::net::TcpListener::bind((address, 0))).unwrap();
        let at = listener.local_addr().unwrap();
        client.run(|| std::net::TcpStream::connect_timeout(&at, LIMIT)).unwrap_or_else(|e| panic!("{at}: {e}"));
        drop(listener);
        let error = Stream::connect(client, at).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{at}: {error}");
        assert!(pings(client, address, 56).unwrap(), "{address} answers");
    }
    let after = beyond.counters();
    for outcome in [Outcome::RefusedUnserved, Outcome::EchoReplied] {
        assert_eq!(after.since(&before, outcome), 0, "{}", after.line_since(&before));
    }
}

/// Of a process of the node and an external client that have one port and one backend.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Process,
    Client,
}

impl First {
    /// Begins both, this one first: the process, the client.
    fn begin<A, B>(self, process: impl FnOnce() -> A, client: impl FnOnce() -> B) -> (A, B) {
        match self {
            Self::Process => (process(), client()),
            Self::Client => {
                let client = client();
                (process(), client)
            }
        }
    }
}

#[test]
fn a_process_of_the_node_and_a_client_with_one_port_each_get_their_own_answers() {
    for xdp in ["--xdp-mode=off", "--xdp-mode=native"] {
        let beyond = ExternalClient::with("one-port", &[xdp], |service| service);
        let (host, client) = (beyond.nodes[0].netns(), beyond.client.netns());
        for first in [First::Process, First::Client] {
            for (to, ip) in beyond.frontends(HTTP).into_iter().zip(beyond.backend.addresses().both()) {
                let case = format!("{xdp}, tcp {to}, {first:?} first");
                let port = fresh_port();
                let connect = |netns, to| {
                    let mut stream = Stream::connect_from(netns, port, to, LIMIT).expect(&case);
                    stream.ask("first").expect(&case);
                    stream
                };
                let direct = SocketAddr::new(ip, 8080);
                let (mut process, mut outside) = first.begin(|| connect(host, direct), || connect(client, to));
                for turn in 0..3 {
                    for (who, stream) in [("process", &mut process), ("client", &mut outside)] {
                        stream.ask(&format!("{who} {turn}")).unwrap_or_else(|e| panic!("{case}, {who} {turn}: {e}"));
                    }
                }
            }
            for (to, ip) in beyond.frontends(DNS).into_iter().zip(beyond.backend.addresses().both()) {
                let case = format!("{xdp}, udp {to}, {first:?} first");
                let port = fresh_port();
                let ask = |netns, to| {
                    let socket = Datagrams::unconnected(netns, port, to).expect(&case);
                    socket.ask_at(to, "first").expect(&case);
                    socket
                };
                let direct = SocketAddr::new(ip, 5353);
                let (process, outside) = first.begin(|| ask(host, direct), || ask(client, to));
                for turn in 0..3 {
                    for (who, socket, to) in [("process", &process, direct), ("client", &outside, to)] {
                        let answer = socket.ask_at(to, &format!("{who} {turn}"));
                        answer.unwrap_or_else(|e| panic!("{case}, {who} {turn}: {e}"));
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_backend_sends_unasked_to_a_process_of_the_node_reaches_no_client_with_its_port() {
    let beyond = ExternalClient::new("unasked");
    for to in beyond.frontends(ODD) {
        let (port, direct) = (fresh_port(), beyond.target(to.ip()));
        let server = beyond.backend.netns().run(|| UdpSocket::bind(direct)).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let process = Datagrams::unconnected(beyond.nodes[0].netns(), port, direct).unwrap();
        process.send_at(direct, "process").unwrap();
        let (_, seen) = server.recv_from(&mut [0; 64]).unwrap();
        assert_eq!(seen.port(), port, "{to}");
        let client = Datagrams::unconnected(beyond.client.netns(), port, to).unwrap();
        client.send_at(to, "client").unwrap();
        server.recv_from(&mut [0; 64]).unwrap();
        server.send_to(format!("far {seen} {direct} unasked").as_bytes(), seen).unwrap();
        let (from, answer) = process.receive().unwrap_or_else(|e| panic!("{to}: {e}"));
        assert_eq!((from, &*answer.text), (direct, "unasked"), "{to}");
    }
}
