//! The frames: TCP segments of one length.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use etherparse::{IpNumber, PacketBuilder};

use crate::packet::frames::{ACK, SYN};

/// Length of every frame.
pub const FRAME: usize = 136;
/// Known connections that take turns.
pub const FLOWS: u16 = 64;
/// Source port of the first one.
pub const FIRST_PORT: u16 = 2_000;
const ETHERNET: usize = 14;
const TCP: usize = 20;

/// A TCP segment between two hosts, behind link-layer addresses, perhaps in an outer header.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// `SYN`, `ACK`, or both.
    pub flags: u8,
    /// The outer header's addresses.
    pub outer: Option<(IpAddr, IpAddr)>,
    /// Link-layer source and destination.
    pub links: [[u8; 6]; 2],
}

impl Segment {
    /// The segment from another port.
    #[must_use]
    pub fn at_port(self, port: u16) -> Self {
        Self { from: SocketAddr::new(self.from.ip(), port), ..self }
    }

    /// The frame.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let network = if self.from.is_ipv4() { 20 } else { 40 };
        let headers = ETHERNET + network + if self.outer.is_some() { network } else { 0 } + TCP;
        let payload = vec![0; FRAME.checked_sub(headers).context("the headers leave no room")?];
        let [source, destination] = self.links;
        let packet = self.packet(&payload)?;
        let mut bytes = [&destination[..], &source[..]].concat();
        bytes.extend(if self.from.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        match self.outer {
            None => bytes.extend(packet),
            Some((IpAddr::V4(from), IpAddr::V4(to))) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), 64).write(&mut bytes, IpNumber(4), &packet)?;
            }
            Some((IpAddr::V6(from), IpAddr::V6(to))) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), 64).write(&mut bytes, IpNumber(41), &packet)?;
            }
            Some((from, to)) => bail!("{from} and {to} are of two families"),
        }
        ensure!(bytes.len() == FRAME, "a frame of {} bytes, expected {FRAME}", bytes.len());
        Ok(bytes)
    }

    fn packet(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let ip = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
            (from, to) => bail!("{from} and {to} are of two families"),
        };
        // The client begins at 1,000, the backend at 9,000: each acknowledges the other.
        let sequence = match (self.flags & SYN != 0, self.flags & ACK != 0) {
            (true, false) => 1_000,
            (true, true) => 9_000,
            (false, _) => 1_001,
        };
        let mut tcp = ip.tcp(self.from.port(), self.to.port(), sequence, 64_240);
        if self.flags & SYN != 0 {
            tcp = tcp.syn();
        }
        if self.flags & ACK != 0 {
            tcp = tcp.ack(if self.flags & SYN == 0 { 9_001 } else { 1_001 });
        }
        let mut bytes = Vec::with_capacity(tcp.size(payload.len()));
        tcp.write(&mut bytes, payload)?;
        Ok(bytes)
    }
}

/// The addresses and ports of a frame without an outer header.
pub fn ends(frame: &[u8]) -> Result<[SocketAddr; 2]> {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ethernet(frame).context("no packet came out")?;
    let [from, to]: [IpAddr; 2] = match sliced.net {
        Some(NetSlice::Ipv4(ip)) => [ip.header().source_addr().into(), ip.header().destination_addr().into()],
        Some(NetSlice::Ipv6(ip)) => [ip.header().source_addr().into(), ip.header().destination_addr().into()],
        _ => bail!("no IP came out"),
    };
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { bail!("no TCP came out") };
    Ok([SocketAddr::new(from, tcp.source_port()), SocketAddr::new(to, tcp.destination_port())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_back() {
        let [from, to] = ["192.0.2.1:2000", "192.0.2.2:80"].map(|address| address.parse().expect("written"));
        let one = Segment { from, to, flags: ACK, outer: None, links: [[2; 6], [4; 6]] };
        assert_eq!(ends(&one.bytes().expect("a frame")).expect("TCP"), [one.from, one.to]);
    }
}
