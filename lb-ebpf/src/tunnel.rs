//! Direct server return: a packet goes whole to the backend's node in an outer header (RFC 2003, RFC 2473), which names the backend;
//! the programs there take it out again. No tunnel device is needed at either end.

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_FIXED_GSO,
};
use aya_ebpf::helpers::generated::bpf_skb_adjust_room;
use lb_common::abi::{FlowKey, Masquerade, SCTP, TCP, UDP, network_flags};
use lb_common::checksum;
use lb_common::decide::{self, Inside, Packet, Tables};
use lb_common::outcome::Outcome;
use lb_common::words;

use crate::aside::{Spot, is_icmp};
use crate::count::{self, Counter};
use crate::forward::{self, DROP, EXPIRED, LONGEST, NEXT, TOO_BIG};
use crate::fragments;
use crate::headers::{self, Extent, Piece};
use crate::maps::{Family, Fragments, Rooms};
use crate::parse::{IPV4_HEADER, IPV6_HEADER, Offsets};
use crate::reject::HOPS;
use crate::rewrite::Refused;
use crate::skb::{load, store};
use crate::tables::Kernel;
use crate::{tell, tunnel_icmp};

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

/// How long the packet is on the wire in its outer header. The kernel takes the header off the length of segments that it has joined.
#[inline(always)]
pub fn wire_length<const N: usize>(skb: *mut __sk_buff, packet: &Packet<N>, offsets: Offsets) -> u32 {
    // SAFETY: reads the context.
    let is_joined = unsafe { (*skb).gso_size } != 0;
    if is_joined { forward::wire_length(skb, packet, offsets) } else { packet.length + overhead::<N>() as u32 }
}

/// The transport header of a packet whose sender is told nothing.
pub const UNTOLD: u32 = 0;

