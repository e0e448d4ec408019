//! Writes another address and port into a packet at tc: the kernel's helpers keep partial, complete and full checksums right.
//!
//! Nearly every packet has its ports right behind the addresses: what changes is written at once, with the header's checksum, which is
//! taken by its difference. Each call of a helper takes about as long as a look-up in a small table.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{
    bpf_csum_diff, bpf_csum_update, bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_store_bytes,
};
use lb_common::abi::{SCTP, UDP};
use lb_common::decide::Work;
use lb_common::words;

use crate::maps;
use crate::nat::{End, Refused, change, ends, ports};
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::sctp;
use crate::tc::skb::{store, store_summed};
use lb_common::parse::{Bytes, IPV4_HEADER, IPV6_HEADER, Offsets};

/// Whether [`one_end`] writes the packet: one whose transport header follows a network header of the usual length. SCTP and other headers
/// are [`lb_common::stages::TcStage::SlowNat`]'s.
#[inline(always)]
pub fn is_usual<const N: usize>(offsets: Offsets, protocol: u8) -> bool {
    offsets.transport == offsets.network + if N == 4 { IPV4_HEADER } else { IPV6_HEADER } && protocol != SCTP
}

/// From the hop limit on: IPv4's with protocol and checksum, IPv6's with the payload's length and the next header; addresses; ports.
#[repr(C, align(4))]
struct Headers<const N: usize> {
    first: [u8; 4],
    src: [u8; N],
    dst: [u8; N],
    ports: [u8; 4],
}

/// Rewrites one end of a packet with the usual headers, as its verdict says, and takes so many hops off (0 or 1).
///
/// A function of its own: off the stack of who calls.
#[inline(never)]
pub fn one_end<const N: usize>(
    skb: *mut __sk_buff,
    network: usize,
    work: &Work<N>,
    end: End,
    hops: u8,
) -> Result<(), Refused> {
    let transport = network + if N == 4 { IPV4_HEADER } else { IPV6_HEADER };
    let key = &work.packet.key;
    let at = network + if N == 4 { 8 } else { 4 };
    // SAFETY: reads the context.
    let bytes = unsafe { Bytes { start: (*skb).data as usize, end: (*skb).data_end as usize, length: 0 } };
    let first = bytes.word(at).ok_or(Refused)?.to_ne_bytes();
    let (old_ports, new_ports) = ports(work, end);
    let mut new = Headers::<N> { first, src: [0; N], dst: [0; N], ports: new_ports };
    let (src, dst, old) = match end {
        End::Source => (&work.verdict.address, &key.dst, &key.src),
        End::Destination => (&key.src, &work.verdict.address, &key.dst),
    };
    words::address(src, &mut new.src);
    words::address(dst, &mut new.dst);
    let difference = difference(old, &work.verdict.address);
    if N == 4 {
        let sum = u16::from_ne_bytes([first[2], first[3]]);
        // A word loses the hop, which is its first byte.
        let hop = if hops == 0 { 0 } else { u32::from(!u16::from_ne_bytes([hops, 0])) };
        [new.first[2], new.first[3]] = (!fold(u32::from(!sum) + fold(difference) + hop) as u16).to_ne_bytes();
        new.first[0] = first[0].wrapping_sub(hops);
    } else {
        new.first[3] = first[3].wrapping_sub(hops);
    }
    let is_udp = key.protocol == UDP;
    let mangled = if is_udp { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
    let checksum_at = (transport + if is_udp { 6 } else { 16 }) as u32;
    let mut failed = 0;
    // SAFETY: helpers check every offset against the packet; what is written lives on this stack and is as long as is said.
    unsafe {
        if old_ports != new_ports {
            let (old, new) = (u64::from(u32::from_ne_bytes(old_ports)), u64::from(u32::from_ne_bytes(new_ports)));
            failed |= bpf_l4_csum_replace(skb, checksum_at, old, new, mangled | 4);
        }
        let pseudo = u64::from(BPF_F_PSEUDO_HDR) | mangled;
        failed |= bpf_l4_csum_replace(skb, checksum_at, 0, u64::from(difference), pseudo);
        if N != 4 {
            // No header checksum makes up for the address and the hop: a complete checksum over the packet must follow them.
            let hop = if hops == 0 { 0 } else { !u32::from(u16::from_ne_bytes([0, hops])) };
            // Where there is no complete checksum, this does nothing, and says so.
            bpf_csum_update(skb, add(difference, hop));
        }
        let length = size_of::<Headers<N>>() as u32;
        failed |= bpf_skb_store_bytes(skb, at as u32, (&raw const new).cast(), length, 0);
    }
    if failed == 0 { Ok(()) } else { Err(Refused) }
}

/// What a checksum grows by where one address takes another's place: a sum of words in the machine's own order, of 32 bits (RFC 1624).
#[inline(always)]
fn difference<const N: usize>(old: &[u8; N], new: &[u8; N]) -> u32 {
    let word = |bytes: &[u8; N], i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    let mut sum = 0_u64;
    let mut i = 0;
    while i < N {
        sum += u64::from(!word(old, i)) + u64::from(word(new, i));
        i += 4;
    }
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    (sum + (sum >> 32)) as u32
}

/// Adds two such sums.
#[inline(always)]
const fn add(one: u32, other: u32) -> u32 {
    let sum = one as u64 + other as u64;
    (sum + (sum >> 32)) as u32
}

/// Such a sum in 16 bits.
#[inline(always)]
const fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// [`lb_common::stages::TcStage::SlowNat`]: one end of a packet of SCTP, or with headers that [`one_end`] does not know.
#[inline(always)]
pub fn run_slow<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (work, offsets) = (&scratch.work, scratch.offsets());
    let end = End::of(work);
    let written = if work.packet.key.protocol == SCTP {
        let (old, new) = ports(work, end);
        sctp::write_ports(skb, offsets.transport, work, old, new)
            .and_then(|()| readdress(skb, offsets.network, work, end))
    } else {
        one_by_one(skb, offsets, work, end)
    };
    if written.is_ok() { NEXT } else { forward::lost() }
}

