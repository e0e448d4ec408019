//! Packets that are sent on from here, both of their addresses written: towards a backend that sees another address than its client's,
//! and back; and whatever else the stack would lead astray.
//!
//! Where the source becomes an address of this node, or of a service, the stack would take the packet for a martian. Nothing is
//! written before the way is known: a packet that is too big for it, or has come too far, is quoted to its sender as it came.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::generated::{bpf_csum_diff, bpf_l3_csum_replace, bpf_l4_csum_replace};
use lb_common::abi::{FlowKey, SCTP, UDP};
use lb_common::decide::{Action, Verdict, Work};
use lb_common::words;

use crate::aside::Spot;
use crate::forward::{self, DROP, EXPIRED, TOO_BIG};
use crate::maps::Family;
use crate::parse::Offsets;
use crate::rewrite::{End, Refused, ports};
use crate::sctp;
use crate::skb::{store, store_summed};
use crate::tables::Kernel;
use crate::tell;

/// Does as a verdict with `route` says; gives the verdict at tc. A *global* function, as the steps are.
#[inline(always)]
pub fn send<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    let verdict = if N == 4 { write_ends4(skb, spot, transport) } else { write_ends6(skb, spot, transport) };
    if matches!(verdict, TOO_BIG | EXPIRED) { tell::unsent::<N>(skb, spot, transport, verdict) } else { verdict }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn write_ends4(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    write_and_send::<4>(skb, Spot::from_number(spot), transport as usize)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn write_ends6(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    write_and_send::<16>(skb, Spot::from_number(spot), transport as usize)
}

#[inline(always)]
fn write_and_send<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    let length = forward::wire_length(skb, &work.packet, Offsets { network: spot.network, transport });
    let way = way(skb, work, length, spot);
    if way < 0 {
        return way;
    }
    if write(skb, spot.network, transport, work).is_err() {
        return forward::lost();
    }
    go(skb, spot, work, way)
}

/// The link by which the packet of so many bytes is to leave as its verdict says, and [`HERE`] for one that stays on this host; below 0:
/// why it is not sent on.
#[inline(always)]
pub fn way<const N: usize>(skb: *mut __sk_buff, work: &Work<N>, length: u32, spot: Spot) -> i32 {
    let verdict = &work.verdict;
    if verdict.turns_back(&work.packet.key) {
        return HERE;
    }
    let (src, dst) = ends(verdict);
    let next = forward::next(skb, src, dst, work.packet.key.protocol, length);
    if next < 0 {
        return TOO_BIG;
    }
    if next != HERE && forward::is_expired::<N>(skb, spot) { EXPIRED } else { next }
}

/// No link: the packet goes back over its own one, or up the stack.
const HERE: i32 = 0;

/// Sends the packet of the scratch record, written as its verdict says, on its way.
#[inline(always)]
pub fn go<const N: usize>(skb: *mut __sk_buff, spot: Spot, work: &Work<N>, way: i32) -> i32 {
    if way != HERE {
        return forward::send::<N>(skb, way as u32, spot.network as u32, spot.ingress);
    }
    if work.verdict.turns_back(&work.packet.key) {
        return forward::back(skb, spot.network, spot.ingress);
    }
    // The stack takes no packet from an address of its own.
    if work.verdict.masquerade {
        forward::lost()
    } else {
        forward::send::<N>(skb, 0, spot.network as u32, spot.ingress)
    }
}

