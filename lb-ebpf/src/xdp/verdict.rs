//! Does what a verdict says, at XDP.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use lb_common::abi::hook;
use lb_common::decide::{Action, Work};
use lb_common::outcome::Outcome;
use lb_common::stages::XdpStage;

use crate::counters::{self, Counter};
use crate::cpu_bucket;
use crate::maps;
use crate::nat::End;
use crate::scratch::Scratch;
use crate::tail_call;
use crate::xdp::frame::{bytes, take_off};
use crate::xdp::nat;
use lb_common::parse::{ETHERNET, IPV4_HEADER, IPV6_HEADER, Offsets};

/// [`XdpStage::Verdict`].
#[inline(always)]
pub fn run<const N: usize>(context: *mut xdp_md) -> u32 {
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    act(context, scratch)
}

/// No header that is read at XDP begins beyond: the verifier knows nothing of what the scratch record holds.
pub const TRANSPORT_MASK: usize = 0x7f;
const _: () = assert!(ETHERNET + IPV4_HEADER + 60 <= TRANSPORT_MASK && ETHERNET + 2 * IPV6_HEADER <= TRANSPORT_MASK);

/// Where the transport header begins.
#[inline(always)]
pub fn transport<const N: usize>(scratch: &Scratch<N>) -> usize {
    scratch.transport as usize & TRANSPORT_MASK
}

/// Does as the verdict of the scratch record says.
#[inline(always)]
pub fn act<const N: usize>(context: *mut xdp_md, scratch: &mut Scratch<N>) -> u32 {
    let work = &scratch.work;
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    match work.verdict.action {
        Action::Pass if work.verdict.outcome == Outcome::Passed => XDP_PASS,
        // tc would drop it.
        Action::Refuse if !cpu_bucket::has_answer(work.verdict.outcome) => {
            counters::outcome(Outcome::AnswerLimited, Counter::Packet);
            counters::packet(work, hook::XDP, ifindex, work.packet.length);
            XDP_DROP
        }
        // Only tc can turn a packet into its answer.
        Action::Pass | Action::Refuse => leave_to_tc(),
        Action::Drop => {
            counters::packet(work, hook::XDP, ifindex, work.packet.length);
            XDP_DROP
        }
        // What came in an outer header is for a backend of this node. Only tc can swap a packet's ends.
        _ if (scratch.is_encapsulated && work.verdict.route) || work.verdict.turns_back(&work.packet.key) => {
            leave_known_to_tc(work, ifindex)
        }
        Action::ToBackend if work.verdict.port == 0 => tail_call::xdp::<N>(context, XdpStage::Encapsulate, XDP_PASS),
        _ if work.verdict.route => tail_call::xdp::<N>(context, XdpStage::Route, XDP_PASS),
        Action::ToBackend | Action::ToClient => {
            counters::packet(work, hook::XDP, ifindex, work.packet.length);
            if scratch.is_encapsulated && take_off::<N>(context).is_err() {
                return lost();
            }
            let offsets = Offsets { network: ETHERNET, transport: transport(scratch) };
            match nat::one_end(bytes(context), offsets, work, End::of(work)) {
                Ok(()) => XDP_PASS,
                Err(_) => lost(),
            }
        }
    }
}

/// Leaves a packet to tc.
#[inline(always)]
pub fn leave_to_tc() -> u32 {
    counters::outcome(Outcome::HandedToTc, Counter::Packet);
    XDP_PASS
}

/// Leaves a packet with a verdict of its own to tc, where its connection is a known one. What the connection began as is counted here.
#[inline(always)]
pub fn leave_known_to_tc<const N: usize>(work: &Work<N>, ifindex: u32) -> u32 {
    counters::beginning(work, hook::XDP, ifindex);
    leave_to_tc()
}

/// Drops a packet that could not be written.
#[inline(always)]
pub fn lost() -> u32 {
    counters::outcome(Outcome::DroppedRewrite, Counter::Packet);
    XDP_DROP
}
