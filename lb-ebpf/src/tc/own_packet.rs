//! Packets of our own: what the packet of another one becomes.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_l4_csum_replace;
use lb_common::checksum;
use lb_common::decide::Packet;

use crate::nat::Refused;
use crate::tc::skb::{load, store};
use lb_common::parse::{HOPS, IPV4_HEADER, Offsets};

/// Where the checksum stands in the header of TCP.
pub const TCP_CHECKSUM: u32 = 16;

/// Whether the packet's checksum is partial: the kernel notes it with the packet, and completes it where the packet leaves over a
/// link that cannot. No field tells, but the kernel's helper leaves the checksum alone then, whatever else changes.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn is_partial(skb: *mut __sk_buff, checksum_at: u32) -> bool {
    let mut before = [0u8; 2];
    let mut after = [0u8; 2];
    let at = checksum_at as usize;
    // SAFETY: the helper checks the offset against the packet.
    if load(skb, at, &mut before).is_err() || unsafe { bpf_l4_csum_replace(skb, checksum_at, 0, 1, 2) } != 0 {
        return false;
    }
    let asked = load(skb, at, &mut after);
    // What was read is put back: it may be quoted.
    asked.is_ok() && store(skb, at, &before).is_ok() && before == after
}

/// Sum of the pseudo-header of the answer. It does not change when source and destination trade places.
#[inline(always)]
pub fn pseudo_header<const N: usize>(packet: &Packet<N>, protocol: u8, length: u32) -> u32 {
    let key = &packet.key;
    checksum::add(checksum::add(u32::from(protocol) + length, &key.src), &key.dst)
}

/// A new network header, from the one who was asked to the one who asked.
#[inline(always)]
pub fn network_header<const N: usize>(
    skb: *mut __sk_buff,
    packet: &Packet<N>,
    offsets: Offsets,
    protocol: u8,
    payload: usize,
) -> Result<(), Refused> {
    let key = &packet.key;
    if N == 4 {
        let mut header = [0u8; IPV4_HEADER];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((IPV4_HEADER + payload) as u16).to_be_bytes());
        // Don't fragment: what we make is shorter than any link allows.
        header[6] = 0x40;
        header[8] = HOPS;
        header[9] = protocol;
        header[12..16].copy_from_slice(&[key.dst[0], key.dst[1], key.dst[2], key.dst[3]]);
        header[16..20].copy_from_slice(&[key.src[0], key.src[1], key.src[2], key.src[3]]);
        let sum = !checksum::fold(checksum::add(0, &header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        store(skb, offsets.network, &header)
    } else {
        let mut first = [0u8; 8];
        first[0] = 0x60;
        first[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        first[6] = protocol;
        first[7] = HOPS;
        store(skb, offsets.network, &first)?;
        store(skb, offsets.network + 8, &key.dst)?;
        store(skb, offsets.network + 24, &key.src)
    }
}
