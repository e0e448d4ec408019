//! The same small work, one to four times, each within the one before: inlined, as functions of the program, and as global functions.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

/// How often a run does it all: one alone takes less than the clock shows.
const TIMES: u32 = 64;

#[inline(always)]
fn work(x: u64, salt: u64) -> u64 {
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9 ^ salt);
    x ^ (x >> 32)
}

#[inline(always)]
fn inlined<const DEPTH: u64>(x: u64) -> u64 {
    (1..=DEPTH).rev().fold(x, work)
}

macro_rules! functions {
    ($(#[$how:meta])* $one:ident, $two:ident, $three:ident, $four:ident, $($abi:tt)*) => {
        $(#[$how])*
        #[inline(never)]
        $($abi)* fn $one(x: u64) -> u64 {
            work(x, 1)
        }

        $(#[$how])*
        #[inline(never)]
        $($abi)* fn $two(x: u64) -> u64 {
            $one(work(x, 2))
        }

        $(#[$how])*
        #[inline(never)]
        $($abi)* fn $three(x: u64) -> u64 {
            $two(work(x, 3))
        }

        $(#[$how])*
        #[inline(never)]
        $($abi)* fn $four(x: u64) -> u64 {
            $three(work(x, 4))
        }
    };
}

functions!(own1, own2, own3, own4,);
functions!(#[unsafe(no_mangle)] global1, global2, global3, global4, extern "C");

macro_rules! programs {
    ($($name:ident = $work:expr;)*) => {
        $(
            #[classifier]
            pub fn $name(context: TcContext) -> i32 {
                // SAFETY: reads the context; volatile, so that nothing is known of it.
                let x = u64::from(unsafe { (&raw const (*context.skb.skb).len).read_volatile() });
                let mut sum = 0;
                for time in 0..TIMES {
                    // None waits for the one before: what a call takes is not hidden behind the work.
                    sum ^= $work(x + u64::from(time));
                }
                (sum & 1) as i32
            }
        )*
    };
}

programs! {
    inlined_1 = inlined::<1>;
    inlined_2 = inlined::<2>;
    inlined_4 = inlined::<4>;
    own_1 = own1;
    own_2 = own2;
    own_4 = own4;
    global_1 = global1;
    global_2 = global2;
    global_4 = global4;
}
