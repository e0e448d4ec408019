//! The slow way from bytes to tuple: extension headers, fragments, quoted packets, and headers that contradict each other.
//!
//! The ordinary path reads what is ordinary and leaves all else aside, to here.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::FlowKey;

use crate::maps::QUOTE;
use crate::tc::skb::load;
use lb_common::parse::{IPV4_HEADER, IPV6_HEADER};

/// Protocol numbers of ICMP and ICMPv6.
const ICMP4: u8 = 1;
const ICMP6: u8 = 58;

/// Whether this is the protocol number of the family's ICMP.
#[inline(always)]
pub const fn is_icmp<const N: usize>(protocol: u8) -> bool {
    protocol == icmp::<N>()
}

/// The protocol number of the family's ICMP.
#[inline(always)]
pub const fn icmp<const N: usize>() -> u8 {
    if N == 4 { ICMP4 } else { ICMP6 }
}

/// How many extension headers are walked.
const EXTENSIONS: usize = 8;
/// IPv6 extension headers by number (RFC 8200, section 4; RFC 4302).
mod extension {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTHENTICATION: u8 = 51;
    pub const DESTINATION: u8 = 60;
}
/// Longest packet that a length field of 16 bits can tell.
const LONGEST: u32 = 65_535;

/// What the network headers say.
#[derive(Clone, Copy)]
pub struct Headers {
    /// Where the transport header begins.
    pub transport: usize,
    /// Where the packet ends by its own words; of a quoted packet, the end of what is quoted.
    pub end: usize,
    /// As the last header says.
    pub protocol: u8,
    pub piece: Piece,
    /// Of a fragment: the datagram that it belongs to.
    pub id: u32,
    /// IPv6: there are headers behind the fragment header, which only the first fragment has.
    pub more_headers: bool,
}

/// Which piece of a datagram.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    Whole = 0,
    First,
    Later,
}

impl Piece {
    #[inline(always)]
    const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Whole,
            1 => Self::First,
            _ => Self::Later,
        }
    }
}

/// Why no tuple was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Odd {
    /// Not for us to judge.
    Foreign,
    /// Headers that contradict each other.
    Malformed,
}

/// Whose packet is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A packet that ends at this offset.
    Packet(usize),
    /// What an ICMP error quotes of a packet, up to this offset.
    Quoted(usize),
}

/// Reads the network headers at `network`: addresses and protocol go to `key`, its ports become zero.
#[inline(always)]
pub fn network<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    extent: Extent,
    key: &mut FlowKey<N>,
) -> Result<Headers, Odd> {
    key.src_port = 0;
    key.dst_port = 0;
    key.pad = [0; 3];
    if N == 4 { network4(skb, network, extent, key) } else { network6(skb, network, extent, key) }
}

#[inline(always)]
fn network4<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    extent: Extent,
    key: &mut FlowKey<N>,
) -> Result<Headers, Odd> {
    let mut header = [0u8; IPV4_HEADER];
    load(skb, network, &mut header).map_err(|_| Odd::Foreign)?;
    copy(&header, 12, &mut key.src);
    copy(&header, 16, &mut key.dst);
    key.protocol = header[9];
    if header[0] >> 4 != 4 {
        return Err(Odd::Foreign);
    }
    let length = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let end = end(extent, network, total, 0)?;
    if length < IPV4_HEADER || network + length > end {
        return Err(Odd::Malformed);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    Ok(Headers {
        transport: network + length,
        end,
        protocol: header[9],
        // The offset's thirteen bits, and the flag that more follow.
        piece: piece(fragment & 0x1fff != 0, fragment & 0x2000 != 0),
        id: u32::from(u16::from_be_bytes([header[4], header[5]])),
        more_headers: false,
    })
}

#[inline(always)]
fn network6<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    extent: Extent,
    key: &mut FlowKey<N>,
) -> Result<Headers, Odd> {
    let mut header = [0u8; IPV6_HEADER];
    load(skb, network, &mut header).map_err(|_| Odd::Foreign)?;
    copy(&header, 8, &mut key.src);
    copy(&header, 24, &mut key.dst);
    key.protocol = header[6];
    if header[0] >> 4 != 6 {
        return Err(Odd::Foreign);
    }
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut headers = Headers {
        transport: network + IPV6_HEADER,
        end: end(extent, network, payload, IPV6_HEADER)?,
        protocol: header[6],
        piece: Piece::Whole,
        id: 0,
        more_headers: false,
    };
    let Some(room) = QUOTE.get_ptr_mut(0) else { return Err(Odd::Foreign) };
    let room: *mut u32 = room.cast();
    for _ in 0..EXTENSIONS {
        if !extend(skb, &mut headers)? {
            key.protocol = headers.protocol;
            return Ok(headers);
        }
        headers.transport = forget(room, headers.transport as u32) as usize;
        headers.piece = Piece::from_number(forget(room, headers.piece as u32));
        headers.more_headers = forget(room, u32::from(headers.more_headers)) != 0;
    }
    Err(Odd::Malformed)
}

