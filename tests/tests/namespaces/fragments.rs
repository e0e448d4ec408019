//! Datagrams that are larger than a link carries: their later fragments follow the first through a service, both ways.

use std::net::{Ipv4Addr, SocketAddr};

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, UdpHeader};
use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, eventually};
use lb_tests::topology::{Checksums, NetNs, NodeOptions};
use socket2::{Domain, Socket, Type};

/// A text of this length, no two of its parts alike.
fn text(length: usize) -> String {
    let words: Vec<String> = (0..length / 4).map(|word| format!("{word:04x}")).collect();
    let words = words.concat();
    words[..length / 4 * 4].to_owned()
}

#[test]
fn large_datagrams_reach_the_backend_whole_and_so_do_their_answers() {
    let fixtures =
        [(Pods::Routed, Checksums::Partial), (Pods::Bridged, Checksums::Partial), (Pods::Routed, Checksums::Complete)];
    for (pods, pod_checksums) in fixtures {
        let options = NodeOptions { pod_checksums, ..NodeOptions::default() };
        let fixture = Fixture::new("large", pods, 3, options);
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        let before = Counters::read(agent.bpffs()).unwrap();
        for to in service.frontends(Protocol::Udp) {
            for length in [1_400, 1_600, 4_000, 40_000] {
                let socket = Datagrams::connected(fixture.client.netns(), 0, to).unwrap();
                for _ in 0..2 {
                    let answer = socket.ask(&text(length)).unwrap_or_else(|e| panic!("{pods:?} {to} {length}: {e}"));
                    assert_eq!(answer.peer, socket.local().unwrap(), "the backend sees the client's own address");
                }
            }
        }
        let after = Counters::read(agent.bpffs()).unwrap();
        // Of both families two datagrams of 27 later fragments, and their answers.
        assert!(after.since(&before, Outcome::FragmentFollowed) >= 216, "{}", after.line_since(&before));
        assert_eq!(after.since(&before, Outcome::DroppedFragment), 0, "{}", after.line_since(&before));
    }
}

/// A datagram in two fragments.
struct Pieces {
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    id: u16,
    text: String,
}

impl Pieces {
    /// First fragment and later one, as a raw socket takes them.
    fn bytes(&self) -> [Vec<u8>; 2] {
        let payload = self.text.as_bytes();
        let (src, dst) = (self.from.0.octets(), self.to.0.octets());
        let length = u16::try_from(8 + payload.len()).unwrap();
        let mut udp = UdpHeader { source_port: self.from.1, destination_port: self.to.1, length, checksum: 0 };
        udp.checksum = udp.calc_checksum_ipv4_raw(src, dst, payload).unwrap();
        let datagram = [&udp.to_bytes()[..], payload].concat();
        let cut = 64;
        let piece = |part: &[u8], offset: usize| {
            let length = u16::try_from(part.len()).unwrap();
            let mut ip = Ipv4Header::new(length, 64, IpNumber::UDP, src, dst).unwrap();
            ip.identification = self.id;
            ip.dont_fragment = false;
            ip.more_fragments = offset == 0;
            ip.fragment_offset = IpFragOffset::try_new(u16::try_from(offset / 8).unwrap()).unwrap();
            ip.header_checksum = ip.calc_header_checksum();
            [&ip.to_bytes()[..], part].concat()
        };
        [piece(&datagram[..cut], 0), piece(&datagram[cut..], cut)]
    }
}

fn send_raw(netns: &NetNs, to: Ipv4Addr, packets: &[&[u8]]) {
    netns.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(socket2::Protocol::from(libc::IPPROTO_RAW))).unwrap();
        for packet in packets {
            socket.send_to(packet, &SocketAddr::new(to.into(), 0).into()).unwrap();
        }
    });
}

#[test]
fn fragments_of_two_datagrams_may_be_mixed_and_one_before_the_first_is_dropped() {
    let fixture = Fixture::new("mixed", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let client = fixture.client.netns();
    let vip = service.cluster_ips.v4;
    let to = SocketAddr::new(vip.into(), 53);
    let sockets: Vec<Datagrams> = (0..2).map(|_| Datagrams::unconnected(client, 0, to).unwrap()).collect();
    let datagram = |socket: &Datagrams, id: u16| Pieces {
        from: (fixture.client.addresses().v4, socket.local().unwrap().port()),
        to: (vip, 53),
        id,
        text: format!("{id} {}", text(200)),
    };
    let before = Counters::read(agent.bpffs()).unwrap();
    let (one, other) = (datagram(&sockets[0], 7001), datagram(&sockets[1], 7002));
    let ([first1, later1], [first2, later2]) = (one.bytes(), other.bytes());
    send_raw(client, vip, &[&first1, &first2, &later1, &later2]);
    for (socket, sent) in sockets.iter().zip([&one, &other]) {
        let (from, answer) = socket.receive().unwrap();
        assert_eq!((from, &answer.text), (to, &sent.text), "put together at the backend");
    }
    // Nobody knows yet where this one goes.
    let stray = datagram(&sockets[0], 7003);
    let [first, later] = stray.bytes();
    send_raw(client, vip, &[&later, &first]);
    let after = eventually("the stray is dropped", SOON, || {
        let after = Counters::read(agent.bpffs()).unwrap();
        (after.since(&before, Outcome::DroppedFragment) >= 1).then_some(after)
    });
    assert_eq!(after.since(&before, Outcome::DroppedFragment), 1, "{}", after.line_since(&before));
    assert_eq!(after.since(&before, Outcome::FragmentFollowed), 2, "{}", after.line_since(&before));
    // Sent again in order, it arrives: what was lost is one datagram.
    send_raw(client, vip, &[&later]);
    assert_eq!(sockets[0].receive().unwrap().1.text, stray.text);
    // Unrelated fragments go as they come.
    let socket = Datagrams::unconnected(client, 0, to).unwrap();
    let direct = Pieces {
        from: (fixture.client.addresses().v4, socket.local().unwrap().port()),
        to: (fixture.backends[0].addresses().v4, 5353),
        id: 7004,
        text: text(300),
    };
    let [first, later] = direct.bytes();
    send_raw(client, direct.to.0, &[&later, &first]);
    assert_eq!(socket.receive().unwrap().1.text, direct.text);
}
