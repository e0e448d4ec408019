//! ICMP errors of our own, in the name of the address that a packet was sent to. The packet itself becomes the error and goes back.

use core::arch::asm;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::generated::{bpf_csum_diff, bpf_skb_adjust_room, bpf_skb_load_bytes};
use lb_common::abi::{SCTP, UDP};
use lb_common::checksum;
use lb_common::decide::{Action, Packet};
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::fib::LONGEST;
use crate::maps::{self, MOST_QUOTED, QUOTE};
use crate::nat::{Refused, ends};
use crate::outer_header;
use crate::scratch::{Scratch, Unsent};
use crate::tc::forward::{self, DROP, NextHop};
use crate::tc::headers::icmp;
use crate::tc::own_packet::{TCP_CHECKSUM, is_partial, network_header, pseudo_header};
use crate::tc::skb::{load, resize, store};
use crate::tc::{dsr, route, verdict};
use lb_common::parse::{ICMP_HEADER, IPV4_HEADER, IPV6_HEADER, Offsets, UDP_HEADER};

/// What an error says: type and code in ICMP (RFC 792, RFC 1191) and in ICMPv6 (RFC 4443, section 3).
type IcmpTypeCode = [[u8; 2]; 2];
const PORT_UNREACHABLE: IcmpTypeCode = [[3, 3], [1, 4]];
const TOO_BIG: IcmpTypeCode = [[3, 4], [2, 0]];
const TIME_EXCEEDED: IcmpTypeCode = [[11, 0], [3, 0]];
/// The least that a link of either family takes (RFC 791, RFC 8200).
const LEAST_MTU: [u32; 2] = [68, 1280];
/// Where the checksum stands in the header.
const UDP_CHECKSUM: u32 = 6;

/// [`lb_common::stages::TcStage::IcmpError`]: turns the packet of the scratch record into the error that tells its sender why it is not sent
/// on ([`Scratch::unsent`]), and sends it back.
///
/// A sender of IPv4 gets the error also where it allows fragments: no program can make them, and a sender that gets the error makes them itself.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (kind, mtu) = match scratch.unsent {
        Unsent::PortUnreachable => (PORT_UNREACHABLE, 0),
        Unsent::Expired => {
            counters::outcome(Outcome::DroppedHopLimit, Counter::Packet);
            (TIME_EXCEEDED, 0)
        }
        Unsent::TooBigOuter => (TOO_BIG, least_mtu::<N>(scratch.icmp.mtu, outer_header::length::<N>())),
        Unsent::TooBig => match next_mtu(skb, scratch) {
            Some(mtu) => (TOO_BIG, mtu),
            // It has a route by now: the sender tries again.
            None => return forward::dropped(Unsent::TooBig),
        },
    };
    let outcome =
        if scratch.unsent == Unsent::Expired { Outcome::DroppedHopLimit } else { scratch.work.verdict.outcome };
    // A refusal was charged before this program was called.
    if scratch.unsent != Unsent::PortUnreachable && !counters::may_answer(outcome) {
        return DROP;
    }
    if quote(skb, &scratch.work.packet, scratch.offsets(), kind[N / 16], mtu).is_err() {
        return forward::lost();
    }
    route::answer(skb, &scratch.work, scratch.point)
}

/// What the next hop of a packet takes that is too big for it, which is counted; `None`: it takes the packet.
#[inline(always)]
fn next_mtu<const N: usize>(skb: *mut __sk_buff, scratch: &mut Scratch<N>) -> Option<u16> {
    let (offsets, point) = (scratch.offsets(), scratch.point);
    let work = &mut scratch.work;
    let (src, dst) = ends(&work.verdict);
    let is_dsr = work.verdict.action == Action::ToBackend && work.verdict.port == 0;
    let (length, protocol, overhead) = if is_dsr {
        (dsr::wire_length(skb, &work.packet, offsets), outer_header::protocol::<N>(), outer_header::length::<N>())
    } else {
        (forward::wire_length(skb, &work.packet, offsets), work.packet.key.protocol, 0)
    };
    let NextHop::TooBig(mtu) = forward::next_hop(skb, src, dst, protocol, length) else { return None };
    work.verdict.action = Action::Refuse;
    work.verdict.outcome = Outcome::RefusedTooBig;
    verdict::count(skb, work, point);
    Some(least_mtu::<N>(mtu, overhead))
}