/// Walks over one extension header. `false`: there is none at this place, or none that a later fragment has.
#[inline(always)]
fn extend(skb: *mut __sk_buff, headers: &mut Headers) -> Result<bool, Odd> {
    let kind = headers.protocol;
    let known = [extension::HOP_BY_HOP, extension::ROUTING, extension::AUTHENTICATION, extension::DESTINATION];
    if headers.piece == Piece::Later || (kind != extension::FRAGMENT && !known.contains(&kind)) {
        return Ok(false);
    }
    let mut header = [0u8; 8];
    if headers.transport + header.len() > headers.end || load(skb, headers.transport, &mut header).is_err() {
        return Err(Odd::Malformed);
    }
    headers.protocol = header[0];
    if kind == extension::FRAGMENT {
        let fragment = u16::from_be_bytes([header[2], header[3]]);
        headers.piece = piece(fragment & 0xfff8 != 0, fragment & 1 != 0);
        headers.id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        headers.transport += header.len();
        return Ok(true);
    }
    // Segments left: the destination is not the last one, which the transport's checksum is about.
    if kind == extension::ROUTING && header[3] != 0 {
        return Err(Odd::Foreign);
    }
    headers.more_headers |= headers.piece == Piece::First;
    let units = usize::from(header[1]);
    headers.transport += if kind == extension::AUTHENTICATION { (units + 2) * 4 } else { (units + 1) * 8 };
    if headers.transport > headers.end { Err(Odd::Malformed) } else { Ok(true) }
}

/// The given number, of which the verifier knows nothing: else it would follow every way that led here by itself. `room`: a word of a map's
/// value.
#[inline(always)]
fn forget(room: *mut u32, number: u32) -> u32 {
    // SAFETY: this CPU's own element, aligned to words.
    unsafe {
        room.write_volatile(number);
        room.read_volatile()
    }
}

#[inline(always)]
fn piece(later: bool, more: bool) -> Piece {
    match (later, more) {
        (true, _) => Piece::Later,
        (false, true) => Piece::First,
        (false, false) => Piece::Whole,
    }
}

/// Where a packet ends by its length field, which counts from `network` + `from` on.
#[inline(always)]
fn end(extent: Extent, network: usize, length: usize, from: usize) -> Result<usize, Odd> {
    let end = network + from + length;
    match extent {
        Extent::Quoted(limit) => Ok(end.min(limit)),
        Extent::Packet(limit) if end <= limit => {
            // Packets that the kernel joined beyond what the field can tell have zero there.
            let joined = length == 0 && (limit - network) as u32 > LONGEST;
            Ok(if joined { limit } else { end })
        }
        Extent::Packet(_) => Err(Odd::Malformed),
    }
}

#[inline(always)]
fn copy<const N: usize, const L: usize>(from: &[u8; L], at: usize, to: &mut [u8; N]) {
    let mut i = 0;
    while i < N && at + i < L {
        to[i] = from[at + i];
        i += 1;
    }
}
