//! Counters and time stamps: of each CPU, and of all of them.

use core::arch::asm;

use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::macros::{btf_map, classifier};
use aya_ebpf::programs::TcContext;

use crate::keys::number;

/// Elements of each map.
const ELEMENTS: u32 = 1_024;
const MAX: usize = ELEMENTS as usize;

#[btf_map(name = "a_each")]
pub static EACH: PerCpuArray<u64, MAX> = PerCpuArray::new();
#[btf_map(name = "a_shared")]
pub static SHARED: Array<u64, MAX> = Array::new();

/// An element of the tables that stamps stand in: a cache line.
#[repr(C)]
pub struct Stamped([u64; 8]);

#[btf_map(name = "a_changed")]
pub static CHANGED: Array<Stamped, MAX> = Array::new();
#[btf_map(name = "a_always")]
pub static ALWAYS: Array<Stamped, MAX> = Array::new();
#[btf_map(name = "a_own")]
pub static OWN: PerCpuArray<Stamped, MAX> = PerCpuArray::new();

/// Which element: CPUs have numbers that differ only above.
#[inline(always)]
fn index() -> Option<u32> {
    number().map(|number| number & (ELEMENTS - 1))
}

/// A number and nothing done with it.
#[classifier]
pub fn count_none(_: TcContext) -> i32 {
    index().map_or(-1, |index| core::hint::black_box(index) as i32 & 1)
}

/// Adds to this CPU's own.
#[classifier]
pub fn count_each(_: TcContext) -> i32 {
    let Some(counter) = index().and_then(|index| EACH.get_ptr_mut(index)) else { return -1 };
    // SAFETY: this CPU's element, of this type.
    unsafe { *counter += 1 };
    1
}

/// Adds to that of all, at once.
#[classifier]
pub fn count_shared(_: TcContext) -> i32 {
    let Some(counter) = index().and_then(|index| SHARED.get_ptr_mut(index)) else { return -1 };
    // SAFETY: an element of this type, aligned; libcore has no atomics for this target, the instruction set has.
    unsafe { asm!("lock *(u64 *)({counter} + 0) += {one}", counter = in(reg) counter, one = in(reg) 1_u64) };
    1
}

macro_rules! stamp {
    ($(#[$what:meta])* $name:ident, $map:ident, $if_changed:literal) => {
        $(#[$what])*
        #[classifier]
        pub fn $name(_: TcContext) -> i32 {
            let Some(element) = index().and_then(|index| $map.get_ptr_mut(index)) else { return -1 };
            let stamp: *mut u64 = element.cast();
            // SAFETY: an element of this type, aligned.
            unsafe {
                // What a packet needs of it is read in any case.
                stamp.add(1).read_volatile();
                if !$if_changed || stamp.read_volatile() != NOW {
                    stamp.write_volatile(NOW);
                }
            }
            1
        }
    };
}

/// The time, which changes once a second.
const NOW: u64 = 7;

stamp!(
    /// Writes the time where it is another: nearly never.
    stamp_changed, CHANGED, true
);
stamp!(
    /// Writes it always.
    stamp_always, ALWAYS, false
);
stamp!(
    /// Writes this CPU's own, always.
    stamp_each, OWN, false
);
