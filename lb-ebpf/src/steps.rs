//! The decision's steps beyond a known flow, each a *global* function: the kernel verifies it once and by itself, whatever may lead
//! to it, where a function of the usual kind is walked again on every path that calls it.
//!
//! A global function is exported (`extern "C"`, `no_mangle`, never inlined), takes the context and plain numbers, and returns a
//! number. Nothing is known of what its arguments hold, so it looks the scratch record up anew and finds there what the step before
//! left. Its stack counts along the chain of calls: the steps are called one after the other, never one by the other.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use lb_common::abi::FlowKey;
use lb_common::decide::{self, Hook, Pick, Reserved, Step, Tables, Work};

use crate::fast::FAST_PATH_ON;
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
fn run<const N: usize>(context: *mut c_void, ifindex: u32, hook: Hook, task: u32, body: Body<N>) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return Step::Decided as u32 };
    let step = Step::from_number((task >> 8) as u8);
    body(&mut Kernel::at(context, ifindex), work, hook, step) as u32
}

/// The hook of a step at XDP: a constant, for what only tc can do. The number is looked at all the same.
#[inline(always)]
fn looked_at(task: u32) -> Hook {
    // SAFETY: the instruction changes nothing.
    unsafe { asm!("{task} = {task}", task = in(reg) u64::from(task)) };
    Hook::XDP
}

macro_rules! steps {
    ($context:ty, $ifindex:ident, $hook:expr; $($name:ident = $body:path, $n:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(context: *mut $context, task: u32) -> u32 {
                // SAFETY: reads the context; volatile, so that no function is one that does not look at it.
                let ifindex = unsafe { (&raw const (*context).$ifindex).read_volatile() };
                let hook: fn(u32) -> Hook = $hook;
                run::<$n>(context.cast(), ifindex, hook(task), task, $body)
            }
        )*
    };
}

steps! {
    __sk_buff, ifindex, |task| Hook(task as u8);
    syn4 = decide::syn, 4;
    syn6 = decide::syn, 16;
    keep4 = decide::keep, 4;
    keep6 = decide::keep, 16;
    open4 = decide::open, 4;
    open6 = decide::open, 16;
    retry4 = decide::retry, 4;
    retry6 = decide::retry, 16;
    select4 = decide::select, 4;
    select6 = decide::select, 16;
    direct4 = decide::direct, 4;
    direct6 = decide::direct, 16;
    lead4 = decide::lead, 4;
    lead6 = decide::lead, 16;
    place4 = decide::place, 4;
    place6 = decide::place, 16;
}

// No client sends directly at XDP: its connections do not move, and a direct packet is none to look at.
steps! {
    xdp_md, ingress_ifindex, looked_at;
    xdp_syn4 = decide::syn, 4;
    xdp_syn6 = decide::syn, 16;
    xdp_keep4 = decide::keep, 4;
    xdp_keep6 = decide::keep, 16;
    xdp_open4 = decide::open, 4;
    xdp_open6 = decide::open, 16;
    xdp_select4 = decide::select, 4;
    xdp_select6 = decide::select, 16;
    xdp_place4 = decide::place, 4;
    xdp_place6 = decide::place, 16;
}

/// Calls one step and names the next.
macro_rules! call {
    ($step:ident, $hook:ident, $context:ident, $n:ident: $four:ident, $six:ident) => {{
        let task = task($hook, $step);
        Step::from_number(if $n == 4 { $four($context, task) } else { $six($context, task) } as u8)
    }};
}

