//! Direct server return: a packet goes whole to the backend's node in an outer header (RFC 2003, RFC 2473), which names the backend;
//! the programs there take it out again. No tunnel device is needed at either end.

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_FIXED_GSO,
};
use aya_ebpf::helpers::generated::bpf_skb_adjust_room;
use lb_common::abi::{SCTP, TCP, UDP, network_flags};
use lb_common::checksum;
use lb_common::decide::{self, Tables, Work};
use lb_common::outcome::Outcome;
use lb_common::words;

use crate::aside::Spot;
use crate::count::{self, Counter};
use crate::forward::{self, DROP, NEXT};
use crate::fragments;
use crate::headers::{self, Extent, Piece};
use crate::maps::{Family, Fragments, Rooms};
use crate::parse::{IPV4_HEADER, IPV6_HEADER};
use crate::reject::HOPS;
use crate::skb::{load, store};
use crate::tables::Kernel;

/// Protocol number of a packet of the same family inside (RFC 2003; RFC 2473).
pub const INSIDE4: u8 = 4;
pub const INSIDE6: u8 = 41;

/// Length of the outer header.
pub const fn overhead<const N: usize>() -> usize {
    if N == 4 { IPV4_HEADER } else { IPV6_HEADER }
}

pub const fn inside<const N: usize>() -> u8 {
    if N == 4 { INSIDE4 } else { INSIDE6 }
}

