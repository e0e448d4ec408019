//! The decision's steps beyond a known flow, each a *global* function: the kernel verifies it once and by itself, whatever may lead
//! to it, where a function of the usual kind is walked again on every path that calls it.
//!
//! A global function is exported (`extern "C"`, `no_mangle`, never inlined), takes the context and plain numbers, and returns a
//! number. Nothing is known of what its arguments hold, so it looks the scratch record up anew and finds there what the step before
//! left. Its stack counts along the chain of calls: the steps are called one after the other, never one by the other.

use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use lb_common::decide::{self, Hook, Step, Tables, Work};

use crate::maps::Family;
use crate::tables::Kernel;

/// A step over the scratch record, as `lb_common` has it.
type Body<const N: usize> = fn(&mut Kernel, &mut Work<N>, Hook, Step) -> Step;

/// Hook and step as one number. The compiler passes nothing for an argument that a function does not look at, which the verifier
/// refuses: every function looks at this one.
#[inline(always)]
const fn task(hook: Hook, step: Step) -> u32 {
    hook.0 as u32 | (step as u32) << 8
}

#[inline(always)]
fn run<const N: usize>(context: *mut c_void, ifindex: u32, task: u32, body: Body<N>) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return Step::Decided as u32 };
    let (hook, step) = (Hook(task as u8), Step::from_number((task >> 8) as u8));
    body(&mut Kernel { context, ifindex }, work, hook, step) as u32
}

macro_rules! steps {
    ($context:ty, $ifindex:ident: $($name:ident = $body:path, $n:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(context: *mut $context, task: u32) -> u32 {
                // SAFETY: reads the context; volatile, so that no function is one that does not look at it.
                let ifindex = unsafe { (&raw const (*context).$ifindex).read_volatile() };
                run::<$n>(context.cast(), ifindex, task, $body)
            }
        )*
    };
}

steps! {
    __sk_buff, ifindex:
    keep4 = decide::keep, 4;
    keep6 = decide::keep, 16;
    select4 = decide::select, 4;
    select6 = decide::select, 16;
    direct4 = decide::direct, 4;
    direct6 = decide::direct, 16;
}

steps! {
    xdp_md, ingress_ifindex:
    xdp_keep4 = decide::keep, 4;
    xdp_keep6 = decide::keep, 16;
    xdp_select4 = decide::select, 4;
    xdp_select6 = decide::select, 16;
}

/// Goes through the steps that are left, at tc.
#[inline(always)]
pub fn tc<const N: usize>(skb: *mut __sk_buff, mut step: Step, hook: Hook) {
    if step.keeps() {
        let task = task(hook, step);
        step = Step::from_number(if N == 4 { keep4(skb, task) } else { keep6(skb, task) } as u8);
    }
    if step == Step::Select {
        let task = task(hook, step);
        step = Step::from_number(if N == 4 { select4(skb, task) } else { select6(skb, task) } as u8);
    }
    if step == Step::Direct {
        let task = task(hook, step);
        if N == 4 {
            direct4(skb, task)
        } else {
            direct6(skb, task)
        };
    }
}

/// Goes through the steps that are left, at XDP. No client sends directly there: a direct packet is none to look at.
#[inline(always)]
pub fn xdp<const N: usize>(context: *mut xdp_md, mut step: Step) {
    if step.keeps() {
        let task = task(Hook::XDP, step);
        step = Step::from_number(if N == 4 { xdp_keep4(context, task) } else { xdp_keep6(context, task) } as u8);
    }
    if step == Step::Select {
        let task = task(Hook::XDP, step);
        if N == 4 {
            xdp_select4(context, task)
        } else {
            xdp_select6(context, task)
        };
    }
}
