//! What is sent to an address of services and served by nothing never leaves by the default route: not refused ports, not strays, not
//! other protocols. Needs root and BPF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{External, Manifest};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::eventually;
use lb_tests::topology::{NodeOptions, Place};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket};
use socket2::{Domain, Protocol, Socket, Type};

const GRE: i32 = 47;
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);

/// Everything that arrives at the gateway of all hosts.
struct Gateway {
    socket: OwnedFd,
    link: usize,
}

impl Gateway {
    fn watch(fixture: &Fixture) -> Self {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        fixture.topology.wire().place().run(|| Self {
            socket: socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll).unwrap(),
            link: if_nametoindex("br0").unwrap() as usize,
        })
    }

    /// Destinations and protocols of what has come since the last call.
    fn seen(&self) -> Vec<(IpAddr, i32)> {
        let mut seen = Vec::new();
        let mut packet = [0u8; 128];
        while let Ok((_, Some(from))) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut packet) {
            if from.ifindex() != self.link {
                continue;
            }
            let destination4: [u8; 4] = packet[16..20].try_into().unwrap();
            let destination6: [u8; 16] = packet[24..40].try_into().unwrap();
            match packet[0] >> 4 {
                4 => seen.push((Ipv4Addr::from(destination4).into(), i32::from(packet[9]))),
                6 => seen.push((Ipv6Addr::from(destination6).into(), i32::from(packet[6]))),
                _ => {}
            }
        }
        seen
    }
}

/// Sends this as the payload of a packet of the protocol.
fn send(from: &Place, to: IpAddr, protocol: i32, payload: &[u8]) {
    from.run(|| {
        let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol))).unwrap();
        match socket.send_to(payload, &SocketAddr::new(to, 0).into()) {
            // The node's own packet, dropped on its way out.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            sent => assert_eq!(sent.unwrap(), payload.len()),
        }
    });
}

/// A TCP header from port 4000 to port 81, which nobody serves, with these flags.
fn segment(flags: u8) -> [u8; 20] {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&[0x0f, 0xa0, 0, 81]);
    (header[12], header[13]) = (0x50, flags);
    header
}

/// One of each: protocol and payload. Nothing at the address is for any of them.
fn strays(to: IpAddr) -> Vec<(i32, Vec<u8>)> {
    const ACK: u8 = 0x10;
    const RST: u8 = 0x04;
    let datagram = [0x0f, 0xa0, 0, 81, 0, 8, 0, 0];
    // A timestamp request (RFC 792), an unassigned type; then an error that quotes nothing.
    let (icmp, other, error) = if to.is_ipv4() { (libc::IPPROTO_ICMP, 13, 3) } else { (libc::IPPROTO_ICMPV6, 200, 1) };
    vec![
        (libc::IPPROTO_TCP, segment(ACK).to_vec()),
        (libc::IPPROTO_TCP, segment(RST).to_vec()),
        (libc::IPPROTO_UDP, datagram.to_vec()),
        (GRE, vec![0; 8]),
        (icmp, [&[other, 0, 0, 0], &[0; 16][..]].concat()),
        (icmp, [&[error, 1, 0, 0], &[0; 4][..]].concat()),
    ]
}

fn addresses(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|text| text.parse().unwrap())
}

#[test]
fn nothing_that_is_sent_to_an_address_of_services_goes_on_to_the_router() {
    let fixture = Fixture::new("noloop", Pods::Routed, 1, NodeOptions::default());
    let outside = fixture.topology.outside("outside", &fixture.node).unwrap();
    let (balanced, external) =
        (addresses(["198.51.100.10", "2001:db8:5::10"]), addresses(["203.0.113.7", "2001:db8:7::7"]));
    let node = fixture.node.addresses();
    for address in balanced.iter().chain(&external) {
        outside.namespace().ip(&format!("route add {address} via {}", node.like(*address))).unwrap();
    }
    let own = External { external_ips: external.to_vec(), load_balancer_ips: balanced.to_vec(), ..External::default() };
    let service = fixture.web().with(own);
    let cluster = service.cluster_ips.both();
    let agent = fixture.agent(&Manifest::of([service]), &["--external-ips", "on"]);
    let gateway = Gateway::watch(&fixture);

    let mut sent = 0;
    let before = Counters::read(agent.bpffs()).unwrap();
    let senders = [(outside.place(), true), (fixture.client.place(), false), (fixture.node.place(), false)];
    for (from, is_outside) in senders {
        let own: Vec<IpAddr> =
            cluster.into_iter().chain(balanced).chain(external.into_iter().filter(|_| is_outside)).collect();
        for (to, (protocol, payload)) in
            own.iter().flat_map(|to| strays(*to).into_iter().map(move |stray| (*to, stray)))
        {
            send(from, to, protocol, &payload);
            sent += 1;
        }
    }
    let refused = || {
        let after = Counters::read(agent.bpffs()).unwrap();
        (after.since(&before, Outcome::RefusedUnserved), after.line_since(&before))
    };
    eventually("all are refused", LIMIT, || (refused().0 >= sent).then_some(()));
    assert_eq!(refused().0, sent, "{}", refused().1);
    let ours: Vec<IpAddr> = cluster.into_iter().chain(balanced).chain(external).collect();
    let seen = gateway.seen();
    let gone: Vec<_> = seen.iter().filter(|(to, _)| ours.contains(to)).collect();
    assert!(gone.is_empty(), "{gone:?}");

    // What a pod sends to another port of an external IP may be for whoever has the address; and the watch is awake.
    for to in external {
        send(fixture.client.place(), to, GRE, &[0; 8]);
        eventually("it went on", LIMIT, || gateway.seen().contains(&(to, GRE)).then_some(()));
    }
}