/// Sends the packet of the scratch record whole to the node of the backend that its verdict names; gives the verdict at tc. A *global*
/// function, as the steps are.
#[inline(always)]
pub fn send<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32 {
    if N == 4 { tunnel4(skb, spot) } else { tunnel6(skb, spot) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tunnel4(skb: *mut __sk_buff, spot: u32) -> i32 {
    wrap::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tunnel6(skb: *mut __sk_buff, spot: u32) -> i32 {
    wrap::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn wrap<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel { context: skb.cast(), ifindex };
    let key = &mut work.packet.key;
    if !<Kernel as Tables<N>>::masquerade(&mut tables, &work.verdict.address, &mut key.src) {
        count::outcome(Outcome::DroppedNoAddress, Counter::Packet);
        return DROP;
    }
    words::address(&work.verdict.address, &mut key.dst);
    key.protocol = inside::<N>();
    if forward::is_expired::<N>(skb, spot) {
        return forward::dropped(forward::EXPIRED);
    }
    if forward::hop::<N>(skb, spot.network).is_err() {
        return forward::lost();
    }
    // SAFETY: a helper on the program's own packet.
    let grown = unsafe {
        let family = if N == 4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
        bpf_skb_adjust_room(skb, overhead::<N>() as i32, BPF_ADJ_ROOM_MAC, u64::from(family))
    };
    let length = work.packet.length as u16;
    let written = if N == 4 {
        store(skb, spot.network, &header4(length, &work.packet.key.src, &work.packet.key.dst))
    } else {
        store(skb, spot.network, &header6(length, &work.packet.key.src, &work.packet.key.dst))
    };
    if grown != 0 || written.is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return DROP;
    }
    let length = work.packet.length + overhead::<N>() as u32;
    forward::route(skb, &work.packet.key, length, spot)
}

/// The outer header of a packet of so many bytes: never fragmented, as the sender was told what fits.
#[inline(always)]
pub fn header4<const N: usize>(length: u16, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV4_HEADER] {
    let mut header = [0u8; IPV4_HEADER];
    header[0] = 0x45;
    let [high, low] = length.wrapping_add(IPV4_HEADER as u16).to_be_bytes();
    (header[2], header[3]) = (high, low);
    header[6] = 0x40;
    (header[8], header[9]) = (HOPS, INSIDE4);
    let mut i = 0;
    while i < 4 {
        header[12 + i] = src[i];
        header[16 + i] = dst[i];
        i += 1;
    }
    let [high, low] = (!checksum::fold(checksum::add(0, &header))).to_be_bytes();
    (header[10], header[11]) = (high, low);
    header
}

#[inline(always)]
pub fn header6<const N: usize>(length: u16, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV6_HEADER] {
    let mut header = [0u8; IPV6_HEADER];
    header[0] = 0x60;
    let [high, low] = length.to_be_bytes();
    (header[4], header[5]) = (high, low);
    (header[6], header[7]) = (INSIDE6, HOPS);
    let mut i = 0;
    while i < 16 {
        header[8 + i] = src[i];
        header[24 + i] = dst[i];
        i += 1;
    }
    header
}

/// Takes a packet for a backend of this node out of its outer header, whose addresses are in the scratch record; [`OPENED`], or the
/// verdict at tc. A *global* function, as the steps are.
#[inline(always)]
pub fn open<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32 {
    if N == 4 { unwrap4(skb, spot) } else { unwrap6(skb, spot) }
}

/// No verdict at tc: the packet is what was inside, and `Work::chosen` says for whom. [`close`] must follow.
pub const OPENED: i32 = -107;

/// The packet is done with.
#[inline(always)]
pub fn close<const N: usize>()
where
    Kernel: Family<N>,
{
    if let Some(work) = <Kernel as Family<N>>::work() {
        words::address(&[0; N], &mut work.chosen);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwrap4(skb: *mut __sk_buff, spot: u32) -> i32 {
    unwrap::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwrap6(skb: *mut __sk_buff, spot: u32) -> i32 {
    unwrap::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn unwrap<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Fragments<N> + Rooms<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return NEXT };
    // SAFETY: reads the context.
    let (length, ifindex) = unsafe { ((*skb).len as usize, (*skb).ifindex) };
    let mut tables = Kernel { context: skb.cast(), ifindex };
    let is_peer = <Kernel as Tables<N>>::network(&mut tables, &work.packet.key.src) & network_flags::PEER != 0;
    words::address(&work.packet.key.dst, &mut work.chosen);
    let is_ours = inner(skb, &mut tables, work, spot.network + overhead::<N>(), length);
    if !is_ours || !is_peer {
        words::address(&[0; N], &mut work.chosen);
        // Others have tunnels, too.
        let outcome = if is_ours { Outcome::DroppedNoPeer } else { Outcome::Passed };
        count::outcome(outcome, Counter::Packet);
        return if is_ours { DROP } else { NEXT };
    }
    // SAFETY: a helper on the program's own packet.
    let shrunk = unsafe {
        bpf_skb_adjust_room(skb, -(overhead::<N>() as i32), BPF_ADJ_ROOM_MAC, u64::from(BPF_F_ADJ_ROOM_FIXED_GSO))
    };
    if shrunk != 0 {
        words::address(&[0; N], &mut work.chosen);
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return DROP;
    }
    OPENED
}

/// Whether the packet inside is for a service port with direct server return.
#[inline(always)]
fn inner<const N: usize>(skb: *mut __sk_buff, tables: &mut Kernel, work: &mut Work<N>, at: usize, length: usize) -> bool
where
    Kernel: Family<N> + Tables<N> + Fragments<N> + Rooms<N>,
{
    let Ok(headers) = headers::network(skb, at, Extent::Packet(length), &mut work.packet.key) else { return false };
    if !matches!(headers.protocol, TCP | UDP | SCTP) {
        return false;
    }
    if headers.piece == Piece::Later {
        return fragments::recall(tables, &mut work.packet.key, &headers) && decide::is_tunnelled(tables, work);
    }
    let mut ports = [0u8; 4];
    if load(skb, headers.transport, &mut ports).is_err() {
        return false;
    }
    work.packet.key.src_port = u16::from_be_bytes([ports[0], ports[1]]);
    work.packet.key.dst_port = u16::from_be_bytes([ports[2], ports[3]]);
    decide::is_tunnelled(tables, work)
}
