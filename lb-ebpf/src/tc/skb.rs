//! A packet at tc by the kernel's helpers: any byte of it, wherever the kernel holds it.

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes};

use lb_common::abi::FlowKey;
use lb_common::checksum;

use crate::nat::Refused;

/// Reads bytes of the packet.
#[inline(always)]
pub fn load<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &mut [u8; L]) -> Result<(), Refused> {
    // SAFETY: the helper checks offset and length against the packet; the array is as long as is said.
    let failed = unsafe { bpf_skb_load_bytes(skb.cast(), offset as u32, bytes.as_mut_ptr().cast(), L as u32) };
    if failed == 0 { Ok(()) } else { Err(Refused) }
}

/// Writes bytes whose change of the packet's sum another change makes up for, or that belong to a packet of our own.
#[inline(always)]
pub fn store<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &[u8; L]) -> Result<(), Refused> {
    store_with(skb, offset, bytes, 0)
}

/// Writes bytes; a complete sum that the kernel keeps of the packet follows.
#[inline(always)]
pub fn store_summed<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &[u8; L]) -> Result<(), Refused> {
    store_with(skb, offset, bytes, u64::from(BPF_F_RECOMPUTE_CSUM))
}

#[inline(always)]
fn store_with<const L: usize>(skb: *mut __sk_buff, offset: usize, bytes: &[u8; L], flags: u64) -> Result<(), Refused> {
    // SAFETY: as for `load`.
    let failed = unsafe { bpf_skb_store_bytes(skb, offset as u32, bytes.as_ptr().cast(), L as u32, flags) };
    if failed == 0 { Ok(()) } else { Err(Refused) }
}

/// Cuts the packet off, or makes it longer. It also ends segmentation offload: what is left is one packet.
#[inline(always)]
pub fn resize(skb: *mut __sk_buff, length: usize) -> Result<(), Refused> {
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_skb_change_tail(skb, length as u32, 0) } == 0 { Ok(()) } else { Err(Refused) }
}

/// Brings an IPv4 header's checksum along.
#[inline(always)]
pub fn resum(skb: *mut __sk_buff, at: usize, before: u32, after: u32) -> Result<(), Refused> {
    let mut sum = [0u8; 2];
    load(skb, at, &mut sum)?;
    let new = checksum::replace(u16::from_be_bytes(sum), before, after);
    store_summed(skb, at, &new.to_be_bytes())
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
