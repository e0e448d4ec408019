//! Address translation at XDP, where checksums are complete (on a real NIC; see the manual for veth): they follow by the difference.

use lb_common::abi::UDP;
use lb_common::checksum;
use lb_common::decide::Work;

use crate::nat::{End, Refused, change, ends, ports};
use lb_common::parse::{Bytes, Offsets};

/// Writes one end of the packet.
///
/// A function of its own: off the stack of who calls.
#[inline(never)]
pub fn one_end<const N: usize>(bytes: Bytes, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
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

/// Writes both ends of the packet, as a verdict with `masquerade` says.
#[inline(always)]
pub fn both_ends<const N: usize>(bytes: Bytes, offsets: Offsets, work: &Work<N>, end: End) -> Result<(), Refused> {
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
