//! Packets of any kind with any source, as somebody sends them who may use raw sockets but sees no packets of others.

use std::io::Result;
use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::raw_tcp::Segment;
use crate::topology::NetNs;

/// Protocol numbers of IPv4 and IPv6 in an outer header.
const ENCAPSULATED: [u8; 2] = [4, 41];
/// A fragment header, and its length.
const FRAGMENT: (u8, usize) = (44, 8);
const HEADERS: [usize; 2] = [20, 40];

/// Raw sockets of both families.
#[derive(Debug)]
pub struct Forger([Socket; 2]);

impl Forger {
    pub fn new(netns: &NetNs) -> Result<Self> {
        let socket = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
        netns.run(|| Ok(Self([socket(Domain::IPV4)?, socket(Domain::IPV6)?])))
    }

    /// Sends a whole packet. What the kernel refuses, or has no room for, is not sent: `false`.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> bool {
        let at = SockAddr::from(SocketAddr::new(to, 0));
        self.0[usize::from(to.is_ipv6())].send_to(packet, &at).is_ok()
    }
}

/// Why a forged packet does not arrive at the end that would answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// The transport checksum is wrong.
    Checksum,
    /// It has one hop, or two, to go.
    OneHop,
    TwoHops,
}

impl Flaw {
    pub const ALL: [Self; 4] = [Self::Checksum, Self::None, Self::OneHop, Self::TwoHops];

    /// The packet of TCP or UDP with this flaw. The kernel sets the checksum of an IPv4 header.
    #[must_use]
    pub fn put(self, mut packet: Vec<u8>, is_udp: bool) -> Vec<u8> {
        let is_v6 = packet[0] >> 4 == 6;
        let checksum = HEADERS[usize::from(is_v6)] + if is_udp { 6 } else { 16 };
        match self {
            Self::None => {}
            Self::Checksum => packet[checksum..checksum + 2].iter_mut().for_each(|byte| *byte ^= 0x55),
            Self::OneHop | Self::TwoHops => {
                packet[if is_v6 { 7 } else { 8 }] = if self == Self::OneHop { 1 } else { 2 }
            }
        }
        packet
    }
}

/// A datagram.
pub fn datagram(from: SocketAddr, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = ip(from.ip(), to.ip()).udp(from.port(), to.port());
    builder.write(&mut bytes, data).expect("a buffer takes every write");
    bytes
}

/// An ICMP error of this type and code, whose last word is `word`, from `router` to the sender of `quoted`.
pub fn icmp_error(router: IpAddr, to: IpAddr, kind: (u8, u8), word: u32, quoted: &[u8]) -> Vec<u8> {
    let (mut bytes, word, builder) = (Vec::new(), word.to_be_bytes(), ip(router, to));
    let written = if to.is_ipv4() {
        builder.icmpv4_raw(kind.0, kind.1, word).write(&mut bytes, quoted)
    } else {
        builder.icmpv6_raw(kind.0, kind.1, word).write(&mut bytes, quoted)
    };
    written.expect("a buffer takes every write");
    bytes
}

/// The packet as a fragment: the first one, or one from this multiple of eight bytes on.
pub fn fragment(packet: &[u8], offset: u16, id: u32) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    // More fragments follow the first one.
    if packet[0] >> 4 == 4 {
        let word = offset | if offset == 0 { 0x2000 } else { 0 };
        bytes[4..6].copy_from_slice(&id.to_be_bytes()[2..]);
        bytes[6..8].copy_from_slice(&word.to_be_bytes());
        return bytes;
    }
    let (next, (number, length)) = (packet[6], FRAGMENT);
    let word = offset << 3 | u16::from(offset == 0);
    let [high, low] = word.to_be_bytes();
    let [a, b, c, d] = id.to_be_bytes();
    bytes.splice(HEADERS[1]..HEADERS[1], [next, 0, high, low, a, b, c, d]);
    bytes[6] = number;
    let whole = u16::try_from(packet.len() - HEADERS[1] + length).expect("a short packet");
    bytes[4..6].copy_from_slice(&whole.to_be_bytes());
    bytes
}

/// The packet in an outer header between two hosts.
pub fn encapsulated(from: IpAddr, to: IpAddr, packet: &[u8]) -> Vec<u8> {
    // As a datagram's header says it, but for the protocol.
    let header = datagram(SocketAddr::new(from, 0), SocketAddr::new(to, 0), &[]);
    let is_v6 = usize::from(to.is_ipv6());
    let mut bytes = [&header[..HEADERS[is_v6]], packet].concat();
    let length = u16::try_from(bytes.len() - if is_v6 == 0 { 0 } else { HEADERS[1] }).expect("a short packet");
    let (at, protocol) = if is_v6 == 0 { (2, 9) } else { (4, 6) };
    bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    bytes[protocol] = ENCAPSULATED[is_v6];
    bytes
}

/// A packet of a connection between these ends that an ICMP error may quote.
pub fn quoted(from: SocketAddr, to: SocketAddr, is_udp: bool, seq: u32) -> Vec<u8> {
    if is_udp { datagram(from, to, b"question") } else { Segment::syn(from, to, seq).bytes() }
}

fn ip(from: IpAddr, to: IpAddr) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
        _ => panic!("{from} and {to} are of two families"),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket};

    use super::*;

    #[test]
    fn what_is_forged_is_whole() {
        for [from, to] in [["10.0.0.1:5", "10.0.0.2:80"], ["[fd00::1]:5", "[fd00::2]:80"]] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let quoted = quoted(from, to, true, 0);
            for packet in [
                quoted.clone(),
                icmp_error(to.ip(), from.ip(), (3, 1), 0, &quoted),
                fragment(&quoted, 0, 7),
                fragment(&quoted, 3, 7),
                encapsulated(from.ip(), to.ip(), &quoted),
            ] {
                let sliced = SlicedPacket::from_ip(&packet).unwrap();
                let is_v6 = matches!(sliced.net, Some(NetSlice::Ipv6(_)));
                assert_eq!(is_v6, to.is_ipv6());
            }
        }
    }
}
