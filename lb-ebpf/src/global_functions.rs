//! Global functions of the decision: exported and never inlined, so that the verifier walks each of them once and by itself.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, bpf_sock_addr};
use lb_common::decide::{self, Pick};

use crate::kernel::{Kernel, SocketKernel};
use crate::maps::{self, LINKS, socket_scratch};
use crate::socket_lookup;

macro_rules! direct_connection {
    ($name:ident, $n:literal) => {
        /// Whether the client at the link has a connection of its own with the reply key of the scratch record. A global function, so that the
        /// verifier walks it once and not for each port that is tried.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(packet: *mut __sk_buff, link: u32) -> u32 {
            let Some(scratch) = maps::scratch::<$n>() else { return 0 };
            // SAFETY: copied at once; a link's record is replaced as a whole.
            let Some(link) = (unsafe { LINKS.get(link) }).copied() else { return 0 };
            if link.peer_netns_id < 0 {
                return 0;
            }
            let reply = scratch.work.reply_key();
            u32::from(socket_lookup::holds_connection(packet.cast(), reply, link.peer_netns_id as u32))
        }
    };
}

direct_connection!(direct_connection4, 4);
direct_connection!(direct_connection6, 16);

/// [`decide::try_slot`], with `pick` in the scratch record: that of packets, or of a socket.
///
/// A *global* function (exported, never inlined) is verified once and by itself; the kernel would walk any other function again for each turn
/// of the loop. It finds the scratch record by itself: pointers to memory as arguments need Linux 5.12, and before 6.2 no key and no value of a
/// map comes from such memory.
#[inline(always)]
pub fn try_slot<const N: usize>(
    context: *mut c_void,
    in_socket: bool,
    pick: &mut Pick<N>,
    how: u32,
    now_ds: u32,
) -> bool {
    changes(pick);
    let socket = context.cast();
    let found = match (in_socket, N) {
        (false, 4) => try_slot4(how, now_ds),
        (false, _) => try_slot6(how, now_ds),
        (true, 4) => try_slot_of_socket4(socket, how, now_ds),
        (true, _) => try_slot_of_socket6(socket, how, now_ds),
    };
    found != 0
}

macro_rules! try_slot {
    ($name:ident, $for_socket:ident, $n:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(how: u32, now_ds: u32) -> u32 {
            let Some(scratch) = maps::scratch::<$n>() else { return 0 };
            // No look at a slot asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::try_slot_for(&mut tables, &mut scratch.work, how, now_ds))
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $for_socket(context: *mut bpf_sock_addr, how: u32, now_ds: u32) -> u32 {
            let Some(scratch) = socket_scratch::<$n>(context, 0) else { return 0 };
            let mut tables = SocketKernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::try_slot(&mut tables, &scratch.key, &mut scratch.pick, how, now_ds))
        }
    };
}

try_slot!(try_slot4, try_slot_of_socket4, 4);
try_slot!(try_slot6, try_slot_of_socket6, 16);

macro_rules! note_tried {
    ($name:ident, $n:literal) => {
        /// [`decide::note_tried`] for the scratch record: a global function, which is verified once and by itself.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(now_ds: u32) -> u32 {
            let Some(scratch) = maps::scratch::<$n>() else { return 0 };
            // No look at a backend asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            decide::note_tried(&mut tables, &mut scratch.work, now_ds);
            0
        }
    };
}

note_tried!(note_tried4, 4);
note_tried!(note_tried6, 16);

macro_rules! leaves_half {
    ($name:ident, $slot:ident, $n:literal) => {
        /// [`decide::is_out`], so that the verifier walks a slot once and no turn of the loop.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $slot(index: u32, id: u32) -> u32 {
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::is_out::<$n, _>(&mut tables, index, id))
        }

        /// [`decide::leaves_half`], a global function as those of [`try_slot`].
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(base: u32, count: u32, id: u32) -> u32 {
            // No look at a slot asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            u32::from(decide::leaves_half::<$n, _>(&mut tables, base, count, id))
        }
    };
}

leaves_half!(leaves_half4, is_out4, 4);
leaves_half!(leaves_half6, is_out6, 16);

/// Says that the next function changes the record, which the compiler must know.
#[inline(always)]
pub fn changes<T>(record: &mut T) {
    // SAFETY: the instruction changes nothing.
    unsafe { asm!("{0} = {0}", in(reg) core::ptr::from_mut(record)) };
}
