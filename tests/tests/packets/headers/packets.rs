//! Packets, byte by byte.

use lb_common::abi::{SCTP, TCP, UDP};
use lb_tests::random::Random;

use super::scenario::{SERVED, address};

const ETHERNET: usize = 14;
/// IPv6 extension headers: hop by hop, routing, fragment, authentication, destination.
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMP4: u8 = 1;
const ICMP6: u8 = 58;

/// What follows the network headers; checksums of TCP and UDP are written with them.
#[derive(Clone, Debug)]
pub struct Transport {
    pub protocol: u8,
    pub bytes: Vec<u8>,
}

/// A network header's two ends, by the last bytes of their addresses.
pub struct Net {
    v6: bool,
    src: u8,
    dst: u8,
}

impl Net {
    pub fn v4(src: u8, dst: u8) -> Self {
        Self { v6: false, src, dst }
    }

    pub fn v6(src: u8, dst: u8) -> Self {
        Self { v6: true, src, dst }
    }

    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// Bytes of an address.
    pub fn address(&self) -> usize {
        if self.v6 { 16 } else { 4 }
    }

    /// An address of this family.
    pub fn to(&self, last: u8) -> Vec<u8> {
        if self.v6 { address::<16>(last).to_vec() } else { address::<4>(last).to_vec() }
    }

    /// Where the transport header begins, if nothing stands between.
    pub fn transport(&self) -> usize {
        if self.v6 { ETHERNET + 40 } else { ETHERNET + 20 }
    }

    /// Where the length field stands.
    pub fn length_at(&self) -> usize {
        if self.v6 { ETHERNET + 4 } else { ETHERNET + 2 }
    }

    /// Where the hop limit stands.
    pub fn hop_limit_at(&self) -> usize {
        if self.v6 { ETHERNET + 7 } else { ETHERNET + 8 }
    }

    /// The packet, nothing between the headers.
    pub fn plain(&self, transport: &Transport) -> Vec<u8> {
        self.behind(&[], transport)
    }

