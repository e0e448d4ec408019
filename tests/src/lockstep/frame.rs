//! Packets to bytes and back, without checksums (the oracle checks those).

use lb_common::abi::{FlowKey, TCP, UDP};
use lb_common::decide::Packet;

/// Length of an Ethernet header.
const ETHERNET: usize = 14;

/// An Ethernet frame with this packet.
pub fn bytes<const N: usize>(packet: &Packet<N>) -> Vec<u8> {
    let key = &packet.key;
    let mut transport = Vec::with_capacity(20);
    transport.extend(key.src_port.to_be_bytes());
    transport.extend(key.dst_port.to_be_bytes());
    if key.protocol == TCP {
        transport.extend(packet.seq.to_be_bytes());
        transport.extend(packet.ack.to_be_bytes());
        transport.extend([0x50, packet.tcp_flags, 0x10, 0, 0x12, 0x34, 0, 0]);
    } else {
        transport.extend([0, 8, 0x12, 0x34]);
    }
    let length = u16::try_from(transport.len()).expect("short");
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if N == 4 {
        bytes.extend([0x08, 0, 0x45, 0]);
        bytes.extend((20 + length).to_be_bytes());
        bytes.extend([0x12, 0x34, 0x40, 0, 64, key.protocol, 0x12, 0x34]);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([key.protocol, 64]);
    }
    bytes.extend(key.src);
    bytes.extend(key.dst);
    bytes.extend(transport);
    bytes
}

/// Source and destination.
pub type Ends<const N: usize> = ([u8; N], [u8; N]);

/// The addresses of the outer header of a frame, and the frame without it.
pub fn opened<const N: usize>(bytes: &[u8]) -> Option<(Ends<N>, Vec<u8>)> {
    let (protocol, inside, addresses, length) =
        if N == 4 { (ETHERNET + 9, 4, ETHERNET + 12, 20) } else { (ETHERNET + 6, 41, ETHERNET + 8, 40) };
    (*bytes.get(protocol)? == inside).then_some(())?;
    let src = bytes.get(addresses..addresses + N)?.try_into().ok()?;
    let dst = bytes.get(addresses + N..addresses + 2 * N)?.try_into().ok()?;
    Some(((src, dst), [bytes.get(..ETHERNET)?, bytes.get(ETHERNET + length..)?].concat()))
}

/// The tuple in a frame that [`bytes`] made or a program rewrote.
pub fn key<const N: usize>(bytes: &[u8]) -> Option<FlowKey<N>> {
    let (protocol, addresses) = if N == 4 { (ETHERNET + 9, ETHERNET + 12) } else { (ETHERNET + 6, ETHERNET + 8) };
    let ports = addresses + 2 * N;
    let port = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let protocol = *bytes.get(protocol)?;
    (protocol == TCP || protocol == UDP).then_some(())?;
    Some(FlowKey {
        src: bytes.get(addresses..addresses + N)?.try_into().ok()?,
        dst: bytes.get(addresses + N..ports)?.try_into().ok()?,
        src_port: port(ports)?,
        dst_port: port(ports + 2)?,
        protocol,
        pad: [0; 3],
    })
}
