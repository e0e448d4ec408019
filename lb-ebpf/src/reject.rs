//! Answers in a service's name: TCP RST, ICMP port unreachable. The packet itself becomes the answer and goes back.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::generated::{
    bpf_csum_diff, bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
    bpf_skb_store_bytes,
};
use lb_common::abi::TCP;
use lb_common::checksum;
use lb_common::decide::Packet;
use lb_common::state::tcp_flag;

use crate::parse::{IPV4_HEADER, IPV6_HEADER, Offsets, TCP_HEADER, UDP_HEADER};
use crate::rewrite::Refused;

/// Hop limit of what we make ourselves (RFC 1700's default, as Linux).
const HOPS: u8 = 64;
/// ICMP: destination unreachable, port unreachable (RFC 792).
const ICMP4_PORT_UNREACHABLE: [u8; 2] = [3, 3];
/// ICMPv6: destination unreachable, port unreachable (RFC 4443, section 3.1).
const ICMP6_PORT_UNREACHABLE: [u8; 2] = [1, 4];
const ICMP_HEADER: usize = 8;
/// Where the checksum stands in the headers.
const TCP_CHECKSUM: u32 = 16;
const UDP_CHECKSUM: u32 = 6;
const ICMP4: u8 = 1;
const ICMP6: u8 = 58;

/// Turns the packet into the answer that refuses it.
#[inline(always)]
pub fn answer<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> Result<(), Refused> {
    if packet.key.protocol == TCP { reset(skb, packet, offsets) } else { unreachable(skb, packet, offsets) }
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
    let headers =
        u32::from(segment[12] >> 4) * 4 + if N == 4 { (offsets.transport - offsets.network) as u32 } else { 0 };
    let flags = packet.tcp_flags;
    let control = u32::from(flags & tcp_flag::SYN != 0) + u32::from(flags & tcp_flag::FIN != 0);
    Ok(total.saturating_sub(headers) + control)
}

/// ICMP port unreachable, quoting the network header and the first eight bytes behind it.
#[inline(always)]
fn unreachable<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> Result<(), Refused> {
    let network_length = if N == 4 { IPV4_HEADER } else { IPV6_HEADER };
    // A quotation of an IPv4 header with options would be of variable length; such datagrams are dropped, counted.
    if offsets.transport - offsets.network != network_length {
        return Err(Refused);
    }
    resize(skb, offsets.transport + UDP_HEADER)?;
    let mut message = [0u8; ICMP_HEADER];
    let kind = if N == 4 { ICMP4_PORT_UNREACHABLE } else { ICMP6_PORT_UNREACHABLE };
    message[0..2].copy_from_slice(&kind);
    let quoted = quotation_sum::<N>(skb, offsets)? + completion(skb, offsets.transport as u32);
    let length = ICMP_HEADER + network_length + UDP_HEADER;
    let protocol = if N == 4 { ICMP4 } else { ICMP6 };
    let sum = if N == 4 { 0 } else { pseudo_header(packet, ICMP6, length as u32) };
    let sum = !checksum::fold(checksum::add(sum, &message) + quoted);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // SAFETY: a helper on the program's own packet.
    let grown = unsafe { bpf_skb_adjust_room(skb, (network_length + ICMP_HEADER) as i32, BPF_ADJ_ROOM_MAC, 0) };
    if grown != 0 {
        return Err(Refused);
    }
    network_header(skb, packet, offsets, protocol, length)?;
    store(skb, offsets.network + network_length, &message)
}

/// Whether the packet's checksum is partial: the kernel notes it with the packet, and completes it where the packet leaves over a
/// link that cannot. No field tells, but the kernel's helper leaves the checksum alone then, whatever else changes.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
fn is_partial(skb: *mut __sk_buff, checksum_at: u32) -> bool {
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

/// What the sum of a quoted UDP header grows by when its checksum, if it is a partial one P, is completed to the complement of
/// the header's sum U: from U to U - P + ~U, which is ~P, as U + ~U is nothing. The answer's own checksum covers what is quoted in
/// the end. A function of its own as above.
#[inline(never)]
fn completion(skb: *mut __sk_buff, transport: u32) -> u32 {
    let mut header = [0u8; UDP_HEADER];
    if !is_partial(skb, transport + UDP_CHECKSUM) || load(skb, transport as usize, &mut header).is_err() {
        return 0;
    }
    let partial = u16::from_be_bytes([header[6], header[7]]);
    let sum = checksum::fold(checksum::add(0, &header));
    u32::from(!sum) + u32::from(!partial)
}

/// Sum of the bytes that the message quotes, in host order of 16-bit words.
#[inline(always)]
fn quotation_sum<const N: usize>(skb: *mut __sk_buff, offsets: Offsets) -> Result<u32, Refused> {
    let sum = if N == 4 {
        let mut quoted = [0u8; IPV4_HEADER + UDP_HEADER];
        load(skb, offsets.network, &mut quoted)?;
        sum_of(&mut quoted)
    } else {
        let mut quoted = [0u8; IPV6_HEADER + UDP_HEADER];
        load(skb, offsets.network, &mut quoted)?;
        sum_of(&mut quoted)
    };
    Ok(u32::from(checksum::fold(sum).to_be()))
}

/// Running sum by the kernel's helper, in memory order.
#[inline(always)]
fn sum_of<const L: usize>(bytes: &mut [u8; L]) -> u32 {
    // SAFETY: the array lives on this stack; its length is a multiple of four.
    let sum = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, bytes.as_mut_ptr().cast(), L as u32, 0) };
    u32::from(checksum::fold(sum as u32))
}

/// Sum of the pseudo-header of the answer. It does not change when source and destination trade places.
#[inline(always)]
fn pseudo_header<const N: usize>(packet: &Packet<N>, protocol: u8, length: u32) -> u32 {
    let key = &packet.key;
    checksum::add(checksum::add(u32::from(protocol) + length, &key.src), &key.dst)
}

/// A new network header, from the one who was asked to the one who asked.
#[inline(always)]
fn network_header<const N: usize>(
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

#[inline(always)]
fn resize(skb: *mut __sk_buff, length: usize) -> Result<(), Refused> {
    // SAFETY: a helper on the program's own packet. It also ends segmentation offload: the answer is one packet.
    if unsafe { bpf_skb_change_tail(skb, length as u32, 0) } == 0 { Ok(()) } else { Err(Refused) }
}

#[inline(always)]
fn load<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &mut [u8; L]) -> Result<(), Refused> {
    // SAFETY: the helper checks offset and length against the packet; the array lives on the stack.
    let failed = unsafe { bpf_skb_load_bytes(skb.cast(), offset as u32, bytes.as_mut_ptr().cast(), L as u32) };
    if failed == 0 { Ok(()) } else { Err(Refused) }
}

#[inline(always)]
fn store<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &[u8; L]) -> Result<(), Refused> {
    // SAFETY: as for `load`.
    let failed = unsafe { bpf_skb_store_bytes(skb, offset as u32, bytes.as_ptr().cast(), L as u32, 0) };
    if failed == 0 { Ok(()) } else { Err(Refused) }
}