/// Goes through the steps that are left, at tc. A step that no packet of this hook comes to is not loaded with it.
#[inline(always)]
pub fn tc<const N: usize>(skb: *mut __sk_buff, mut step: Step, hook: Hook) {
    let (requests, from_client) = (hook.has(Hook::REQUESTS), hook.has(Hook::FROM_CLIENT));
    if step == Step::Syn {
        step = call!(step, hook, skb, N: syn4, syn6);
    }
    if step.keeps() {
        step = call!(step, hook, skb, N: keep4, keep6);
    }
    if step == Step::Open {
        step = call!(step, hook, skb, N: open4, open6);
    }
    // Connections of a client's own link move, and a backend's refusal is seen where replies are rewritten.
    if step == Step::Retry {
        step = call!(step, hook, skb, N: retry4, retry6);
    }
    if requests && step == Step::Select {
        step = call!(step, hook, skb, N: select4, select6);
    }
    if requests && step == Step::Unseen {
        step = call!(step, hook, skb, N: open4, open6);
    }
    if from_client && step == Step::Direct {
        step = call!(step, hook, skb, N: direct4, direct6);
    }
    if from_client && FAST_PATH_ON.load() != 0 && step == Step::Place {
        step = call!(step, hook, skb, N: lead4, lead6);
    }
    if requests && step == Step::Place {
        let _ = call!(step, hook, skb, N: place4, place6);
    }
}

/// Goes through the steps that know half-open flows, for a refusal that the scratch record holds.
#[inline(always)]
pub fn refusal<const N: usize>(skb: *mut __sk_buff, hook: Hook) {
    let mut step = Step::Open;
    step = call!(step, hook, skb, N: open4, open6);
    if step == Step::Retry {
        let _ = call!(step, hook, skb, N: retry4, retry6);
    }
}

/// Goes through the steps that are left, at XDP; gives the one that only tc has.
#[inline(always)]
pub fn xdp<const N: usize>(context: *mut xdp_md, mut step: Step) -> Step {
    let hook = Hook::XDP;
    if step == Step::Syn {
        step = call!(step, hook, context, N: xdp_syn4, xdp_syn6);
    }
    if step.keeps() {
        step = call!(step, hook, context, N: xdp_keep4, xdp_keep6);
    }
    if step == Step::Open {
        step = call!(step, hook, context, N: xdp_open4, xdp_open6);
    }
    if step == Step::Select {
        step = call!(step, hook, context, N: xdp_select4, xdp_select6);
    }
    if step == Step::Unseen {
        step = call!(step, hook, context, N: xdp_open4, xdp_open6);
    }
    if step == Step::Place {
        step = call!(step, hook, context, N: xdp_place4, xdp_place6);
    }
    // A packet that no service is meant by.
    if step == Step::Direct { Step::Decided } else { step }
}

/// Looks at one slot in search of a backend ([`decide::look`]), at every kind of hook.
#[inline(always)]
pub fn look<const N: usize>(key: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_s: u32) -> bool {
    let (key, pick) = (core::ptr::from_ref(key), core::ptr::from_mut(pick));
    // The same types, as the constant says.
    let found =
        if N == 4 { look4(key.cast(), pick.cast(), how, now_s) } else { look6(key.cast(), pick.cast(), how, now_s) };
    found != 0
}

macro_rules! look {
    ($name:ident, $n:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(key: *const FlowKey<$n>, pick: *mut Pick<$n>, how: u32, now_s: u32) -> u32 {
            // SAFETY: the caller's own records; the verifier knows of them no more than their sizes.
            let (Some(key), Some(pick)) = (unsafe { key.as_ref() }, unsafe { pick.as_mut() }) else { return 0 };
            // No look at a slot asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::look(&mut tables, key, pick, how, now_s))
        }
    };
}

look!(look4, 4);
look!(look6, 16);

/// Claims the tuple of a flow's answers ([`decide::reserve`]), at every kind of hook.
#[inline(always)]
pub fn reserve<const N: usize>(work: &mut Work<N>, now_s: u32) -> Reserved {
    let work = core::ptr::from_mut(work);
    // The same type, as the constant says.
    Reserved::from_number(if N == 4 { reserve4(work.cast(), now_s) } else { reserve6(work.cast(), now_s) })
}

macro_rules! reserve {
    ($name:ident, $n:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(work: *mut Work<$n>, now_s: u32) -> u32 {
            // SAFETY: the caller's own record; the verifier knows of it no more than its size.
            let Some(work) = (unsafe { work.as_mut() }) else { return 0 };
            // No claim asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            decide::reserve(&mut tables, work, now_s) as u32
        }
    };
}

reserve!(reserve4, 4);
reserve!(reserve6, 16);