/// The MTU that a sender gets: `overhead` bytes are an outer header's.
#[inline(always)]
fn least_mtu<const N: usize>(mtu: u32, overhead: usize) -> u16 {
    // Nobody sends less over IPv6 (RFC 8200, section 5).
    let least = LEAST_MTU[N / 16];
    let mtu = mtu.saturating_sub(overhead as u32);
    let mtu = if mtu < least { least } else { mtu };
    (if mtu > LONGEST { LONGEST } else { mtu }) as u16
}

/// Makes the packet an error that quotes it from its network header on, as much as has room in the scratch record.
#[inline(always)]
fn quote<const N: usize>(
    skb: *mut __sk_buff,
    packet: &Packet<N>,
    offsets: Offsets,
    [kind, code]: [u8; 2],
    mtu: u16,
) -> Result<(), Refused> {
    let network_length = if N == 4 { IPV4_HEADER } else { IPV6_HEADER };
    let mut total = [0u8; 2];
    load(skb, offsets.network + if N == 4 { 2 } else { 4 }, &mut total)?;
    let total = usize::from(u16::from_be_bytes(total)) + if N == 4 { 0 } else { IPV6_HEADER };
    // SAFETY: reads the context. Of what somebody else has quoted there is less.
    let there = (unsafe { (*skb).len } as usize).saturating_sub(offsets.network);
    let total = if total > there { there } else { total };
    // Whole words, without what a link padded.
    let quoted = if total > MOST_QUOTED { MOST_QUOTED } else { total } & !3;
    if quoted < offsets.transport - offsets.network + UDP_HEADER {
        return Err(Refused);
    }
    resize(skb, offsets.network + quoted)?;
    let mut message = [0u8; ICMP_HEADER];
    let [high, low] = mtu.to_be_bytes();
    (message[0], message[1], message[6], message[7]) = (kind, code, high, low);
    let end = offsets.network + quoted;
    let mut sum = quoted_sum(skb, offsets.network, end)?;
    if packet.key.protocol != SCTP {
        let at = if packet.key.protocol == UDP { UDP_CHECKSUM } else { TCP_CHECKSUM };
        sum += completion(skb, offsets.transport as u32, at, end as u32);
    }
    let length = ICMP_HEADER + quoted;
    let protocol = icmp::<N>();
    let pseudo = if N == 4 { 0 } else { pseudo_header(packet, protocol, length as u32) };
    let sum = !checksum::fold(checksum::add(pseudo, &message) + sum);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // SAFETY: a helper on the program's own packet.
    let grown = unsafe { bpf_skb_adjust_room(skb, (network_length + ICMP_HEADER) as i32, BPF_ADJ_ROOM_MAC, 0) };
    if grown != 0 {
        return Err(Refused);
    }
    network_header(skb, packet, offsets, protocol, length)?;
    store(skb, offsets.network + network_length, &message)
}

/// By how much the sum of a quoted packet grows when its checksum, if it is a partial one P, is completed. The checksum becomes the complement of the
/// sum U of the quoted bytes: from U to U - P + ~U, which is ~P, as U + ~U is nothing. The answer's own checksum covers what is quoted in the end. A
/// function of its own as above.
#[inline(never)]
fn completion(skb: *mut __sk_buff, transport: u32, checksum_at: u32, end: u32) -> u32 {
    let mut partial = [0u8; 2];
    let at = transport + checksum_at;
    if !is_partial(skb, at) || load(skb, at as usize, &mut partial).is_err() {
        return 0;
    }
    let Ok(sum) = quoted_sum(skb, transport as usize, end as usize) else { return 0 };
    u32::from(!checksum::fold(sum)) + u32::from(!u16::from_be_bytes(partial))
}

/// Sum of the packet's bytes between two offsets, whole words, in host order of 16-bit words.
#[inline(always)]
fn quoted_sum(skb: *mut __sk_buff, from: usize, end: usize) -> Result<u32, Refused> {
    let Some(room) = QUOTE.get_ptr_mut(0) else { return Err(Refused) };
    let mut length = end.wrapping_sub(from).wrapping_sub(4) as u64;
    // The compiler knows what the verifier does not, and would leave the mask out.
    // SAFETY: moves a number to itself.
    unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
    // Never zero: before Linux 6.4 the verifier learns that from no comparison.
    let length = (length as u32 & MOST_QUOTED as u32) + 4;
    // SAFETY: the room is this CPU's own and as long as the largest `length`, which is a multiple of four.
    let sum = unsafe {
        if bpf_skb_load_bytes(skb.cast(), from as u32, room.cast(), length) != 0 {
            return Err(Refused);
        }
        bpf_csum_diff(core::ptr::null_mut(), 0, room.cast(), length, 0)
    };
    Ok(u32::from(checksum::fold(sum as u32).to_be()))
}
