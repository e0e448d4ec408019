//! Other ways to do what Ballast's programs do, each in a program of its own, for `bench alternatives` to compare. Nothing here keeps
//! state that anybody reads.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod calls;
mod counters;
mod keys;
mod live;
mod own;
mod pairs;
mod tables;
mod write;

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// Nothing: what is measured with it is the measurement.
#[classifier]
pub fn nothing(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// The same at XDP.
#[xdp]
pub fn nothing_xdp(_: XdpContext) -> u32 {
    XDP_PASS
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to programs under this licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
