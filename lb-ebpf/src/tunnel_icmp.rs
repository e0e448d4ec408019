//! ICMP errors where packets go in an outer header: about that header, for who sent what is inside (RFC 2003, section 4; RFC 2473,
//! section 8); and about answers that another node has sent by itself, which come back to whichever node the network leads them to.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::generated::bpf_skb_adjust_room;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::decide::{self, Tables, Work};
use lb_common::words;

use crate::aside::{Spot, foreign};
use crate::count;
use crate::forward::{self, DROP, NEXT};
use crate::fragments::WHOLE;
use crate::headers::{self, Extent, Piece};
use crate::icmp::{ICMP_HEADER, IcmpMessage, Kind, kind_of, quotation};
use crate::maps::{Family, Rooms};
use crate::parse::UDP_HEADER;
use crate::skb::load;
use crate::tables::Kernel;
use crate::tell::{self, LEAST_ABOUT};
use crate::tunnel::{NOT_OURS, close, overhead, ports, whose};

/// Sends an error about a flow that this node does not know whole to the node that has answered, if there is one; gives the verdict at
/// tc, or [`WHOLE`]. A *global* function, as the steps are.
#[inline(always)]
pub fn elsewhere<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32 {
    if N == 4 { elsewhere4(skb, spot) } else { elsewhere6(skb, spot) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn elsewhere4(skb: *mut __sk_buff, spot: u32) -> i32 {
    follow::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn elsewhere6(skb: *mut __sk_buff, spot: u32) -> i32 {
    follow::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn follow<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return NEXT;
    };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    if decide::quoted_elsewhere(&mut tables, work, spot.hook) {
        count::packet(work, spot.id, ifindex, work.packet.length);
        return WHOLE;
    }
    work.packet.key.dst = message.dst;
    foreign(&mut tables, work, spot)
}

/// Whether the message in an outer header is an error about an answer of a service port, and of which kind. A *global* function,
/// as the steps are.
#[inline(always)]
pub fn inside<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32 {
    if N == 4 { inside_message4(skb, spot) } else { inside_message6(skb, spot) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inside_message4(skb: *mut __sk_buff, spot: u32) -> i32 {
    inside_message::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inside_message6(skb: *mut __sk_buff, spot: u32) -> i32 {
    inside_message::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn inside_message<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return NOT_OURS;
    };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let mut header = [0u8; ICMP_HEADER];
    if (message.icmp as usize) < spot.network || load(skb, message.icmp as usize, &mut header).is_err() {
        return NOT_OURS;
    }
    let is_error = matches!(kind_of::<N>(header[0], header[1]), Kind::Error { .. });
    if !is_error || quotation(skb, message, work).is_none() {
        return NOT_OURS;
    }
    whose(decide::inside(&mut tables, work))
}

/// Tells the sender of what was in an outer header that it was too big; gives the verdict at tc. A *global* function, as the steps are.
#[inline(always)]
pub fn outer<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32
where
    Kernel: Family<N>,
{
    let about = if N == 4 { outer4(skb, spot) } else { outer6(skb, spot) };
    if about < LEAST_ABOUT {
        return about;
    }
    let transport = if N == 4 {
        <Kernel as Rooms<4>>::message().map(|message| message.quoted)
    } else {
        <Kernel as Rooms<16>>::message().map(|message| message.quoted)
    };
    let Some(transport) = transport else { return DROP };
    let verdict = tell::error::<N>(skb, spot, transport, about);
    close::<N>();
    verdict
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer4(skb: *mut __sk_buff, spot: u32) -> i32 {
    reveal::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer6(skb: *mut __sk_buff, spot: u32) -> i32 {
    reveal::<16>(skb, Spot::from_number(spot))
}

/// Takes all that stands before the quoted packet that was inside off, and gives what is to be told of it.
#[inline(always)]
fn reveal<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return NEXT;
    };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let is_own = words::same(&work.packet.key.src, &message.dst);
    // The error comes from another side than the sender is at.
    words::address(&work.packet.key.dst, &mut work.chosen);
    let before = message.quoted.wrapping_sub(spot.network as u32);
    if !is_own || !is_quoted(skb, &mut tables, work, message) {
        words::clear_address(&mut work.chosen);
        work.packet.key.dst = message.dst;
        return foreign(&mut tables, work, spot);
    }
    count::packet(work, spot.id, ifindex, work.packet.length);
    message.quoted = message.quoted.wrapping_sub(before);
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_skb_adjust_room(skb, (before as i32).wrapping_neg(), BPF_ADJ_ROOM_MAC, 0) } != 0 {
        words::clear_address(&mut work.chosen);
        return forward::lost();
    }
    tell::too_big::<N>(message.sequence, overhead::<N>())
}

/// Reads the packet that was inside; `false`: it was none of ours, or too little of it is quoted. The message notes its transport header.
#[inline(always)]
fn is_quoted<const N: usize>(
    skb: *mut __sk_buff,
    tables: &mut Kernel,
    work: &mut Work<N>,
    message: &mut IcmpMessage<N>,
) -> bool
where
    Kernel: Tables<N>,
{
    let extent = Extent::Quotation(message.end as usize);
    let Ok(headers) = headers::network(skb, message.quoted as usize, extent, &mut work.packet.key) else {
        return false;
    };
    message.quoted = headers.transport as u32;
    headers.piece != Piece::Later
        && matches!(headers.protocol, TCP | UDP | SCTP)
        && headers.transport + UDP_HEADER <= headers.end
        && ports(skb, headers.transport, &mut work.packet.key).is_ok()
        && decide::is_about_tunnelled(tables, work)
}
