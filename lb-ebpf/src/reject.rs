//! Answers in a service's name: TCP RST, SCTP ABORT, ICMP errors. The packet itself becomes the answer and goes back.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_l4_csum_replace;
use lb_common::abi::{SCTP, TCP};
use lb_common::checksum;
use lb_common::crc32c;
use lb_common::decide::Packet;
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag;

use crate::aside::Spot;
use crate::forward::{self, DROP};
use crate::maps::Family;
use crate::masquerade;
use crate::parse::{IPV4_HEADER, IPV6_HEADER, Offsets, TCP_HEADER};
use crate::rewrite::Refused;
use crate::skb::{load, resize, store};
use crate::tables::Kernel;
use crate::tell::{self, LEAST_ABOUT, PORT_UNREACHABLE, about};

/// Hop limit of what we make ourselves (RFC 1700's default, as Linux).
pub const HOPS: u8 = 64;
/// Where the checksum stands in the headers.
pub const TCP_CHECKSUM: u32 = 16;
/// Turns the packet of the scratch record into the answer that refuses it, and sends it back; gives the verdict.
///
/// A *global* function, as the steps are: off the ordinary path's stack.
#[inline(always)]
pub fn answer<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    let verdict = if N == 4 { refuse4(skb, spot, transport) } else { refuse6(skb, spot, transport) };
    if verdict < LEAST_ABOUT { verdict } else { tell::error::<N>(skb, spot, transport, verdict) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refuse4(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    refuse::<4>(skb, Spot::from_number(spot), transport as usize)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn refuse6(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    refuse::<16>(skb, Spot::from_number(spot), transport as usize)
}

#[inline(always)]
fn refuse<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    let packet = &work.packet;
    let offsets = Offsets { network: spot.network, transport };
    let belongs_nowhere =
        matches!(work.verdict.outcome, Outcome::RefusedNoFlow | Outcome::Evicted | Outcome::RefusedLate);
    let done = match packet.key.protocol {
        TCP => reset(skb, packet, offsets),
        SCTP if belongs_nowhere => abort(skb, packet, offsets),
        _ => return about::<N>(PORT_UNREACHABLE, 0),
    };
    if done.is_err() {
        return forward::lost();
    }
    masquerade::home::<N>(skb, spot)
}

/// RST as RFC 9293, section 3.10.7.1: sequence from the acknowledgement, or acknowledging what came.
#[inline(always)]
fn reset<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> Result<(), Refused> {
    let partial = is_partial(skb, offsets.transport as u32 + TCP_CHECKSUM);
    let mut segment = [0u8; TCP_HEADER];
    load(skb, offsets.transport, &mut segment)?;
    let length = segment_length(skb, packet, offsets, &segment)?;
    let key = &packet.key;
    let mut header = [0u8; TCP_HEADER];
    header[0..2].copy_from_slice(&key.dst_port.to_be_bytes());
    header[2..4].copy_from_slice(&key.src_port.to_be_bytes());
    header[12] = (TCP_HEADER as u8 / 4) << 4;
    if packet.tcp_flags & tcp_flag::ACK != 0 {
        header[4..8].copy_from_slice(&[segment[8], segment[9], segment[10], segment[11]]);
        header[13] = tcp_flag::RST;
    } else {
        let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
        header[8..12].copy_from_slice(&sequence.wrapping_add(length).to_be_bytes());
        header[13] = tcp_flag::RST | tcp_flag::ACK;
    }
    let sum = pseudo_header(packet, TCP, TCP_HEADER as u32);
    // Who completes a partial checksum starts from the sum of the pseudo-header alone.
    let sum = if partial { checksum::fold(sum) } else { !checksum::fold(checksum::add(sum, &header)) };
    header[16..18].copy_from_slice(&sum.to_be_bytes());

    let network_length = if N == 4 { IPV4_HEADER } else { IPV6_HEADER };
    resize(skb, offsets.network + network_length + TCP_HEADER)?;
    network_header(skb, packet, offsets, TCP, TCP_HEADER)?;
    store(skb, offsets.network + network_length, &header)
}

/// ABORT of SCTP to a packet that belongs to no association: with its own verification tag, and the T bit that says so (RFC 9260,
/// section 8.4).
#[inline(always)]
fn abort<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> Result<(), Refused> {
    const LENGTH: usize = 16;
    let mut tag = [0u8; 4];
    load(skb, offsets.transport + 4, &mut tag)?;
    let mut answer = [0u8; LENGTH];
    answer[0..2].copy_from_slice(&packet.key.dst_port.to_be_bytes());
    answer[2..4].copy_from_slice(&packet.key.src_port.to_be_bytes());
    answer[4..8].copy_from_slice(&tag);
    // Type ABORT, the T bit, and the chunk's length.
    answer[12..16].copy_from_slice(&[6, 1, 0, 4]);
    let sum = crc32c::full(&answer);
    answer[8..12].copy_from_slice(&sum.to_le_bytes());
    let network_length = if N == 4 { IPV4_HEADER } else { IPV6_HEADER };
    resize(skb, offsets.network + network_length + LENGTH)?;
    network_header(skb, packet, offsets, SCTP, LENGTH)?;
    store(skb, offsets.network + network_length, &answer)
}

/// What the segment occupies in sequence space: its payload, SYN and FIN.
#[inline(always)]
fn segment_length<const N: usize>(
    skb: *mut __sk_buff,
    packet: &Packet<N>,
    offsets: Offsets,
    segment: &[u8; TCP_HEADER],
) -> Result<u32, Refused> {
    let mut total = [0u8; 2];
    load(skb, offsets.network + if N == 4 { 2 } else { 4 }, &mut total)?;
    let total = u32::from(u16::from_be_bytes(total));
    // IPv6 counts its own header out, but not those behind it.
    let network_length = (offsets.transport - offsets.network) as u32 - if N == 4 { 0 } else { IPV6_HEADER as u32 };
    let headers = u32::from(segment[12] >> 4) * 4 + network_length;
    let flags = packet.tcp_flags;
    let control = u32::from(flags & tcp_flag::SYN != 0) + u32::from(flags & tcp_flag::FIN != 0);
    Ok(total.saturating_sub(headers) + control)
}

/// Whether the packet's checksum is partial: the kernel notes it with the packet, and completes it where the packet leaves over a
/// link that cannot. No field tells, but the kernel's helper leaves the checksum alone then, whatever else changes.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn is_partial(skb: *mut __sk_buff, checksum_at: u32) -> bool {
    let mut before = [0u8; 2];
    let mut after = [0u8; 2];
    let at = checksum_at as usize;
    // SAFETY: the helper checks the offset against the packet.
    if load(skb, at, &mut before).is_err() || unsafe { bpf_l4_csum_replace(skb, checksum_at, 0, 1, 2) } != 0 {
        return false;
    }
    let asked = load(skb, at, &mut after);
    // What was read is put back: it may be quoted.
    asked.is_ok() && store(skb, at, &before).is_ok() && before == after
}

