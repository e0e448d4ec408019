//! The packets: Ethernet, IPv4 or IPv6, TCP or UDP.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};

pub const SYN: u8 = 2;
pub const ACK: u8 = 16;

/// A TCP segment with some data where it is no SYN.
pub fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut tcp = ip(from, to).tcp(from.port(), to.port(), seq, 64_240);
    if flags & SYN != 0 {
        tcp = tcp.syn();
    }
    if flags & ACK != 0 {
        tcp = tcp.ack(ack);
    }
    let data: &[u8] = if flags & SYN == 0 { b"data" } else { b"" };
    let mut bytes = Vec::with_capacity(tcp.size(data.len()));
    tcp.write(&mut bytes, data).expect("a buffer takes every write");
    bytes
}

/// A datagram with some data.
pub fn udp(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let udp = ip(from, to).udp(from.port(), to.port());
    let mut bytes = Vec::with_capacity(udp.size(4));
    udp.write(&mut bytes, b"data").expect("a buffer takes every write");
    bytes
}

fn ip(from: SocketAddr, to: SocketAddr) -> PacketBuilderStep<IpHeaders> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => panic!("{from} and {to} are of two families"),
    }
}
