//! The decision beyond an established connection: each step is a program, which names the next one.

use aya_ebpf::bindings::__sk_buff;
use lb_common::decide::{self, Hook, Step, Work};
use lb_common::stages::TcStage;

use crate::fast_path::FAST_PATH_ON;
use crate::kernel::Kernel;
use crate::maps;
use crate::scratch::Scratch;
use crate::tail_call;
use crate::tc::forward::{DROP, NEXT};

/// Takes the step that the scratch record names, `body`, and goes on to the next one.
///
/// Inlined with its body. A tail call from another function than the program itself would return to it, and the compiler takes the verdict of a
/// failed call for the only one.
#[inline(always)]
pub fn run<const N: usize>(
    skb: *mut __sk_buff,
    body: impl FnOnce(&mut Kernel, &mut Work<N>, Hook, Step) -> Step,
) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let step = body(&mut tables, &mut scratch.work, scratch.point.hook(), scratch.step);
    go_on(skb, scratch, step)
}

/// Calls the program of this step.
#[inline(always)]
pub fn go_on<const N: usize>(skb: *mut __sk_buff, scratch: &mut Scratch<N>, step: Step) -> i32 {
    scratch.step = step;
    let stage = match step {
        // Of an ICMP error that is shown as a RST, only the connection's own answer counts.
        Step::Retry => TcStage::Retry,
        _ if scratch.work.packet.is_error => TcStage::Verdict,
        Step::Syn | Step::Draining | Step::Adopted | Step::Refresh | Step::Remove | Step::Reselect => {
            TcStage::Established
        }
        Step::Handshake => TcStage::Handshake,
        Step::MidStream => TcStage::Complete,
        Step::Select => TcStage::Select,
        Step::Direct if scratch.point.hook().has(Hook::FROM_CLIENT | Hook::REPLIES) => TcStage::Direct,
        Step::Allocate => TcStage::Allocate,
        Step::Direct | Step::Decided | Step::Unrelated => TcStage::Verdict,
    };
    // What may be a service's packet goes no further without the program that knows.
    tail_call::tc::<N>(skb, stage, if matches!(step, Step::Direct | Step::Adopted) { NEXT } else { DROP })
}

/// [`TcStage::Allocate`].
#[inline(always)]
pub fn allocate<const N: usize>(tables: &mut Kernel, work: &mut Work<N>, hook: Hook, mut step: Step) -> Step {
    if hook.has(Hook::FROM_CLIENT) && FAST_PATH_ON.load() != 0 {
        step = decide::lead(tables, work, hook, step);
    }
    decide::allocate(tables, work, hook, step)
}