/// Sum of the pseudo-header of the answer. It does not change when source and destination trade places.
#[inline(always)]
pub fn pseudo_header<const N: usize>(packet: &Packet<N>, protocol: u8, length: u32) -> u32 {
    let key = &packet.key;
    checksum::add(checksum::add(u32::from(protocol) + length, &key.src), &key.dst)
}

/// A new network header, from the one who was asked to the one who asked.
#[inline(always)]
pub fn network_header<const N: usize>(
    skb: *mut __sk_buff,
    packet: &Packet<N>,
    offsets: Offsets,
    protocol: u8,
    payload: usize,
) -> Result<(), Refused> {
    let key = &packet.key;
    if N == 4 {
        let mut header = [0u8; IPV4_HEADER];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((IPV4_HEADER + payload) as u16).to_be_bytes());
        // Don't fragment: what we make is shorter than any link allows.
        header[6] = 0x40;
        header[8] = HOPS;
        header[9] = protocol;
        header[12..16].copy_from_slice(&[key.dst[0], key.dst[1], key.dst[2], key.dst[3]]);
        header[16..20].copy_from_slice(&[key.src[0], key.src[1], key.src[2], key.src[3]]);
        let sum = !checksum::fold(checksum::add(0, &header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        store(skb, offsets.network, &header)
    } else {
        let mut first = [0u8; 8];
        first[0] = 0x60;
        first[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        first[6] = protocol;
        first[7] = HOPS;
        store(skb, offsets.network, &first)?;
        store(skb, offsets.network + 8, &key.dst)?;
        store(skb, offsets.network + 24, &key.src)
    }
}
