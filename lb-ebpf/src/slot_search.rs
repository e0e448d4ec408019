//! Looks for a slot with a backend for a new flow, in functions that the verifier walks once.

use core::ffi::c_void;

use aya_ebpf::bindings::bpf_sock_addr;
use lb_common::decide::{self, Pick};

use crate::maps::{Family, Maps, socket_scratch};
use crate::tables::{Kernel, SocketKernel, changes};

/// [`decide::look`], with `pick` in the scratch record: that of packets, or of a socket.
///
/// A *global* function (exported, never inlined) is verified once and by itself; the kernel would walk any other function again for each turn
/// of the loop. It finds the scratch record by itself: pointers to memory as arguments need Linux 5.12, and before 6.2 no key and no value of a
/// map comes from such memory.
#[inline(always)]
pub fn look<const N: usize>(context: *mut c_void, in_socket: bool, pick: &mut Pick<N>, how: u32, now_s: u32) -> bool {
    changes(pick);
    let socket = context.cast();
    let found = match (in_socket, N) {
        (false, 4) => look4(how, now_s),
        (false, _) => look6(how, now_s),
        (true, 4) => look_for_socket4(socket, how, now_s),
        (true, _) => look_for_socket6(socket, how, now_s),
    };
    found != 0
}

macro_rules! look {
    ($name:ident, $for_socket:ident, $n:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(how: u32, now_s: u32) -> u32 {
            let Some(scratch) = <Maps as Family<$n>>::scratch() else { return 0 };
            // No look at a slot asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::look_for(&mut tables, &mut scratch.work, how, now_s))
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $for_socket(context: *mut bpf_sock_addr, how: u32, now_s: u32) -> u32 {
            let Some(scratch) = socket_scratch::<$n>(context, 0) else { return 0 };
            let mut tables = SocketKernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::look(&mut tables, &scratch.key, &mut scratch.pick, how, now_s))
        }
    };
}

look!(look4, look_for_socket4, 4);
look!(look6, look_for_socket6, 16);
