//! Another address and port written into a packet, checksums included, in each way that a program has. Each run changes both, so that
//! the next one finds something to do.

use aya_ebpf::bindings::xdp_action::{XDP_ABORTED, XDP_PASS};
use aya_ebpf::bindings::{BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, TC_ACT_UNSPEC};
use aya_ebpf::helpers::generated::{
    bpf_csum_diff, bpf_csum_update, bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_store_bytes,
};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

const ETHERNET: usize = 14;
const DROP: i32 = 2;
/// The last byte of a word, where it changes.
const LAST_BYTE: u32 = 0x0100_0000;
const PSEUDO: u64 = BPF_F_PSEUDO_HDR as u64;
/// `BPF_F_IPV6` (Linux 6.16): a complete checksum of the packet stays, since the address makes up for it.
const IPV6: u64 = 1 << 7;

/// Where things stand in a TCP packet without options or extension headers. `A` is the length of an address in words.
const fn address_at<const A: usize>() -> usize {
    ETHERNET + if A == 1 { 16 } else { 24 }
}

const fn ports_at<const A: usize>() -> usize {
    address_at::<A>() + A * 4
}

const fn checksum_at<const A: usize>() -> usize {
    ports_at::<A>() + 16
}

const HEADER_CHECKSUM: usize = ETHERNET + 10;

/// What is there and what shall be, as it stands in memory.
struct Change<const A: usize> {
    old: [u32; A],
    new: [u32; A],
    old_ports: u32,
    new_ports: u32,
}

#[inline(always)]
fn change<const A: usize>(start: usize, end: usize) -> Option<Change<A>> {
    if start + checksum_at::<A>() + 2 > end {
        return None;
    }
    let mut old = [0; A];
    for (number, word) in old.iter_mut().enumerate() {
        // SAFETY: within the packet. BPF loads whole words from anywhere.
        *word = unsafe { ((start + address_at::<A>() + number * 4) as *const u32).read_volatile() };
    }
    // SAFETY: as above.
    let old_ports = unsafe { ((start + ports_at::<A>()) as *const u32).read_volatile() };
    let mut new = old;
    new[A - 1] ^= LAST_BYTE;
    Some(Change { old, new, old_ports, new_ports: old_ports ^ LAST_BYTE })
}

/// A sum of 16 bit words, carries in the upper half.
#[inline(always)]
fn sum<const A: usize>(words: &[u32; A]) -> u64 {
    words.iter().fold(0, |sum, word| sum + u64::from(*word))
}

/// The checksum that a sum comes to, not complemented.
#[inline(always)]
fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// What is added to a sum when `old` becomes `new`: the new words and the complements of the old ones.
#[inline(always)]
fn difference(old: u64, new: u64) -> u64 {
    u64::from(!folded(old)) + new
}

/// The checksum after such a change (RFC 1624, equation 3).
#[inline(always)]
fn replaced(checksum: u16, difference: u64) -> u16 {
    !folded(u64::from(!checksum) + difference)
}

macro_rules! at_tc {
    ($($name:ident = $n:literal, $how:ident;)*) => {
        $(
            #[classifier]
            pub fn $name(context: TcContext) -> i32 {
                let Some(change) = change::<$n>(context.data(), context.data_end()) else { return DROP };
                if $how::<$n>(&context, change) == 0 { TC_ACT_UNSPEC } else { DROP }
            }
        )*
    };
}

at_tc! {
    write_five4 = 1, five;
    write_five6 = 4, five;
    write_once4 = 1, once;
    write_once6 = 4, once;
    write_once_flag6 = 4, once_flag;
    write_direct4 = 1, direct;
    write_direct6 = 4, direct;
    write_direct_flag6 = 4, direct_flag;
}

/// Every field by a helper of its own, and its checksum by another one.
#[inline(always)]
fn five<const A: usize>(context: &TcContext, mut change: Change<A>) -> i64 {
    let (skb, checksum) = (context.skb.skb, checksum_at::<A>() as u32);
    let (address, ports) = (address_at::<A>() as u32, ports_at::<A>() as u32);
    // SAFETY: helpers check every offset against the packet; the words live on this stack.
    unsafe {
        let mut failed = bpf_l4_csum_replace(skb, checksum, change.old_ports.into(), change.new_ports.into(), 4);
        failed |= bpf_skb_store_bytes(skb, ports, (&raw const change.new_ports).cast(), 4, 0);
        if A == 1 {
            let (old, new) = (change.old[0].into(), change.new[0].into());
            failed |= bpf_l4_csum_replace(skb, checksum, old, new, PSEUDO | 4);
            failed |= bpf_l3_csum_replace(skb, HEADER_CHECKSUM as u32, old, new, 4);
            failed | bpf_skb_store_bytes(skb, address, change.new.as_ptr().cast(), 4, 0)
        } else {
            let difference = bpf_csum_diff(change.old.as_mut_ptr(), 16, change.new.as_mut_ptr(), 16, 0);
            failed |= bpf_l4_csum_replace(skb, checksum, 0, difference as u64, PSEUDO);
            failed | bpf_skb_store_bytes(skb, address, change.new.as_ptr().cast(), 16, BPF_F_RECOMPUTE_CSUM.into())
        }
    }
}

