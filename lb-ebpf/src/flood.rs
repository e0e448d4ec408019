//! Whether half-open flows are made faster than their table holds them. Each CPU counts for itself and reports its sum, so that a flow may be made on
//! one CPU and established on another.

use core::arch::asm;

use aya_ebpf::Global;
use lb_common::limits::{AFTER_FLOOD_S, FLOOD_S};

use crate::features;
use crate::maps::{FLOOD_UNTIL, SYN_COUNTS, SYN_RATE};

/// As many half-open flows as may be added in a second; 0: any number. Set at load, from the size of their table.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static MOST_HALF_OPEN: Global<u32> = Global::new(0);

/// A half-open flow was made.
#[inline(always)]
pub fn begun(now_s: u32) {
    note(now_s, 1);
}

/// One has become an open flow.
#[inline(always)]
pub fn opened(now_s: u32) {
    note(now_s, u32::MAX);
}

/// Adds one flow, or takes one off: -1.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
fn note(now_s: u32, one: u32) {
    let most = MOST_HALF_OPEN.load();
    let Some(syn_counts) = SYN_COUNTS.get_ptr_mut(0) else { return };
    if most == 0 {
        return;
    }
    // What the CPUs keep to themselves is little beside the whole.
    let much = (most >> 10) as i32 + 1;
    // SAFETY: an element of a per-CPU array, and nothing interrupts a program of packets on its CPU.
    let sum = unsafe {
        let sum = (if (*syn_counts)[0] == now_s { (*syn_counts)[1] } else { 0 }).wrapping_add(one);
        let is_much = sum as i32 >= much || sum as i32 <= -much;
        *syn_counts = [now_s, if is_much { 0 } else { sum }];
        if !is_much {
            return;
        }
        sum
    };
    if syn_rate(now_s, sum as i32) <= most {
        return;
    }
    let Some(until) = FLOOD_UNTIL.get_ptr_mut(0) else { return };
    let end = now_s.wrapping_add(FLOOD_S);
    // SAFETY: an element of an array, one whole word; written once a second, so that the CPUs share its line.
    unsafe {
        if until.read_volatile() != end {
            until.write_volatile(end);
        }
    }
}

/// How many flows all CPUs have added in this second, with these. Of CPUs that begin a second at the same moment, one is counted: instructions
/// that compare and exchange need Linux 5.12.
#[inline(always)]
fn syn_rate(now_s: u32, sum: i32) -> u32 {
    let Some(word) = SYN_RATE.get_ptr_mut(0) else { return 0 };
    // SAFETY: an element of an array, one whole word: the second in its upper half, the sum in the lower one.
    let before = unsafe { word.read_volatile() };
    let is_new = (before >> 32) as u32 != now_s;
    let after = if is_new { 0 } else { before as u32 as i32 }.wrapping_add(sum);
    // SAFETY: as above.
    unsafe {
        if is_new || after < 0 {
            word.write_volatile(u64::from(now_s) << 32 | after.max(0) as u64);
        } else {
            asm!("lock *(u32 *)({word} + 0) += {sum}", word = in(reg) word, sum = in(reg) i64::from(sum));
        }
    }
    after.max(0) as u32
}

/// Whether flows are to be made by rule alone.
#[inline(always)]
pub fn is_high() -> bool {
    is_within(0)
}

/// Whether segments may belong to flows that were made so and have lost their entries.
#[inline(always)]
pub fn was_high() -> bool {
    is_within(AFTER_FLOOD_S)
}

#[inline(always)]
fn is_within(longer_s: u32) -> bool {
    let Some(until) = FLOOD_UNTIL.get_ptr_mut(0) else { return false };
    // SAFETY: an element of an array, one whole word.
    let until_s = unsafe { until.read_volatile() };
    until_s != 0 && features::coarse_ns() / 1_000_000_000 <= u64::from(until_s) + u64::from(longer_s)
}