/// Writes addresses and ports wherever they stand, one by one.
#[inline(always)]
fn one_by_one<const N: usize>(skb: *mut __sk_buff, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
    let mut change = change(offsets, work, end);
    let mangled = if work.packet.key.protocol == UDP { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
    let pseudo = u64::from(BPF_F_PSEUDO_HDR) | mangled;
    let checksum_at = change.checksum_at as u32;
    let mut failed = 0;
    // SAFETY: helpers check every offset against the packet; the byte arrays live on this stack.
    unsafe {
        if change.old_ports != change.new_ports {
            let old = u64::from(u32::from_ne_bytes(change.old_ports));
            let new = u64::from(u32::from_ne_bytes(change.new_ports));
            failed |= bpf_l4_csum_replace(skb, checksum_at, old, new, mangled | 4);
            failed |= bpf_skb_store_bytes(skb, change.ports_at as u32, change.new_ports.as_ptr().cast(), 4, 0);
        }
        if N == 4 {
            let old = u64::from(first_word(&change.old));
            let new = u64::from(first_word(&change.new));
            let header_checksum = offsets.network as u32 + 10;
            failed |= bpf_l4_csum_replace(skb, checksum_at, old, new, pseudo | 4);
            failed |= bpf_l3_csum_replace(skb, header_checksum, old, new, 4);
            failed |= bpf_skb_store_bytes(skb, change.address_at as u32, change.new.as_ptr().cast(), 4, 0);
        } else {
            let length = N as u32;
            let difference =
                bpf_csum_diff(change.old.as_mut_ptr().cast(), length, change.new.as_mut_ptr().cast(), length, 0);
            failed |= bpf_l4_csum_replace(skb, checksum_at, 0, difference as u64, pseudo);
            // No header checksum makes up for the address: a complete checksum over the packet must follow it.
            let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
            failed |= bpf_skb_store_bytes(skb, change.address_at as u32, change.new.as_ptr().cast(), length, flags);
        }
    }
    if failed == 0 { Ok(()) } else { Err(Refused) }
}

/// Writes the address that changes, where no checksum of the transport covers it or is there.
#[inline(always)]
fn readdress<const N: usize>(skb: *mut __sk_buff, network: usize, work: &Work<N>, end: End) -> Result<(), Refused> {
    let source_at = network + if N == 4 { 12 } else { 8 };
    let (at, old) = match end {
        End::Source => (source_at, &work.packet.key.src),
        End::Destination => (source_at + N, &work.packet.key.dst),
    };
    let new = &work.verdict.address;
    if N != 4 {
        return store_summed(skb, at, new);
    }
    // SAFETY: the helper checks the offset against the packet.
    if unsafe {
        bpf_l3_csum_replace(skb, network as u32 + 10, u64::from(first_word(old)), u64::from(first_word(new)), 4)
    } != 0
    {
        return Err(Refused);
    }
    // The header's checksum makes up for the address.
    store(skb, at, new)
}

#[inline(always)]
fn first_word<const N: usize>(bytes: &[u8; N]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Writes addresses and ports of both ends, as a verdict with `route` says.
#[inline(always)]
pub fn both_ends<const N: usize>(skb: *mut __sk_buff, offsets: Offsets, work: &Work<N>) -> Result<(), Refused> {
    let Offsets { network, transport } = offsets;
    let key = &work.packet.key;
    let (old, new) = ports(work, End::of(work));
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