/// Sends the packet of the scratch record whole to the node of the backend that its verdict names; gives the verdict at tc. A *global*
/// function, as the steps are.
#[inline(always)]
pub fn send<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    let verdict = if N == 4 { tunnel4(skb, spot, transport) } else { tunnel6(skb, spot, transport) };
    if !matches!(verdict, TOO_BIG | EXPIRED) {
        return verdict;
    }
    if transport == UNTOLD { forward::dropped(verdict) } else { tell::unsent::<N>(skb, spot, transport, verdict) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tunnel4(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    wrap::<4>(skb, Spot::from_number(spot), transport as usize)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tunnel6(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    wrap::<16>(skb, Spot::from_number(spot), transport as usize)
}

/// The sender of outer headers: the node's own address, by which the others know it, whatever link the way leads by (that of an overlay
/// has an address that no Node object names).
#[inline(always)]
pub fn own<const N: usize>() -> Option<&'static Masquerade<N>>
where
    Kernel: Family<N>,
{
    <Kernel as Family<N>>::masquerade(0)
}

/// Nothing is written before the way is known.
#[inline(always)]
fn wrap<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    // The ends of the outer header.
    let Some(own) = own::<N>() else {
        count::outcome(Outcome::DroppedNoAddress, Counter::Packet);
        return DROP;
    };
    words::address(own.address(0), &mut work.verdict.client);
    if forward::is_expired::<N>(skb, spot) {
        return EXPIRED;
    }
    let length = wire_length(skb, &work.packet, Offsets { network: spot.network, transport });
    let next = forward::next(skb, &work.verdict.client, &work.verdict.address, inside::<N>(), length);
    if next < 0 {
        return TOO_BIG;
    }
    // The stack takes no packet from an address of its own.
    if next == 0 || forward::hop::<N>(skb, spot.network).is_err() {
        return forward::lost();
    }
    // SAFETY: a helper on the program's own packet.
    let grown = unsafe {
        let family = if N == 4 { BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 } else { BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 };
        bpf_skb_adjust_room(skb, overhead::<N>() as i32, BPF_ADJ_ROOM_MAC, u64::from(family))
    };
    let written = if N == 4 {
        store(skb, spot.network, &header4(work.packet.length, &work.verdict.client, &work.verdict.address))
    } else {
        store(skb, spot.network, &header6(work.packet.length, &work.verdict.client, &work.verdict.address))
    };
    if grown != 0 || written.is_err() {
        return forward::lost();
    }
    forward::send::<N>(skb, next as u32, spot.network as u32, spot.ingress)
}

/// What a length field says: of segments joined beyond what it can tell, nothing.
#[inline(always)]
fn told(length: u32) -> [u8; 2] {
    (if length > LONGEST { 0 } else { length as u16 }).to_be_bytes()
}

/// The outer header of a packet of so many bytes: never fragmented, as the sender was told what fits.
#[inline(always)]
pub fn header4<const N: usize>(length: u32, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV4_HEADER] {
    let mut header = [0u8; IPV4_HEADER];
    header[0] = 0x45;
    let [high, low] = told(length + IPV4_HEADER as u32);
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
pub fn header6<const N: usize>(length: u32, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV6_HEADER] {
    let mut header = [0u8; IPV6_HEADER];
    header[0] = 0x60;
    let [high, low] = told(length);
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
pub fn open<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32
where
    Kernel: Family<N>,
{
    let mut found = if N == 4 { inside4(skb, spot) } else { inside6(skb, spot) };
    if found == MESSAGE {
        found = tunnel_icmp::inside::<N>(skb, spot);
    }
    if found == NOT_OURS {
        return others::<N>();
    }
    if N == 4 { unwrap4(skb, spot, found) } else { unwrap6(skb, spot, found) }
}

/// Others have tunnels, too.
#[inline(always)]
fn others<const N: usize>() -> i32
where
    Kernel: Family<N>,
{
    close::<N>();
    count::outcome(Outcome::Passed, Counter::Packet);
    NEXT
}

/// What is in an outer header: for a service with direct server return, an ICMP message whose place is noted, for a backend of another
/// service if it is a node that sends it, or none of these.
pub const OURS: i32 = 1;
pub const MESSAGE: i32 = 2;
const NAMED: i32 = 3;
pub const NOT_OURS: i32 = 0;

#[inline(always)]
pub const fn whose(inside: Inside) -> i32 {
    match inside {
        Inside::Direct => OURS,
        Inside::Named => NAMED,
        Inside::Foreign => NOT_OURS,
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inside4(skb: *mut __sk_buff, spot: u32) -> i32 {
    inside_of::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inside6(skb: *mut __sk_buff, spot: u32) -> i32 {
    inside_of::<16>(skb, Spot::from_number(spot))
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
        words::clear_address(&mut work.chosen);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwrap4(skb: *mut __sk_buff, spot: u32, found: i32) -> i32 {
    unwrap::<4>(skb, Spot::from_number(spot), found)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwrap6(skb: *mut __sk_buff, spot: u32, found: i32) -> i32 {
    unwrap::<16>(skb, Spot::from_number(spot), found)
}

#[inline(always)]
fn unwrap<const N: usize>(skb: *mut __sk_buff, spot: Spot, found: i32) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let mut sender = Address::<N>([0; N]);
    let source_at = spot.network + if N == 4 { 12 } else { 8 };
    let is_peer = load(skb, source_at, &mut sender.0).is_ok()
        && <Kernel as Tables<N>>::network(&mut tables, &sender.0) & network_flags::PEER != 0;
    if !is_peer && found == NAMED {
        return others::<N>();
    }
    // SAFETY: a helper on the program's own packet.
    let is_open = is_peer
        && unsafe {
            bpf_skb_adjust_room(skb, -(overhead::<N>() as i32), BPF_ADJ_ROOM_MAC, u64::from(BPF_F_ADJ_ROOM_FIXED_GSO))
        } == 0;
    if is_open {
        return OPENED;
    }
    words::clear_address(&mut work.chosen);
    count::outcome(if is_peer { Outcome::DroppedRewrite } else { Outcome::DroppedNoPeer }, Counter::Packet);
    DROP
}

/// An address, copied by words.
#[repr(C, align(4))]
struct Address<const N: usize>([u8; N]);

/// Whom the packet inside is for: reads it into the scratch record.
#[inline(always)]
fn inside_of<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Fragments<N> + Rooms<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return NOT_OURS };
    // SAFETY: reads the context.
    let (length, ifindex) = unsafe { ((*skb).len as usize, (*skb).ifindex) };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    words::address(&work.packet.key.dst, &mut work.chosen);
    let at = spot.network + overhead::<N>();
    let Ok(headers) = headers::network(skb, at, Extent::Packet(length), &mut work.packet.key) else { return NOT_OURS };
    if is_icmp::<N>(headers.protocol) && headers.piece == Piece::Whole {
        let Some(message) = <Kernel as Rooms<N>>::message() else { return NOT_OURS };
        message.icmp = headers.transport as u32;
        message.end = headers.end as u32;
        return MESSAGE;
    }
    if !matches!(headers.protocol, TCP | UDP | SCTP) {
        return NOT_OURS;
    }
    let is_known = if headers.piece == Piece::Later {
        fragments::recall(&mut tables, &mut work.packet.key, &headers)
    } else {
        ports(skb, headers.transport, &mut work.packet.key).is_ok()
    };
    if is_known { whose(decide::inside(&mut tables, work)) } else { NOT_OURS }
}

/// Reads both ports of a packet.
#[inline(always)]
pub fn ports<const N: usize>(skb: *mut __sk_buff, transport: usize, key: &mut FlowKey<N>) -> Result<(), Refused> {
    let mut ports = [0u8; 4];
    load(skb, transport, &mut ports)?;
    key.src_port = u16::from_be_bytes([ports[0], ports[1]]);
    key.dst_port = u16::from_be_bytes([ports[2], ports[3]]);
    Ok(())
}
