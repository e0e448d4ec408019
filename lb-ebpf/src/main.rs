//! Ballast's eBPF programs. An entry program at each attach point reads a packet, looks its connection up, and forwards what belongs to
//! an established one. Everything else is done by programs that it tail calls ([`lb_common::stages`]). What they decide is in
//! [`lb_common::decide`].
#![no_std]
#![no_main]
// Unstable, and what aya-ebpf itself needs: inline assembly for this target.
#![feature(asm_experimental_arch)]

mod connect_times;
mod counters;
mod cpu_bucket;
mod fast_path;
mod features;
mod fib;
mod flood;
mod flow_tables;
mod gate;
mod global_functions;
mod kernel;
mod maps;
mod nat;
mod outer_header;
mod rate_limit;
mod scratch;
mod settings;
mod socket;
mod socket_lookup;
mod tables;
mod tail_call;
mod tc;
mod xdp;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: nothing in the programs panics, and the verifier would refuse the endless loop if it could be reached.
    loop {}
}

/// Lets the programs call the helpers that the kernel reserves for programs under the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
