//! ICMP errors of our own, in the name of the address that a packet was sent to. The packet itself becomes the error and goes back.

use core::arch::asm;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::generated::{bpf_csum_diff, bpf_skb_adjust_room, bpf_skb_load_bytes};
use lb_common::abi::{SCTP, UDP};
use lb_common::checksum;
use lb_common::decide::{Action, Packet};
use lb_common::outcome::Outcome;

use crate::aside::{ICMP4, ICMP6, Spot};
use crate::count::{self, Counter};
use crate::forward::{self, DROP};
use crate::icmp::ICMP_HEADER;
use crate::maps::{Family, MOST_QUOTED, QUOTE};
use crate::masquerade;
use crate::parse::{IPV4_HEADER, IPV6_HEADER, Offsets, UDP_HEADER};
use crate::reject::{TCP_CHECKSUM, is_partial, network_header, pseudo_header};
use crate::rewrite::Refused;
use crate::skb::{load, resize, store};
use crate::tables::Kernel;
use crate::tunnel;

/// What an error says: its type and code in ICMP (RFC 792, RFC 1191) and in ICMPv6 (RFC 4443, section 3).
pub type Kind = [[u8; 2]; 2];
pub const PORT_UNREACHABLE: Kind = [[3, 3], [1, 4]];
const TOO_BIG: Kind = [[3, 4], [2, 0]];
const TIME_EXCEEDED: Kind = [[11, 0], [3, 0]];
/// The least that a way of either family takes (RFC 791, RFC 8200).
const LEAST_MTU4: u32 = 68;
const LEAST_MTU6: u32 = 1280;
/// Where the checksum stands in the header.
const UDP_CHECKSUM: u32 = 6;

/// An error as a number that crosses the border between two functions of the programs: type, code and MTU. No verdict is as large as
/// [`LEAST_ABOUT`].
#[inline(always)]
pub const fn about<const N: usize>(kind: Kind, mtu: u16) -> i32 {
    let [kind, code] = kind[if N == 4 { 0 } else { 1 }];
    let [high, low] = mtu.to_be_bytes();
    i32::from_be_bytes([kind, code, high, low])
}
pub const LEAST_ABOUT: i32 = 1 << 16;

