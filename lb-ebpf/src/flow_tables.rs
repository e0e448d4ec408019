//! The writes to the flow tables over the kernel's maps. The larger ones are *global* functions, as [`crate::global_functions`] explains.

use core::arch::asm;

use lb_common::decide::{self, Accepted, Established, FlowTables, Keeping, Reserved, Work};

use crate::global_functions::changes;
use crate::kernel::Kernel;
use crate::maps;

impl<const N: usize> FlowTables<N> for Kernel {
    #[inline(always)]
    fn fence(&mut self) {
        // An atomic addition is a full barrier on x86. Elsewhere it is none before Linux 5.12, which has those that return a value; there what
        // was written is visible long before the retry of another CPU has written two entries.
        let mut word = 0_u64;
        // SAFETY: a word of this function's own.
        unsafe { asm!("lock *(u64 *)({word} + 0) += {none}", word = in(reg) &raw mut word, none = in(reg) 0_u64) };
    }

    #[inline(always)]
    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved {
        reserve(work, port, now_s)
    }

    #[inline(always)]
    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted {
        accept(work, now_s)
    }

    #[inline(always)]
    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established {
        establish(work, link, generation, now_s)
    }

    #[inline(always)]
    fn keep_entries(&mut self, work: &mut Work<N>, keeping: Keeping) {
        changes(work);
        if N == 4 {
            keep_entries4(keeping as u32)
        } else {
            keep_entries6(keeping as u32)
        };
    }
}

/// A function of the decision as two global ones, for IPv4 and IPv6, and the one that calls that of its family; what it returns is a number
/// that the type knows. `$otherwise`: there is no scratch record, which does not happen.
macro_rules! global {
    ($(#[$meta:meta])* $name:ident, $four:ident, $six:ident, ($($argument:ident),*) -> $result:ident, $otherwise:expr) => {
        $(#[$meta])*
        #[inline(always)]
        fn $name<const N: usize>(work: &mut Work<N>, $($argument: u32),*) -> $result {
            changes(work);
            $result::from_number(if N == 4 { $four($($argument),*) } else { $six($($argument),*) })
        }
        global!(@ $name, $four, 4, ($($argument),*), $otherwise);
        global!(@ $name, $six, 16, ($($argument),*), $otherwise);
    };
    (@ $name:ident, $function:ident, $n:literal, ($($argument:ident),*), $otherwise:expr) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $function($($argument: u32),*) -> u32 {
            let Some(scratch) = maps::scratch::<$n>() else { return $otherwise as u32 };
            // None of them asks for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            decide::$name(&mut tables, &mut scratch.work, $($argument),*) as u32
        }
    };
}

global!(
    /// Claims the tuple of a connection's replies ([`decide::reserve`]) for the scratch record `work`.
    reserve, reserve4, reserve6, (port, now_s) -> Reserved, Reserved::Taken
);
global!(
    /// [`decide::accept`].
    accept, accept4, accept6, (now_s) -> Accepted, Accepted::Late
);
global!(
    /// [`decide::establish`].
    establish, establish4, establish6, (link, generation, now_s) -> Established, Established::Late
);

macro_rules! keep_entries {
    ($name:ident, $n:literal) => {
        /// [`decide::keep_entries`] for the scratch record.
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(keeping: u32) -> u32 {
            let Some(scratch) = maps::scratch::<$n>() else { return 0 };
            // It does not ask for the context.
            let mut tables = Kernel::at(core::ptr::null_mut(), 0);
            decide::keep_entries(&mut tables, &mut scratch.work, Keeping::from_number(keeping));
            0
        }
    };
}

keep_entries!(keep_entries4, 4);
keep_entries!(keep_entries6, 16);