    /// The packet with these extension headers (IPv4: none) between.
    pub fn behind(&self, chain: &[u8], transport: &Transport) -> Vec<u8> {
        let mut body = transport.bytes.clone();
        self.sum(transport.protocol, &mut body);
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let mut between = Vec::new();
        for (index, kind) in chain.iter().enumerate() {
            let next = chain.get(index + 1).copied().unwrap_or(transport.protocol);
            between.extend(extension(*kind, next));
        }
        let length = u16::try_from(between.len() + body.len()).unwrap();
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([chain.first().copied().unwrap_or(transport.protocol), 64]);
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((length + 20).to_be_bytes());
            bytes.extend([0, 1, 0, 0, 64, transport.protocol, 0, 0]);
        }
        bytes.extend(self.to(self.src));
        bytes.extend(self.to(self.dst));
        self.resum(&mut bytes);
        bytes.extend(between);
        bytes.extend(body);
        bytes
    }

    /// Writes the checksum of an IPv4 header.
    pub fn resum(&self, bytes: &mut [u8]) {
        if !self.v6 {
            bytes[24..26].fill(0);
            let sum = !fold(&[&bytes[ETHERNET..ETHERNET + 20]]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
    }

    fn sum(&self, protocol: u8, body: &mut [u8]) {
        let at = match protocol {
            TCP => 16,
            UDP => 6,
            ICMP4 | ICMP6 => 2,
            _ => return,
        };
        body[at..at + 2].fill(0);
        let pseudo = [0, 0, 0, protocol, 0, 0, body.len().to_be_bytes()[6], body.len().to_be_bytes()[7]];
        let (src, dst) = (self.to(self.src), self.to(self.dst));
        let sum = if protocol == ICMP4 { fold(&[body]) } else { fold(&[&pseudo, &src, &dst, body]) };
        body[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
    }
}

/// Whether the checksum of a transport header at `at` of an IPv6 packet is right.
pub fn is_summed(bytes: &[u8], at: usize, protocol: u8) -> bool {
    let body = &bytes[at..];
    let pseudo = [0, 0, 0, protocol, 0, 0, body.len().to_be_bytes()[6], body.len().to_be_bytes()[7]];
    fold(&[&pseudo, &bytes[22..54], body]) == 0xffff
}

/// RFC 1071, not complemented.
fn fold(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Chains of extension headers that a packet may have.
pub fn extensions() -> Vec<Vec<u8>> {
    vec![
        vec![0],
        vec![60],
        vec![43],
        vec![AUTHENTICATION],
        vec![FRAGMENT],
        vec![0, 60, 43, FRAGMENT, AUTHENTICATION, 60],
    ]
}

fn extension(kind: u8, next: u8) -> Vec<u8> {
    match kind {
        // Whole in one: offset 0, no more.
        FRAGMENT => vec![next, 0, 0, 0, 0, 0, 0, 9],
        // Its length counts words of four bytes, less two: next header, length, reserved, index, sequence, value.
        AUTHENTICATION => [[next, 4, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [1; 4], [2; 4], [3; 4]].concat(),
        // Sixteen bytes; of a routing header: no segments left.
        _ => [vec![next, 1, 1, 0], vec![0; 12]].concat(),
    }
}

pub fn tcp((src, dst): (u16, u16), flags: u8) -> Transport {
    let mut bytes = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    Transport { protocol: TCP, bytes }
}

pub fn udp((src, dst): (u16, u16)) -> Transport {
    let mut bytes = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    bytes.extend([0, 13, 0, 0]);
    bytes.extend(b"hello");
    Transport { protocol: UDP, bytes }
}

/// A packet of SCTP with this verification tag, its checksum right.
pub fn sctp((src, dst): (u16, u16), tag: u32, chunks: &[Vec<u8>]) -> Transport {
    let mut bytes = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(chunks.concat());
    let sum = crc32c(&bytes);
    bytes[8..12].copy_from_slice(&sum);
    Transport { protocol: SCTP, bytes }
}

/// The checksum of a packet of SCTP, by its definition.
pub fn crc32c(packet: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for (at, byte) in packet.iter().enumerate() {
        crc ^= if (8..12).contains(&at) { 0 } else { u32::from(*byte) };
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// Chunks of SCTP.
pub struct Chunk;

impl Chunk {
    /// A chunk that says that it has this length, and what it really has.
    pub fn raw(kind: u8, length: u16, bytes: usize) -> Vec<u8> {
        let mut chunk = vec![0; bytes];
        chunk[0] = kind;
        chunk[2..4].copy_from_slice(&length.to_be_bytes());
        chunk
    }

    pub fn init(tag: u32) -> Vec<u8> {
        Self::tagged(1, tag)
    }

    pub fn init_ack(tag: u32) -> Vec<u8> {
        Self::tagged(2, tag)
    }

    fn tagged(kind: u8, tag: u32) -> Vec<u8> {
        let mut chunk = Self::raw(kind, 20, 20);
        chunk[4..8].copy_from_slice(&tag.to_be_bytes());
        chunk
    }

    pub fn data() -> Vec<u8> {
        Self::raw(0, 20, 20)
    }

    /// The acknowledgement of data.
    pub fn sack() -> Vec<u8> {
        Self::raw(3, 16, 16)
    }

    pub fn heartbeat() -> Vec<u8> {
        Self::raw(4, 12, 12)
    }

    pub fn heartbeat_ack() -> Vec<u8> {
        Self::raw(5, 12, 12)
    }
}

/// A whole packet of any kind that the programs know.
pub fn any(random: &mut Random, net: &Net) -> Vec<u8> {
    let flags = *random.of(&[2_u8, 18, 16, 17, 4]);
    let kinds = [1_u8, 2, 0, 6, 7, 8, 14];
    let transport = match random.below(5) {
        0 => tcp(SERVED, flags),
        1 => udp(SERVED),
        2 => sctp(SERVED, 7, &[Chunk::raw(*random.of(&kinds), 20, 20)]),
        3 => icmp(random, net, true),
        _ => icmp(random, net, false),
    };
    let chains = extensions();
    let chain = if net.is_v6() && random.one_in(2) { random.of(&chains).clone() } else { Vec::new() };
    let mut bytes = net.behind(&chain, &transport);
    if !net.is_v6() && random.one_in(4) {
        // A piece of something: more to come, or not the first.
        bytes[20] = *random.of(&[0x20, 0x00]);
        bytes[21] = *random.of(&[0, 3]);
        net.resum(&mut bytes);
    }
    bytes
}

/// An echo request, or an error that quotes what the other end might have sent.
fn icmp(random: &mut Random, net: &Net, is_error: bool) -> Transport {
    let protocol = if net.is_v6() { ICMP6 } else { ICMP4 };
    let kind: [u8; 2] = match (is_error, net.is_v6()) {
        (false, false) => [8, 0],
        (false, true) => [128, 0],
        (true, false) => *random.of(&[[3, 3], [3, 4], [11, 0]]),
        (true, true) => *random.of(&[[1, 4], [2, 0], [3, 0]]),
    };
    let mut bytes = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 20];
    if is_error {
        let quoted = Net { v6: net.v6, src: net.dst, dst: net.src };
        let ports = (SERVED.1, SERVED.0);
        let inner = if random.one_in(2) { tcp(ports, 16) } else { udp(ports) };
        bytes.extend(&quoted.plain(&inner)[ETHERNET..]);
    }
    Transport { protocol, bytes }
}
