//! A pod that reaches itself through its service: the packet goes back over the link that it came by, addresses swapped, so that
//! each end of the connection sees the service's address as the other's.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0};
use aya_ebpf::helpers::generated::bpf_l4_csum_replace;
use lb_common::abi::{SCTP, UDP};
use lb_common::decide::{Action, Work};
use lb_common::outcome::Outcome;

use crate::aside::Spot;
use crate::count::{self, Counter};
use crate::forward::{self, DROP};
use crate::maps::Family;
use crate::rewrite::{End, Refused, ports};
use crate::sctp;
use crate::skb::store;
use crate::tables::Kernel;

/// Does as a verdict with `hairpin` says; gives the verdict at tc. A *global* function, as the steps are.
#[inline(always)]
pub fn turn<const N: usize>(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    if N == 4 { hairpin4(skb, spot, transport) } else { hairpin6(skb, spot, transport) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hairpin4(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    back::<4>(skb, Spot::from_number(spot), transport as usize)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hairpin6(skb: *mut __sk_buff, spot: u32, transport: u32) -> i32 {
    back::<16>(skb, Spot::from_number(spot), transport as usize)
}

#[inline(always)]
fn back<const N: usize>(skb: *mut __sk_buff, spot: Spot, transport: usize) -> i32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return DROP };
    if write(skb, spot.network, transport, work).is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return DROP;
    }
    forward::back(skb, spot.network, spot.ingress)
}

/// Addresses trade places, which no sum notices; only the ports do.
#[inline(always)]
fn write<const N: usize>(skb: *mut __sk_buff, network: usize, transport: usize, work: &Work<N>) -> Result<(), Refused> {
    let key = &work.packet.key;
    let end = if work.verdict.action == Action::ToBackend { End::Destination } else { End::Source };
    let (old, new) = ports(work, end);
    if key.protocol == SCTP {
        sctp::write_ports(skb, transport, work, old, new)?;
    } else if old != new {
        let (at, mangled) = if key.protocol == UDP { (6, u64::from(BPF_F_MARK_MANGLED_0)) } else { (16, 0) };
        let (from, to) = (u64::from(u32::from_ne_bytes(old)), u64::from(u32::from_ne_bytes(new)));
        // SAFETY: the helper checks the offset against the packet.
        if unsafe { bpf_l4_csum_replace(skb, (transport + at) as u32, from, to, mangled | 4) } != 0 {
            return Err(Refused);
        }
        store(skb, transport, &new)?;
    }
    swap(skb, network, &key.src, &key.dst)
}

/// Writes the addresses the other way round.
#[inline(always)]
pub fn swap<const N: usize>(skb: *mut __sk_buff, network: usize, src: &[u8; N], dst: &[u8; N]) -> Result<(), Refused> {
    let source_at = network + if N == 4 { 12 } else { 8 };
    store(skb, source_at, dst)?;
    store(skb, source_at + N, src)
}
