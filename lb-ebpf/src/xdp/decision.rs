//! The decision at XDP: what belongs to an established connection is decided here, each further step is a program, which names the next one.
//!
//! No client sends directly at XDP: its connections are not retried here, and none of its own traffic is to be seen.

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::xdp_md;
use lb_common::decide::{Hook, Step, Work, begin};
use lb_common::stages::XdpStage;

use crate::kernel::Kernel;
use crate::maps;
use crate::scratch::Scratch;
use crate::tail_call;
use crate::xdp::verdict;

/// Looks the connection of the packet in the scratch record up, and goes on.
#[inline(always)]
pub fn look_up<const N: usize>(context: *mut xdp_md, scratch: &mut Scratch<N>, transport: usize) -> u32 {
    // SAFETY: reads the context.
    let mut tables = Kernel::at(context.cast(), unsafe { (*context).ingress_ifindex });
    scratch.transport = transport as u32;
    match begin::<N, Kernel>(&mut tables, &mut scratch.work, Hook::XDP) {
        // tc counts what passes; a packet is counted once.
        Step::Unrelated => XDP_PASS,
        Step::Decided => verdict::act(context, scratch),
        step => go_on(context, scratch, step),
    }
}

/// Takes the step that the scratch record names, `body`, and goes on to the next one.
///
/// Inlined with its body. A tail call from another function than the program itself would return to it, and the compiler takes the verdict of a
/// failed call for the only one.
#[inline(always)]
pub fn run<const N: usize>(
    context: *mut xdp_md,
    body: impl FnOnce(&mut Kernel, &mut Work<N>, Hook, Step) -> Step,
) -> u32 {
    let Some(scratch) = maps::scratch::<N>() else { return XDP_PASS };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(context.cast(), unsafe { (*context).ingress_ifindex });
    let step = body(&mut tables, &mut scratch.work, Hook::XDP, scratch.step);
    go_on(context, scratch, step)
}

/// Calls the program of this step.
#[inline(always)]
fn go_on<const N: usize>(context: *mut xdp_md, scratch: &mut Scratch<N>, step: Step) -> u32 {
    scratch.step = step;
    let stage = match step {
        Step::Syn | Step::Draining | Step::Adopted | Step::Refresh | Step::Remove | Step::Reselect => {
            XdpStage::Established
        }
        Step::Handshake => XdpStage::Handshake,
        Step::MidStream => XdpStage::Complete,
        Step::Select => XdpStage::Select,
        Step::Allocate => XdpStage::Allocate,
        // No client's link is an external one: what is left to do, tc does.
        Step::Retry => return verdict::leave_to_tc(),
        Step::Direct | Step::Decided | Step::Unrelated => XdpStage::Verdict,
    };
    tail_call::xdp::<N>(context, stage, XDP_PASS)
}
