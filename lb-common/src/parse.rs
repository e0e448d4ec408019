//! From bytes to tuple. The only file that reads raw packet pointers.

use crate::abi::{TCP, UDP};
use crate::decide::Packet;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Where the EtherType stands.
pub const ETHERTYPE: usize = 12;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Length of an IPv4 header without options, of an IPv6 header, and of a TCP header without options.
pub const IPV4_HEADER: usize = 20;
pub const IPV6_HEADER: usize = 40;
pub const TCP_HEADER: usize = 20;
pub const UDP_HEADER: usize = 8;
pub const ICMP_HEADER: usize = 8;
/// Hop limit of what we make ourselves (RFC 1700's default, as Linux).
pub const HOPS: u8 = 64;

/// Where the hop limit stands in the network header.
#[inline(always)]
pub const fn hop_limit_at<const N: usize>() -> usize {
    if N == 4 { 8 } else { 7 }
}

/// The linear part of a packet.
#[derive(Clone, Copy)]
pub struct Bytes {
    pub start: usize,
    pub end: usize,
    /// Of the whole packet, link-layer header included.
    pub length: u32,
}

impl Bytes {
    /// A pointer to a `T` at this offset, if the packet holds it whole.
    #[inline(always)]
    pub fn at<T>(self, offset: usize) -> Option<*mut T> {
        let from = self.start + offset;
        if from + size_of::<T>() > self.end { None } else { Some(from as *mut T) }
    }

    /// Copies an address word by word. `to` must stand at a word's boundary, as the addresses of a key do.
    ///
    /// A load of BPF may be unaligned where the kernel says that the machine's may; the compiler does not know, and would load
    /// and store each byte by itself.
    #[inline(always)]
    pub fn words<const N: usize>(self, offset: usize, to: &mut [u8; N]) -> Option<()> {
        let from: *const u32 = self.at::<[u8; N]>(offset)?.cast();
        let to: *mut u32 = to.as_mut_ptr().cast();
        let mut i = 0;
        while i < N / 4 {
            // SAFETY: `at` compared with the packet's end, and `to` has N bytes.
            unsafe { to.add(i).write(from.add(i).read()) };
            i += 1;
        }
        Some(())
    }

    /// Reads words as they stand in the packet, which may be unaligned: see [`Bytes::words`].
    #[inline(always)]
    fn get<const W: usize>(self, offset: usize) -> Option<[u32; W]> {
        let from: *const u32 = self.at::<[[u8; 4]; W]>(offset)?.cast();
        let mut to = [0; W];
        let mut i = 0;
        while i < W {
            // SAFETY: `at` compared with the packet's end.
            to[i] = unsafe { from.add(i).read() };
            i += 1;
        }
        Some(to)
    }

    /// Reads a word as it stands in the packet, which may be unaligned: see [`Bytes::words`].
    #[inline(always)]
    pub fn word(self, offset: usize) -> Option<u32> {
        self.get(offset).map(|[word]| word)
    }

    #[inline(always)]
    pub fn read<T: Copy>(self, offset: usize) -> Option<T> {
        // SAFETY: `at` compared with the packet's end; packets have no alignment.
        self.at::<T>(offset).map(|from| unsafe { from.read_unaligned() })
    }
}

/// Where the headers of a packet of TCP or UDP begin.
#[derive(Clone, Copy)]
pub struct Offsets {
    pub network: usize,
    pub transport: usize,
}

/// Why a packet is not read here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// The linear part ends within a header that matters: pull it in and try again.
    Short,
    /// No whole packet of TCP or UDP behind a network header of its own, or one that contradicts itself: see `aside`.
    Aside,
}

/// Reads the tuple of a packet whose network header begins at `network`.
#[inline(always)]
pub fn parse<const N: usize>(bytes: Bytes, network: usize, packet: &mut Packet<N>) -> Result<Offsets, Other> {
    if N == 4 { parse4(bytes, network, packet) } else { parse6(bytes, network, packet) }
}

