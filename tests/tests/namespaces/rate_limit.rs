//! A service with a rate limit: each network of external clients has its share of new flows, by native XDP and by tc. Needs root.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::Protocol;
use lb_tests::external_client::{self, DNS, ExternalClient, client_addresses};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{Addresses, NetNs};

/// New flows in a second, and at once.
const RATE: u64 = 1;
const BURST: u64 = 10;
const ASKED: usize = 40;
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);

/// Of the client's own network of 24 or 56 bits, and of another one.
const NEIGHBOURS: [[&str; 2]; 2] = [["198.51.100.77", "2001:db8:100:1::77"], ["198.51.101.7", "2001:db8:100:100::7"]];

/// From how many of so many new sockets a question was answered. All others were dropped by the limit.
fn answered(beyond: &ExternalClient, netns: &NetNs, from: IpAddr, to: SocketAddr) -> usize {
    let before = beyond.counters();
    let sockets: Vec<UdpSocket> = (0..ASKED).map(|_| netns.run(|| UdpSocket::bind((from, 0))).unwrap()).collect();
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
        socket.send_to(b"hello\n", to).unwrap();
    }
    let mut waiting = sockets;
    eventually("each question is answered or dropped", LIMIT, || {
        let dropped = beyond.counters().since(&before, Outcome::DroppedRateLimit);
        waiting.retain(|socket| socket.recv(&mut [0; 256]).is_err());
        (dropped == waiting.len() as u64).then_some(())
    });
    ASKED - waiting.len()
}

fn limited(subject: &str, mode: &str) {
    let limit = format!("{RATE}/{BURST}");
    let beyond = ExternalClient::with(subject, &[&format!("--xdp-mode={mode}")], |s| s.annotated("rate-limit", &limit));
    let lines =
        NEIGHBOURS.map(|[v4, v6]| format!("address add {v4}/32 dev eth0\naddress add {v6}/128 dev eth0 nodad\n"));
    beyond.client.ip(&lines.concat()).unwrap();
    let routes = NEIGHBOURS.map(|[v4, v6]| {
        let Addresses { v4: via4, v6: via6 } = client_addresses();
        format!("route add {v4}/32 via {via4}\nroute add {v6}/128 via {via6}\n")
    });
    beyond.topology.wire().ip(&routes.concat()).unwrap();
    for to in beyond.frontends(DNS) {
        let at = usize::from(to.is_ipv6());
        let (own, netns) = (client_addresses().like(to.ip()), beyond.client.netns());
        let [neighbour, other]: [IpAddr; 2] = NEIGHBOURS.map(|both| both[at].parse().unwrap());
        // The way to the backend is known once somebody was answered.
        let warm = || {
            let socket = netns.run(|| UdpSocket::bind((other, 0))).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            socket.send_to(b"hello\n", to).unwrap();
            socket.recv(&mut [0; 256]).ok()
        };
        eventually("somebody is answered", LIMIT, warm);
        let (before, start) = (beyond.counters(), Instant::now());
        let same = answered(&beyond, netns, own, to) + answered(&beyond, netns, neighbour, to);
        let most = BURST + RATE * (start.elapsed().as_secs() + 2);
        let line = beyond.counters().line_since(&before);
        println!("{subject}, {to}: {same} of {} of one network, at most {most}; {line}", 2 * ASKED);
        assert!((BURST..=most).contains(&(same as u64)), "{same}, not {BURST} to {most}: {line}");
        let dropped = beyond.counters().since(&before, Outcome::DroppedRateLimit);
        assert_eq!(
            usize::try_from(dropped).unwrap(),
            2 * ASKED - same,
            "what was not answered was dropped by the limit: {line}"
        );
        // Another network has a bucket of its own, TCP another one than UDP.
        assert!(answered(&beyond, netns, other, to) > 0, "another network");
        let mut stream = Stream::connect(netns, beyond.frontends(external_client::HTTP)[at]).unwrap();
        stream.ask("hello").unwrap();
        for _ in 0..3 * BURST {
            stream.ask("the same flow").unwrap();
        }
    }
    let client = beyond.nodes[0].pod("inside").unwrap();
    let inside = external_client::service(&beyond.backend, &beyond.nodes[1]).frontends(Protocol::Udp);
    for to in inside.into_iter().filter(|to| to.port() == 53) {
        let pod = client.addresses().like(to.ip());
        assert_eq!(answered(&beyond, client.netns(), pod, to), ASKED, "a pod has no limit");
    }
}

#[test]
fn by_native_xdp() {
    limited("ratexdp", "native");
}

#[test]
fn by_tc() {
    limited("ratetc", "off");
}
