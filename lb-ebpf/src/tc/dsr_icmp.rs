//! DSR: ICMP errors about the outer header, for the sender of what is inside (RFC 2003, section 4; RFC 2473, section 8); and about answers
//! that another node has sent by itself, which come back to whichever node the network leads them to.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::generated::bpf_skb_adjust_room;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::decide::{self, Inside, Work};
use lb_common::stages::TcStage;
use lb_common::words;

use crate::kernel::Kernel;
use crate::maps;
use crate::scratch::{IcmpMessage, Unsent};
use crate::tail_call;
use crate::tc::dsr::take_off;
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::headers::{self, Extent, Piece};
use crate::tc::icmp::{IcmpClass, kind_of, quoted_packet};
use crate::tc::skb::{load, ports};
use crate::tc::slow_path::unrelated;
use crate::tc::verdict;
use lb_common::parse::{ICMP_HEADER, UDP_HEADER};

/// [`TcStage::DsrIcmp`]: sends an error about a connection that this node does not know whole to the node that has answered, if there is one.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (point, work) = (scratch.point, &mut scratch.work);
    if decide::quoted_elsewhere(&mut tables, work, point.hook()) {
        verdict::count(skb, work, point);
        return tail_call::tc::<N>(skb, TcStage::Encapsulate, DROP);
    }
    work.packet.key.dst = scratch.icmp.dst;
    let stage = unrelated(&mut tables, scratch);
    tail_call::tc::<N>(skb, stage, NEXT)
}

/// [`TcStage::DecapsulateIcmp`]: whether the message in an outer header is an error about an answer of a service port, and of which kind.
#[inline(always)]
pub fn decapsulate<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (work, message) = (&mut scratch.work, &mut scratch.icmp);
    let mut header = [0u8; ICMP_HEADER];
    let is_error = message.header as usize >= scratch.point.network()
        && load(skb, message.header as usize, &mut header).is_ok()
        && matches!(kind_of::<N>(header[0], header[1]), IcmpClass::Error { .. })
        && quoted_packet(skb, message, work).is_some();
    let inside = if is_error { decide::inside(&mut tables, work) } else { Inside::Foreign };
    take_off(skb, &mut tables, scratch, inside)
}

/// [`TcStage::DsrIcmpOuter`]: tells the sender of what was in an outer header that it was too big: takes off all that stands before the
/// quoted packet that was inside.
#[inline(always)]
pub fn outer<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (point, work, message) = (scratch.point, &mut scratch.work, &mut scratch.icmp);
    let is_own = words::same(&work.packet.key.src, &message.dst);
    // The error comes from another side than the sender is at.
    words::address(&work.packet.key.dst, &mut work.chosen);
    let before = message.quoted.wrapping_sub(point.network() as u32);
    if !is_own || !is_quoted(skb, &mut tables, work, message) {
        words::clear_address(&mut work.chosen);
        work.packet.key.dst = message.dst;
        let stage = unrelated(&mut tables, scratch);
        return tail_call::tc::<N>(skb, stage, NEXT);
    }
    verdict::count(skb, work, point);
    scratch.transport = message.quoted.wrapping_sub(before);
    scratch.unsent = Unsent::TooBigOuter;
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_skb_adjust_room(skb, (before as i32).wrapping_neg(), BPF_ADJ_ROOM_MAC, 0) } != 0 {
        return forward::lost();
    }
    tail_call::tc::<N>(skb, TcStage::IcmpError, DROP)
}

/// Reads the packet that was inside; `false`: it was none of ours, or too little of it is quoted. The message notes its transport header.
#[inline(always)]
fn is_quoted<const N: usize>(
    skb: *mut __sk_buff,
    tables: &mut Kernel,
    work: &mut Work<N>,
    message: &mut IcmpMessage<N>,
) -> bool {
    let extent = Extent::Quoted(message.end as usize);
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
