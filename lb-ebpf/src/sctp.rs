//! SCTP: its first chunk as TCP's flags, so that one state machine serves both, and its checksum when ports change.

use aya_ebpf::bindings::__sk_buff;
use lb_common::crc32c;
use lb_common::decide::{Action, Packet, Work};
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

use crate::aside::Spot;
use crate::count::{self, Counter};
use crate::forward::DROP;
use crate::headers::{Headers, Odd, Piece};
use crate::maps::Family;
use crate::parse::IPV6_HEADER;
use crate::rewrite::{End, Refused, ports};
use crate::rewrite_tc::readdress;
use crate::skb::{load, store_summed};
use crate::tables::Kernel;

/// Common header: ports, verification tag, checksum (RFC 9260, section 3.1).
const COMMON: usize = 12;
/// A chunk's type, flags and length, which counts them in; and the initiate tag of an INIT or INIT ACK.
const CHUNK: usize = 4;
const INIT_TAG: usize = 4;
const INIT_LENGTH: usize = 20;
/// Where the checksum stands in the common header.
const CHECKSUM: usize = 8;
/// What the functions here return: done.
pub const DONE: i32 = 0;

/// Chunk types (RFC 9260, section 3.2).
mod chunk {
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
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

/// Writes what the verdict says into the packet of the scratch record: [`DONE`], or the verdict of a packet that is lost. A *global*
/// function, as the steps are.
#[inline(always)]
pub fn rewrite<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    if N == 4 { sctp4(skb, spot, transport) } else { sctp6(skb, spot, transport) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sctp4(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    write::<4>(skb, Spot::from_number(spot), transport as usize)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sctp6(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    write::<16>(skb, Spot::from_number(spot), transport as usize)
}

#[inline(always)]
fn write<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    let end = if work.verdict.action == Action::ToBackend { End::Destination } else { End::Source };
    let (old, new) = ports(work, end);
    let written = write_ports(skb, transport, work, old, new).and_then(|()| readdress(skb, spot.network, work, end));
    if written.is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return DROP;
    }
    DONE
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
        let sum = u32::from_le_bytes(checksum) ^ sctp_difference(changed, u32::from(length));
        store_summed(skb, transport + CHECKSUM, &sum.to_le_bytes())?;
    }
    store_summed(skb, transport, &new)
}

/// [`crc32c::difference`] as a *global* function: its loops are verified once, not on each path that leads to them.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sctp_difference(changed: u32, length: u32) -> u32 {
    crc32c::difference(changed, length as u16)
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
