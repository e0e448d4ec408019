//! Writes another address and port into a packet, checksums included.
//!
//! At tc the kernel's helpers keep partial, complete and full checksums right. XDP sees complete ones and takes the difference.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{bpf_csum_diff, bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_store_bytes};
use lb_common::abi::UDP;
use lb_common::checksum;
use lb_common::decide::Work;

use crate::masquerade::ends;
use crate::parse::{Bytes, Offsets};
use crate::skb::{store, store_summed};

/// Which end of the packet a verdict rewrites.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Destination address and port, source port: towards the backend.
    Destination,
    /// Source address and port, destination port: back to the client.
    Source,
}

/// The rewrite was refused by the kernel; the packet may be half written and must be dropped.
pub struct Refused;

/// What is written where: old and new of the address and of both ports.
struct Change<const N: usize> {
    address_at: usize,
    old: [u8; N],
    new: [u8; N],
    ports_at: usize,
    checksum_at: usize,
    old_ports: [u8; 4],
    new_ports: [u8; 4],
}

#[inline(always)]
fn change<const N: usize>(offsets: Offsets, work: &Work<N>, end: End) -> Change<N> {
    let (key, verdict) = (&work.packet.key, &work.verdict);
    let source_at = offsets.network + if N == 4 { 12 } else { 8 };
    let (old_ports, new_ports) = ports(work, end);
    Change {
        address_at: if end == End::Source { source_at } else { source_at + N },
        old: if end == End::Source { key.src } else { key.dst },
        new: verdict.address,
        ports_at: offsets.transport,
        checksum_at: offsets.transport + if key.protocol == UDP { 6 } else { 16 },
        old_ports,
        new_ports,
    }
}

/// Both ports as they stand in the header, before and after.
#[inline(always)]
pub fn ports<const N: usize>(work: &Work<N>, end: End) -> ([u8; 4], [u8; 4]) {
    let (key, verdict) = (&work.packet.key, &work.verdict);
    let (src_port, dst_port) = match end {
        End::Destination => (verdict.client_port, verdict.port),
        End::Source => (verdict.port, verdict.client_port),
    };
    let bytes = |src: u16, dst: u16| {
        let (src, dst) = (src.to_be_bytes(), dst.to_be_bytes());
        [src[0], src[1], dst[0], dst[1]]
    };
    (bytes(key.src_port, key.dst_port), bytes(src_port, dst_port))
}

/// Rewrites at tc.
#[inline(always)]
pub fn skb<const N: usize>(skb: *mut __sk_buff, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
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
pub fn readdress<const N: usize>(skb: *mut __sk_buff, network: usize, work: &Work<N>, end: End) -> Result<(), Refused> {
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

/// Rewrites at XDP, where checksums are complete (on a real NIC; see the manual for veth).
///
/// A function of its own: off the stack of who calls.
#[inline(never)]
pub fn xdp<const N: usize>(bytes: Bytes, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
    let change = change(offsets, work, end);
    let old_address = checksum::add(0, &change.old);
    let new_address = checksum::add(0, &change.new);
    // Every pointer is checked before anything is written: never half a packet.
    let address = bytes.at::<[u8; N]>(change.address_at).ok_or(Refused)?;
    let ports = bytes.at::<[u8; 4]>(change.ports_at).ok_or(Refused)?;
    let transport = bytes.at::<[u8; 2]>(change.checksum_at).ok_or(Refused)?;
    let header = if N == 4 { Some(bytes.at::<[u8; 2]>(offsets.network + 10).ok_or(Refused)?) } else { None };
    // SAFETY: all within the packet, as `at` has checked.
    unsafe {
        let old = u16::from_be_bytes(transport.read());
        let is_udp = work.packet.key.protocol == UDP;
        // UDP over IPv4 may go without a checksum: 0 (RFC 768).
        if !(is_udp && old == 0) {
            let before = checksum::add(old_address, &change.old_ports);
            let after = checksum::add(new_address, &change.new_ports);
            let new = checksum::replace(old, before, after);
            transport.write(if is_udp && new == 0 { 0xffff_u16 } else { new }.to_be_bytes());
        }
        if let Some(header) = header {
            let old = u16::from_be_bytes(header.read());
            header.write(checksum::replace(old, old_address, new_address).to_be_bytes());
        }
        address.write(change.new);
        ports.write(change.new_ports);
    }
    Ok(())
}

/// Rewrites both ends at XDP, as a verdict with `masquerade` says.
#[inline(always)]
pub fn xdp_both<const N: usize>(bytes: Bytes, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
    let (key, is_udp) = (&work.packet.key, work.packet.key.protocol == UDP);
    let (old_ports, new_ports) = ports(work, end);
    let (src, dst) = ends(&work.verdict);
    let old = checksum::add(checksum::add(0, &key.src), &key.dst);
    let new = checksum::add(checksum::add(0, src), dst);
    let source_at = offsets.network + if N == 4 { 12 } else { 8 };
    // Every pointer is checked before anything is written: never half a packet.
    let addresses = bytes.at::<[[u8; N]; 2]>(source_at).ok_or(Refused)?;
    let transport_at = offsets.transport + if is_udp { 6 } else { 16 };
    let transport = bytes.at::<[u8; 2]>(transport_at).ok_or(Refused)?;
    let port_bytes = bytes.at::<[u8; 4]>(offsets.transport).ok_or(Refused)?;
    let header = if N == 4 { Some(bytes.at::<[u8; 2]>(offsets.network + 10).ok_or(Refused)?) } else { None };
    // SAFETY: all within the packet, as `at` has checked.
    unsafe {
        let sum = u16::from_be_bytes(transport.read());
        if !(is_udp && sum == 0) {
            let sum = checksum::replace(sum, checksum::add(old, &old_ports), checksum::add(new, &new_ports));
            transport.write(if is_udp && sum == 0 { 0xffff_u16 } else { sum }.to_be_bytes());
        }
        if let Some(header) = header {
            let sum = u16::from_be_bytes(header.read());
            header.write(checksum::replace(sum, old, new).to_be_bytes());
        }
        (*addresses)[0] = *src;
        (*addresses)[1] = *dst;
        port_bytes.write(new_ports);
    }
    Ok(())
}