#[inline(always)]
fn parse4<const N: usize>(bytes: Bytes, network: usize, packet: &mut Packet<N>) -> Result<Offsets, Other> {
    // The whole header is within the packet: one comparison.
    bytes.at::<[u8; IPV4_HEADER]>(network).ok_or(Other::Short)?;
    let [first, second, third] = bytes.get(network).ok_or(Other::Short)?;
    let [_, protocol, ..] = third.to_ne_bytes();
    // Version and length of the header, type of service, length of the packet.
    let first = u32::from_be(first);
    let length = (first >> 22 & 0x3c) as usize;
    // The offset's thirteen bits, and the flag that more follow.
    let is_piece = second & u32::to_be(0x3fff) != 0;
    if first >> 28 != 4 || length < IPV4_HEADER || is_piece || (protocol != TCP && protocol != UDP) {
        return Err(Other::Aside);
    }
    let total = first & 0xffff;
    bytes.words(network + 12, &mut packet.key.src).ok_or(Other::Short)?;
    bytes.words(network + 16, &mut packet.key.dst).ok_or(Other::Short)?;
    transport(bytes, network, length, total, protocol, packet)
}

#[inline(always)]
fn parse6<const N: usize>(bytes: Bytes, network: usize, packet: &mut Packet<N>) -> Result<Offsets, Other> {
    bytes.at::<[u8; IPV6_HEADER]>(network).ok_or(Other::Short)?;
    let first: u8 = bytes.read(network).ok_or(Other::Short)?;
    let protocol: u8 = bytes.read(network + 6).ok_or(Other::Short)?;
    if first >> 4 != 6 || (protocol != TCP && protocol != UDP) {
        return Err(Other::Aside);
    }
    let payload: [u8; 2] = bytes.read(network + 4).ok_or(Other::Short)?;
    let total = u32::from(u16::from_be_bytes(payload)) + IPV6_HEADER as u32;
    bytes.words(network + 8, &mut packet.key.src).ok_or(Other::Short)?;
    bytes.words(network + 24, &mut packet.key.dst).ok_or(Other::Short)?;
    transport(bytes, network, IPV6_HEADER, total, protocol, packet)
}

/// `length`: of the network header; `total`: of the packet from there on, by its own words.
#[inline(always)]
fn transport<const N: usize>(
    bytes: Bytes,
    network: usize,
    length: usize,
    total: u32,
    protocol: u8,
    packet: &mut Packet<N>,
) -> Result<Offsets, Other> {
    let transport = network + length;
    // Both ports; of UDP its length and checksum.
    let [ports, second] = bytes.get(transport).ok_or(Other::Short)?;
    let mut numbers = [0, 0];
    let mut tcp_flags = 0;
    let own_length = if protocol == TCP {
        let [seq, ack, third] = bytes.get(transport + 4).ok_or(Other::Short)?;
        let [offset, flags, ..] = third.to_ne_bytes();
        numbers = [seq, ack];
        tcp_flags = flags;
        u32::from(offset >> 4) * 4
    } else {
        u32::from_be(second) >> 16
    };
    let shortest = if protocol == TCP { TCP_HEADER } else { UDP_HEADER } as u32;
    let received = bytes.length.saturating_sub(network as u32);
    if own_length < shortest || length as u32 + own_length > total || total > received {
        return Err(Other::Aside);
    }
    // A link may have padded the frame.
    packet.length = total;
    packet.payload = if protocol == TCP { total - length as u32 - own_length } else { 0 };
    packet.seq = u32::from_be(numbers[0]);
    packet.ack = u32::from_be(numbers[1]);
    packet.tcp_flags = tcp_flags;
    packet.key.src_port = (u32::from_be(ports) >> 16) as u16;
    packet.key.dst_port = u32::from_be(ports) as u16;
    packet.key.protocol = protocol;
    Ok(Offsets { network, transport })
}
