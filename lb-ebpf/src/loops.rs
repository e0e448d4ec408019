//! The bodies of two loops as *global* functions: one look at a slot in search of a backend, one claim of a tuple. The kernel verifies a
//! global function once and by itself; it would walk any other function again for each turn of the loop.
//!
//! A global function is exported (`extern "C"`, `no_mangle`, never inlined). Since Linux 5.12 it may take pointers to memory.

use core::arch::asm;

use lb_common::abi::FlowKey;
use lb_common::decide::{self, Pick, Reserved, Work};

use crate::maps::{Family, Maps};
use crate::tables::Kernel;

/// [`decide::look`].
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

/// Claims the tuple of a connection's replies ([`decide::reserve`]) for the scratch record `work`, which the function looks up by itself:
/// before Linux 6.2 no key and no value of a map comes from memory that a function was given.
#[inline(always)]
pub fn reserve<const N: usize>(work: &mut Work<N>, now_s: u32) -> Reserved {
    // The function changes the record, which the compiler must know.
    // SAFETY: the instruction changes nothing.
    unsafe { asm!("{0} = {0}", in(reg) core::ptr::from_mut(work)) };
    Reserved::from_number(if N == 4 { reserve4(now_s) } else { reserve6(now_s) })
}

macro_rules! reserve {
    ($name:ident, $n:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(now_s: u32) -> u32 {
            let Some(scratch) = <Maps as Family<$n>>::scratch() else { return Reserved::Taken as u32 };
            // No claim asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            decide::reserve(&mut tables, &mut scratch.work, now_s) as u32
        }
    };
}

reserve!(reserve4, 4);
reserve!(reserve6, 16);
