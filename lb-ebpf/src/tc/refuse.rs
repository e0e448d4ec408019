//! Answers in a service's name: TCP RST, SCTP ABORT, ICMP errors. The packet itself becomes the answer and goes back.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP};
use lb_common::checksum;
use lb_common::crc32c;
use lb_common::decide::Packet;
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;
use lb_common::state::{opens, tcp_flag};

use crate::counters;
use crate::maps;
use crate::nat::Refused;
use crate::scratch::Unsent;
use crate::tail_call;
use crate::tc::forward::{self, DROP};
use crate::tc::own_packet::{TCP_CHECKSUM, is_partial, network_header, pseudo_header};
use crate::tc::route;
use crate::tc::skb::{load, resize, store};
use lb_common::parse::{IPV4_HEADER, IPV6_HEADER, Offsets, TCP_HEADER};

/// [`TcStage::Refuse`]: turns the packet of the scratch record into the answer that refuses it, and sends it back.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (work, offsets) = (&scratch.work, scratch.offsets());
    let outcome = work.verdict.outcome;
    let belongs_nowhere = matches!(outcome, Outcome::RefusedNoFlow | Outcome::Evicted | Outcome::RefusedLate)
        || (outcome == Outcome::RefusedClientShare && !opens(work.packet.tcp_flags));
    if !counters::may_answer(work.verdict.outcome) {
        return DROP;
    }
    let done = match work.packet.key.protocol {
        TCP => reset(skb, &work.packet, offsets),
        SCTP if belongs_nowhere => abort(skb, &work.packet, offsets),
        _ => {
            scratch.unsent = Unsent::PortUnreachable;
            return tail_call::tc::<N>(skb, TcStage::IcmpError, DROP);
        }
    };
    if done.is_ok() { route::answer(skb, work, scratch.point) } else { forward::lost() }
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
