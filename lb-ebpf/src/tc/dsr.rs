//! Direct server return: a packet goes whole to the backend's node in an outer header (RFC 2003, RFC 2473), which names the backend;
//! the programs there take it off again. No tunnel device is needed at either end.

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_FIXED_GSO,
};
use aya_ebpf::helpers::generated::bpf_skb_adjust_room;
use lb_common::abi::{SCTP, TCP, UDP, network_flags};
use lb_common::decide::{self, Inside, Packet, Tables};
use lb_common::map;
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;
use lb_common::words;

use crate::counters::{self, Counter};
use crate::kernel::Kernel;
use crate::maps;
use crate::outer_header;
use crate::scratch::{Scratch, Unsent};
use crate::tail_call;
use crate::tc::forward::{self, DROP, NEXT, NextHop};
use crate::tc::fragments;
use crate::tc::headers::{self, Extent, Piece, is_icmp};
use crate::tc::skb::{load, ports, store};
use lb_common::parse::Offsets;

/// How long the packet is on the wire in its outer header: of several segments that the kernel has joined, the longest. 0: not known.
///
/// The kernel takes the header's length off TCP segments that it has joined. Datagrams keep theirs, see [`gso`].
#[inline(always)]
pub fn wire_length<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> u32 {
    // SAFETY: reads the context.
    let is_joined = unsafe { (*skb).gso_size } != 0;
    let length = forward::wire_length(skb, packet, offsets);
    if length == 0 || (is_joined && packet.key.protocol == TCP) {
        length
    } else {
        length + outer_header::length::<N>() as u32
    }
}

/// The flag for joined segments. Datagrams keep their length, which says where each ends: without the flag `bpf_skb_net_grow` refuses them (Linux
/// 5.2 and later, net/core/filter.c). TCP segments become shorter by the outer header, so that they fit as before.
#[inline(always)]
const fn gso(protocol: u8) -> u32 {
    if protocol == UDP { BPF_F_ADJ_ROOM_FIXED_GSO } else { 0 }
}

/// [`TcStage::Encapsulate`]: sends the packet of the scratch record whole to the node of the backend that its verdict names. Nothing is
/// written before the next hop is known. [`Scratch::transport`] is 0 if the sender gets no error.
#[inline(always)]
pub fn encapsulate<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (point, offsets, work) = (scratch.point, scratch.offsets(), &mut scratch.work);
    // The node's own address, by which the others know it, whatever link the route leads by: that of an overlay has an address that no
    // Node object names.
    let Some(own) = maps::view::<map::Masquerade<N>>(&0) else {
        counters::outcome(Outcome::DroppedNoAddress, Counter::Packet);
        return DROP;
    };
    words::address(own.address(0), &mut work.verdict.client);
    if forward::is_expired::<N>(skb, point) {
        return unsent(skb, scratch, Unsent::Expired);
    }
    let length = wire_length(skb, &work.packet, offsets);
    let (src, dst) = (&work.verdict.client, &work.verdict.address);
    let link = match forward::next_hop(skb, src, dst, outer_header::protocol::<N>(), length) {
        NextHop::Link(link) => link,
        NextHop::TooBig(_) => return unsent(skb, scratch, Unsent::TooBig),
        // The stack takes no packet from an address of its own.
        NextHop::Host => return forward::lost(),
    };
    if forward::one_hop_less::<N>(skb, point.network()).is_err() {
        return forward::lost();
    }
    // SAFETY: a helper on the program's own packet.
    let grown = unsafe {
        let family = if N == 4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
        let flags = u64::from(family | gso(work.packet.key.protocol));
        bpf_skb_adjust_room(skb, outer_header::length::<N>() as i32, BPF_ADJ_ROOM_MAC, flags)
    };
    let written = if N == 4 {
        store(skb, point.network(), &outer_header::v4(work.packet.length, src, dst))
    } else {
        store(skb, point.network(), &outer_header::v6(work.packet.length, src, dst))
    };
    if grown != 0 || written.is_err() {
        return forward::lost();
    }
    forward::transmit::<N>(skb, link, point)
}

#[inline(always)]
fn unsent<const N: usize>(skb: *mut __sk_buff, scratch: &mut Scratch<N>, why: Unsent) -> i32 {
    if scratch.transport == 0 {
        return forward::dropped(why);
    }
    scratch.unsent = why;
    tail_call::tc::<N>(skb, TcStage::IcmpError, DROP)
}

/// [`TcStage::Decapsulate`]: takes a packet for a backend of this node out of its outer header, whose addresses are in the scratch record.
#[inline(always)]
pub fn decapsulate<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    // SAFETY: reads the context.
    let (length, ifindex) = unsafe { ((*skb).len as usize, (*skb).ifindex) };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let work = &mut scratch.work;
    words::address(&work.packet.key.dst, &mut work.chosen);
    let at = scratch.point.network() + outer_header::length::<N>();
    let Ok(headers) = headers::network(skb, at, Extent::Packet(length), &mut work.packet.key) else {
        return leave(Inside::Foreign);
    };
    if is_icmp::<N>(headers.protocol) && headers.piece == Piece::Whole {
        scratch.icmp.header = headers.transport as u32;
        scratch.icmp.end = headers.end as u32;
        return tail_call::tc::<N>(skb, TcStage::DecapsulateIcmp, DROP);
    }
    let is_known = match headers.protocol {
        TCP | UDP | SCTP if headers.piece == Piece::Later => {
            fragments::recall(&mut tables, &mut work.packet.key, headers.id)
        }
        TCP | UDP | SCTP => ports(skb, headers.transport, &mut work.packet.key).is_ok(),
        _ => false,
    };
    let inside = if is_known { decide::inside(&mut tables, work) } else { Inside::Foreign };
    take_off(skb, &mut tables, scratch, inside)
}

/// Takes the outer header off, if the packet inside is for a backend of this node and a node has sent it.
#[inline(always)]
pub fn take_off<const N: usize>(skb: *mut __sk_buff, tables: &mut Kernel, scratch: &Scratch<N>, inside: Inside) -> i32 {
    if inside as u32 == Inside::Foreign as u32 {
        return leave(inside);
    }
    let mut sender = Address::<N>([0; N]);
    let source_at = scratch.point.network() + if N == 4 { 12 } else { 8 };
    let is_node = load(skb, source_at, &mut sender.0).is_ok()
        && <Kernel as Tables<N>>::network(tables, &sender.0) & network_flags::PEER != 0;
    if !is_node {
        return leave(inside);
    }
    let flags = u64::from(BPF_F_ADJ_ROOM_FIXED_GSO);
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_skb_adjust_room(skb, -(outer_header::length::<N>() as i32), BPF_ADJ_ROOM_MAC, flags) } != 0 {
        return forward::lost();
    }
    tail_call::tc::<N>(skb, TcStage::Parse, DROP)
}

/// Leaves a packet in an outer header alone, as others have tunnels, too; but not one for a service that goes by DSR.
#[inline(always)]
fn leave(inside: Inside) -> i32 {
    if inside as u32 == Inside::Direct as u32 {
        counters::outcome(Outcome::DroppedNoPeer, Counter::Packet);
        return DROP;
    }
    counters::outcome(Outcome::Passed, Counter::Packet);
    NEXT
}

/// An address, copied by words.
#[repr(C, align(4))]
struct Address<const N: usize>([u8; N]);