/// The transport's checksum, in both ways that it changes: by its ports, and by the addresses before it.
#[inline(always)]
fn checksum<const A: usize>(context: &TcContext, change: &Change<A>, flag: u64) -> i64 {
    let (skb, checksum) = (context.skb.skb, checksum_at::<A>() as u32);
    // SAFETY: helpers check the offset against the packet.
    unsafe {
        let failed = bpf_l4_csum_replace(skb, checksum, change.old_ports.into(), change.new_ports.into(), 4);
        if A == 1 {
            let (old, new) = (change.old[0].into(), change.new[0].into());
            return failed | bpf_l4_csum_replace(skb, checksum, old, new, PSEUDO | 4);
        }
        let difference = u32::from(folded(difference(sum(&change.old), sum(&change.new))));
        let failed = failed | bpf_l4_csum_replace(skb, checksum, 0, difference.into(), PSEUDO | flag);
        if flag == 0 {
            // Only packets with a complete checksum take it; the others say so, and that is no error.
            bpf_csum_update(skb, difference);
        }
        failed
    }
}

/// One store: header checksum, both addresses and ports of IPv4, address and ports of IPv6.
#[inline(always)]
fn stored<const A: usize>(context: &TcContext, change: &Change<A>, flag: u64) -> i64 {
    let skb = context.skb.skb;
    if A == 1 {
        let (start, end) = (context.data(), context.data_end());
        if start + address_at::<A>() > end {
            return 1;
        }
        // SAFETY: within the packet, as was compared.
        let (header, src) = unsafe {
            let header = ((start + HEADER_CHECKSUM) as *const u16).read_volatile();
            (header, ((start + HEADER_CHECKSUM + 2) as *const u32).read_volatile())
        };
        let header = replaced(header, difference(sum(&change.old), sum(&change.new)));
        // The first two bytes are not written.
        let words = [u32::from(header) << 16, src, change.new[0], change.new_ports];
        let failed = checksum(context, change, flag);
        // SAFETY: the helper checks the offset against the packet; the words live on this stack.
        failed
            | unsafe {
                let from = (&raw const words).byte_add(2).cast();
                bpf_skb_store_bytes(skb, HEADER_CHECKSUM as u32, from, 14, 0)
            }
    } else {
        let mut words = [0; 5];
        words[..4].copy_from_slice(&change.new[..4]);
        words[4] = change.new_ports;
        let failed = checksum(context, change, flag);
        // SAFETY: as above.
        failed | unsafe { bpf_skb_store_bytes(skb, address_at::<A>() as u32, words.as_ptr().cast(), 20, 0) }
    }
}

#[inline(always)]
fn once<const A: usize>(context: &TcContext, change: Change<A>) -> i64 {
    stored(context, &change, 0)
}

#[inline(always)]
fn once_flag<const A: usize>(context: &TcContext, change: Change<A>) -> i64 {
    stored(context, &change, IPV6)
}

#[inline(always)]
fn direct<const A: usize>(context: &TcContext, change: Change<A>) -> i64 {
    // Helpers may move the packet: what the program writes itself comes behind them.
    checksum(context, &change, 0) | i64::from(write(context.data(), context.data_end(), &change).is_none())
}

#[inline(always)]
fn direct_flag<const A: usize>(context: &TcContext, change: Change<A>) -> i64 {
    checksum(context, &change, IPV6) | i64::from(write(context.data(), context.data_end(), &change).is_none())
}

/// The packet written by the program itself, but for the transport's checksum, which may be partial: only the kernel knows.
#[inline(always)]
fn write<const A: usize>(start: usize, end: usize, change: &Change<A>) -> Option<()> {
    if start + ports_at::<A>() + 4 > end {
        return None;
    }
    // SAFETY: within the packet, as was compared. BPF stores whole words anywhere.
    unsafe {
        ((start + ports_at::<A>()) as *mut u32).write_volatile(change.new_ports);
        for (number, word) in change.new.iter().enumerate() {
            ((start + address_at::<A>() + number * 4) as *mut u32).write_volatile(*word);
        }
        if A == 1 {
            let header = (start + HEADER_CHECKSUM) as *mut u16;
            header.write_volatile(replaced(header.read_volatile(), difference(sum(&change.old), sum(&change.new))));
        }
    }
    Some(())
}

/// At XDP checksums are complete.
#[inline(always)]
fn xdp_write<const A: usize>(context: &XdpContext) -> Option<()> {
    let (start, end) = (context.data(), context.data_end());
    let change = change::<A>(start, end)?;
    let checksum = (start + checksum_at::<A>()) as *mut u16;
    let difference =
        difference(sum(&change.old) + u64::from(change.old_ports), sum(&change.new) + u64::from(change.new_ports));
    // SAFETY: within the packet, as `change` has compared.
    unsafe { checksum.write_volatile(replaced(checksum.read_volatile(), difference)) };
    write(start, end, &change)
}

#[xdp]
pub fn xdp_write4(context: XdpContext) -> u32 {
    if xdp_write::<1>(&context).is_some() { XDP_PASS } else { XDP_ABORTED }
}

#[xdp]
pub fn xdp_write6(context: XdpContext) -> u32 {
    if xdp_write::<4>(&context).is_some() { XDP_PASS } else { XDP_ABORTED }
}
