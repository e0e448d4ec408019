//! SCTP: its first chunk as TCP's flags, so that one state machine serves both, and its checksum when ports change.

use aya_ebpf::bindings::__sk_buff;
use lb_common::crc32c;
use lb_common::decide::{Packet, Work};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

use crate::nat::Refused;
use crate::tc::headers::{Headers, Odd, Piece};
use crate::tc::skb::{load, store_summed};
use lb_common::parse::IPV6_HEADER;

/// Common header: ports, verification tag, checksum (RFC 9260, section 3.1).
const COMMON: usize = 12;
/// A chunk's type, flags and length, which counts them in; and the initiate tag of an INIT or INIT ACK.
const CHUNK: usize = 4;
const INIT_TAG: usize = 4;
const INIT_LENGTH: usize = 20;
/// Where the checksum stands in the common header.
const CHECKSUM: usize = 8;

/// Chunk types (RFC 9260, section 3.2).
mod chunk {
    pub const DATA: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const HEARTBEAT: u8 = 4;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
    /// RFC 8260.
    pub const I_DATA: u8 = 64;
}

/// Reads what the state machine knows as TCP's flags and numbers.
#[inline(always)]
pub fn read<const N: usize>(skb: *mut __sk_buff, headers: &Headers, packet: &mut Packet<N>) -> Result<(), Odd> {
    let mut header = [0u8; COMMON + CHUNK];
    let room = headers.end.saturating_sub(headers.transport);
    if room < header.len() || load(skb, headers.transport, &mut header).is_err() {
        return Err(Odd::Malformed);
    }
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    let fits = length + COMMON <= room || headers.piece == Piece::First;
    let (kind, begins) = (header[12], matches!(header[12], chunk::INIT | chunk::INIT_ACK));
    if length < CHUNK || !fits || (begins && length < INIT_LENGTH) {
        return Err(Odd::Malformed);
    }
    packet.tcp_flags = match kind {
        chunk::INIT => SYN,
        chunk::INIT_ACK => SYN | ACK,
        chunk::ABORT | chunk::SHUTDOWN_COMPLETE => RST | ACK,
        chunk::SHUTDOWN | chunk::SHUTDOWN_ACK => FIN | ACK,
        _ => ACK,
    };
    packet.payload = u32::from(matches!(kind, chunk::DATA | chunk::I_DATA | chunk::HEARTBEAT));
    if begins {
        let mut tag = [0u8; INIT_TAG];
        load(skb, headers.transport + COMMON + CHUNK, &mut tag).map_err(|_| Odd::Malformed)?;
        packet.seq = u32::from_be_bytes(tag);
    }
    // What answers an INIT carries its tag, as what answers a SYN acknowledges its number.
    let tag = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    packet.ack = tag.wrapping_add(1);
    Ok(())
}

/// Writes the ports and brings the checksum along. One that is zero is still to be computed, by the card or the kernel, and stays so.
#[inline(always)]
pub fn write_ports<const N: usize>(
    skb: *mut __sk_buff,
    transport: usize,
    work: &Work<N>,
    old: [u8; 4],
    new: [u8; 4],
) -> Result<(), Refused> {
    if old == new {
        return Ok(());
    }
    let mut checksum = [0u8; 4];
    load(skb, transport + CHECKSUM, &mut checksum)?;
    if checksum != [0; 4] {
        let length = length(skb, transport, work)?;
        let changed = u32::from_le_bytes(old) ^ u32::from_le_bytes(new);
        let sum = u32::from_le_bytes(checksum) ^ crc32c::difference(changed, length);
        store_summed(skb, transport + CHECKSUM, &sum.to_le_bytes())?;
    }
    store_summed(skb, transport, &new)
}

/// How many bytes the checksum covers: the packet by its length field, without its network headers.
#[inline(always)]
fn length<const N: usize>(skb: *mut __sk_buff, transport: usize, work: &Work<N>) -> Result<u16, Refused> {
    // SAFETY: reads the context.
    let network = (unsafe { (*skb).len } - work.packet.length) as usize;
    let mut total = [0u8; 2];
    load(skb, network + if N == 4 { 2 } else { 4 }, &mut total)?;
    let end = network + usize::from(u16::from_be_bytes(total)) + if N == 4 { 0 } else { IPV6_HEADER };
    Ok(end.saturating_sub(transport) as u16)
}