/// Sends an answer of our own, which the packet of the scratch record has become, to its sender. A *global* function, as the steps are.
#[inline(always)]
pub fn home<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32 {
    if N == 4 { home4(skb, spot.as_number()) } else { home6(skb, spot.as_number()) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn home4(skb: *mut __sk_buff, spot: u32) -> i32 {
    answer::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn home6(skb: *mut __sk_buff, spot: u32) -> i32 {
    answer::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn answer<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    if !work.is_chosen() {
        return forward::back(skb, spot.network, spot.ingress);
    }
    // The frame came from another node, not from where the sender is. No answer is too big.
    reverse(&mut work.packet.key);
    forward::route(skb, &work.packet.key, 0, spot)
}

/// Lets the addresses of the key trade places.
#[inline(always)]
pub fn reverse<const N: usize>(key: &mut FlowKey<N>) {
    let mut src = Pair::<N>([[0; N]; 2]);
    words::address(&key.src, &mut src.0[0]);
    words::address(&key.dst, &mut key.src);
    words::address(&src.0[0], &mut key.dst);
}

/// Source and destination address as the verdict says.
#[inline(always)]
pub fn ends<const N: usize>(verdict: &Verdict<N>) -> (&[u8; N], &[u8; N]) {
    if verdict.action == Action::ToBackend {
        (&verdict.client, &verdict.address)
    } else {
        (&verdict.address, &verdict.client)
    }
}

#[inline(always)]
fn write<const N: usize>(skb: *mut __sk_buff, network: usize, transport: usize, work: &Work<N>) -> Result<(), Refused> {
    let key = &work.packet.key;
    let end = if work.verdict.action == Action::ToBackend { End::Destination } else { End::Source };
    let (old, new) = ports(work, end);
    if key.protocol == SCTP {
        sctp::write_ports(skb, transport, work, old, new)?;
        return addresses(skb, network, work, None);
    }
    let (at, mangled) = if key.protocol == UDP { (6, u64::from(BPF_F_MARK_MANGLED_0)) } else { (16, 0) };
    let sum = Sum { at: (transport + at) as u32, flags: u64::from(BPF_F_PSEUDO_HDR) | mangled };
    if old != new {
        let (from, to) = (u64::from(u32::from_ne_bytes(old)), u64::from(u32::from_ne_bytes(new)));
        // SAFETY: the helper checks the offset against the packet.
        if unsafe { bpf_l4_csum_replace(skb, sum.at, from, to, mangled | 4) } != 0 {
            return Err(Refused);
        }
        store(skb, transport, &new)?;
    }
    addresses(skb, network, work, Some(sum))
}

/// A transport's checksum that covers the addresses.
pub struct Sum {
    at: u32,
    flags: u64,
}

/// Both addresses, copied by words.
#[repr(C, align(4))]
struct Pair<const N: usize>([[u8; N]; 2]);

/// Writes both addresses, which follow each other in either header.
#[inline(always)]
pub fn addresses<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    work: &Work<N>,
    sum: Option<Sum>,
) -> Result<(), Refused> {
    let mut old = Pair::<N>([[0; N]; 2]);
    let mut new = Pair::<N>([[0; N]; 2]);
    let (src, dst) = ends(&work.verdict);
    words::address(&work.packet.key.src, &mut old.0[0]);
    words::address(&work.packet.key.dst, &mut old.0[1]);
    words::address(src, &mut new.0[0]);
    words::address(dst, &mut new.0[1]);
    let length = 2 * N as u32;
    let mut failed = 0;
    // SAFETY: the arrays live on this stack and are as long as is said; the helpers check offsets against the packet.
    unsafe {
        let difference = bpf_csum_diff(old.0.as_mut_ptr().cast(), length, new.0.as_mut_ptr().cast(), length, 0) as u64;
        if let Some(Sum { at, flags }) = sum {
            failed |= bpf_l4_csum_replace(skb, at, 0, difference, flags);
        }
        if N == 4 {
            failed |= bpf_l3_csum_replace(skb, network as u32 + 10, 0, difference, 0);
        }
    }
    if failed != 0 {
        return Err(Refused);
    }
    let source_at = network + if N == 4 { 12 } else { 8 };
    if N == 4 {
        // The header's checksum makes up for the addresses.
        store(skb, source_at, &new.0[0])?;
        store(skb, source_at + N, &new.0[1])
    } else {
        store_summed(skb, source_at, &new.0[0])?;
        store_summed(skb, source_at + N, &new.0[1])
    }
}
