//! Tail calls: the programs that hold what an entry program does not.
//!
//! A call that fails comes back: its slot is empty, because a program was taken out of the array by somebody else. Then the packet has a
//! counted verdict of its own.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::outcome::Outcome;
use lb_common::stages::{TcStage, XdpStage};

use crate::counters::{self, Counter};
use crate::maps::{TC_PROGRAMS, XDP_PROGRAMS};

/// Goes on in the program of this stage; gives the verdict at tc if there is none: `otherwise`.
#[inline(always)]
pub fn tc<const N: usize>(skb: *mut __sk_buff, stage: TcStage, otherwise: i32) -> i32 {
    // SAFETY: nothing is held that must be dropped.
    unsafe { TC_PROGRAMS.tail_call(&TcContext::new(skb), stage.slot::<N>()) };
    counters::outcome(Outcome::NoProgram, Counter::Packet);
    otherwise
}

/// Goes on in the program of this stage; gives the verdict at XDP if there is none: `otherwise`.
#[inline(always)]
pub fn xdp<const N: usize>(context: *mut xdp_md, stage: XdpStage, otherwise: u32) -> u32 {
    // SAFETY: nothing is held that must be dropped.
    unsafe { XDP_PROGRAMS.tail_call(&XdpContext::new(context), stage.slot::<N>()) };
    counters::outcome(Outcome::NoProgram, Counter::Packet);
    otherwise
}
