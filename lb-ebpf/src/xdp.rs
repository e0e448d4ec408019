//! One packet at XDP: service addresses from outside, towards backends of this node. All else is left to tc, unmodified.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use lb_common::abi::hook;
use lb_common::decide::{Action, Hook, Step, Tables, begin};
use lb_common::outcome::Outcome;

use crate::count::{self, Counter};
use crate::maps::Family;
use crate::parse::{Bytes, ETHERNET, ETHERTYPE, IPV4, IPV6, parse};
use crate::rewrite::{self, End};
use crate::steps;
use crate::tables::Kernel;

#[inline(always)]
pub fn handle(context: *mut xdp_md) -> u32 {
    match bytes(context).read::<[u8; 2]>(ETHERTYPE).map(u16::from_be_bytes) {
        Some(IPV4) => family::<4>(context),
        Some(IPV6) => family::<16>(context),
        _ => XDP_PASS,
    }
}

#[inline(always)]
fn bytes(context: *mut xdp_md) -> Bytes {
    // SAFETY: reads the context.
    let (start, end) = unsafe { ((*context).data as usize, (*context).data_end as usize) };
    Bytes { start, end, length: end.wrapping_sub(start) as u32 }
}

#[inline(never)]
fn family<const N: usize>(context: *mut xdp_md) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    // What cannot be read here, tc can: it may pull the rest in. It counts, too.
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    let Ok(offsets) = parse(bytes(context), ETHERNET, &mut work.packet) else { return XDP_PASS };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let mut tables = Kernel { context: context.cast(), ifindex };
    let step = begin::<N, Kernel>(&mut tables, work, Hook::XDP);
    if step != Step::Decided {
        steps::xdp::<N>(context, step);
    }
    // Anew: the steps work in the same record.
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    let verdict = &work.verdict;
    match verdict.action {
        // tc counts what passes; a packet is counted once.
        Action::Pass if verdict.outcome == Outcome::Passed => return XDP_PASS,
        // Only tc can turn a packet into its answer.
        Action::Pass | Action::Refuse | Action::ToClient => {
            count::outcome(Outcome::HandedToTc, Counter::Packet);
            return XDP_PASS;
        }
        // Nor does XDP swap addresses, which a backend that is its own client needs.
        Action::ToBackend if verdict.hairpin => {
            count::outcome(Outcome::HandedToTc, Counter::Packet);
            return XDP_PASS;
        }
        Action::Drop | Action::ToBackend => {}
    }
    count::packet(work, hook::XDP, ifindex, work.packet.length);
    let verdict = &work.verdict;
    if verdict.action == Action::Drop {
        return XDP_DROP;
    }
    if rewrite::xdp(bytes(context), offsets, work, End::Destination).is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return XDP_DROP;
    }
    XDP_PASS
}