/// Turns the packet of the scratch record into the error that [`about`] names, and sends it back; gives the verdict. A *global* function,
/// as the steps are.
#[inline(always)]
pub fn error<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32, about: i32) -> i32 {
    if N == 4 { error4(skb, spot, transport, about) } else { error6(skb, spot, transport, about) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn error4(skb: *mut __sk_buff, spot: u32, transport: u32, about: i32) -> i32 {
    quote_and_send::<4>(skb, Spot::from_number(spot), transport as usize, about)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn error6(skb: *mut __sk_buff, spot: u32, transport: u32, about: i32) -> i32 {
    quote_and_send::<16>(skb, Spot::from_number(spot), transport as usize, about)
}

#[inline(always)]
fn quote_and_send<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize, about: i32) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    let offsets = Offsets { network: spot.network, transport };
    if quote(skb, &work.packet, offsets, about).is_err() {
        return forward::lost();
    }
    masquerade::home::<N>(skb, spot)
}

/// Tells the sender of the packet of the scratch record why it is not sent on; gives the verdict. `why`: [`forward::TOO_BIG`] or
/// [`forward::EXPIRED`].
///
/// A sender of IPv4 is told also where it allows fragments: no program can make them, and who hears of it makes them itself.
#[inline(always)]
pub fn unsent<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32, why: i32) -> i32 {
    let verdict = if N == 4 { unsent4(skb, spot, transport, why) } else { unsent6(skb, spot, transport, why) };
    if verdict < LEAST_ABOUT { verdict } else { error::<N>(skb, spot, transport, verdict) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unsent4(skb: *mut __sk_buff, spot: u32, transport: u32, why: i32) -> i32 {
    reason::<4>(skb, Spot::from_number(spot), transport as usize, why)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unsent6(skb: *mut __sk_buff, spot: u32, transport: u32, why: i32) -> i32 {
    reason::<16>(skb, Spot::from_number(spot), transport as usize, why)
}

/// Counts the packet, and gives what [`about`] says of it; or a verdict.
#[inline(always)]
fn reason<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize, why: i32) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    if why == forward::EXPIRED {
        count::outcome(Outcome::DroppedHopLimit, Counter::Packet);
        return about::<N>(TIME_EXCEEDED, 0);
    }
    let (src, dst) = masquerade::ends(&work.verdict);
    let offsets = Offsets { network: spot.network, transport };
    let is_whole = work.verdict.action == Action::ToBackend && work.verdict.port == 0;
    let (length, protocol, overhead) = if is_whole {
        (tunnel::wire_length(skb, &work.packet, offsets), tunnel::inside::<N>(), tunnel::overhead::<N>())
    } else {
        (forward::wire_length(skb, &work.packet, offsets), work.packet.key.protocol, 0)
    };
    let next = forward::next(skb, src, dst, protocol, length);
    // It has a way by now: the sender tries again.
    if next >= 0 {
        return forward::dropped(why);
    }
    work.verdict.action = Action::Refuse;
    work.verdict.outcome = Outcome::RefusedTooBig;
    // SAFETY: reads the context.
    count::packet(work, spot.id, unsafe { (*skb).ifindex }, work.packet.length);
    too_big::<N>(next.unsigned_abs(), overhead)
}

/// What [`about`] says of a way that takes so many bytes, `overhead` of which are an outer header's.
#[inline(always)]
pub fn too_big<const N: usize>(mtu: u32, overhead: usize) -> i32 {
    // Nobody sends less over IPv6 (RFC 8200, section 5).
    let least = if N == 4 { LEAST_MTU4 } else { LEAST_MTU6 };
    let mtu = mtu.saturating_sub(overhead as u32);
    about::<N>(
        TOO_BIG,
        if mtu < least {
            least
        } else if mtu > forward::LONGEST {
            forward::LONGEST
        } else {
            mtu
        } as u16,
    )
}

/// Makes the packet an error that quotes it from its network header on, as much as has room in the scratch record.
#[inline(always)]
fn quote<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets, about: i32) -> Result<(), Refused> {
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
    let [kind, code, high, low] = about.to_be_bytes();
    (message[0], message[1], message[6], message[7]) = (kind, code, high, low);
    let end = offsets.network + quoted;
    let mut sum = quotation_sum(skb, offsets.network, end)?;
    if packet.key.protocol != SCTP {
        let at = if packet.key.protocol == UDP { UDP_CHECKSUM } else { TCP_CHECKSUM };
        sum += completion(skb, offsets.transport as u32, at, end as u32);
    }
    let length = ICMP_HEADER + quoted;
    let protocol = if N == 4 { ICMP4 } else { ICMP6 };
    let pseudo = if N == 4 { 0 } else { pseudo_header(packet, ICMP6, length as u32) };
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

/// What the sum of a quoted packet grows by when its checksum, if it is a partial one P, is completed to the complement of the
/// sum U of what is quoted of it: from U to U - P + ~U, which is ~P, as U + ~U is nothing. The answer's own checksum covers what is
/// quoted in the end. A function of its own as above.
#[inline(never)]
fn completion(skb: *mut __sk_buff, transport: u32, checksum_at: u32, end: u32) -> u32 {
    let mut partial = [0u8; 2];
    let at = transport + checksum_at;
    if !is_partial(skb, at) || load(skb, at as usize, &mut partial).is_err() {
        return 0;
    }
    let Ok(sum) = quotation_sum(skb, transport as usize, end as usize) else { return 0 };
    u32::from(!checksum::fold(sum)) + u32::from(!u16::from_be_bytes(partial))
}

/// Sum of the packet's bytes between two offsets, whole words, in host order of 16-bit words.
#[inline(always)]
fn quotation_sum(skb: *mut __sk_buff, from: usize, end: usize) -> Result<u32, Refused> {
    let Some(room) = QUOTE.get_ptr_mut(0) else { return Err(Refused) };
    let mut length = end.wrapping_sub(from) as u64;
    // The compiler knows that it is not zero, and would spare the question whose answer the verifier wants.
    // SAFETY: moves a number to itself.
    unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
    let length = length as u32 & MOST_QUOTED as u32;
    if length == 0 {
        return Err(Refused);
    }
    // SAFETY: the room is this CPU's own and longer than `length`, which is a multiple of four.
    let sum = unsafe {
        if bpf_skb_load_bytes(skb.cast(), from as u32, room.cast(), length) != 0 {
            return Err(Refused);
        }
        bpf_csum_diff(core::ptr::null_mut(), 0, room.cast(), length, 0)
    };
    Ok(u32::from(checksum::fold(sum as u32).to_be()))
}
