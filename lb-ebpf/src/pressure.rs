//! Whether half-open flows are made faster than their table holds them: counted by each CPU for itself, told by any to all.

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use lb_common::limits::PRESSED_S;

use crate::maps::{HASTE, PRESSURE};

/// As many half-open flows as a CPU may add in a second; 0: any number. Set at load, from the size of their table.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static MOST_HALF_OPEN: Global<u32> = Global::new(0);

/// A half-open flow was made.
#[inline(always)]
pub fn begun(now_s: u32) {
    let most = MOST_HALF_OPEN.load();
    if most == 0 {
        return;
    }
    let Some(haste) = HASTE.get_ptr_mut(0) else { return };
    // SAFETY: an element of a per-CPU array, and nothing interrupts a program of packets on its CPU.
    let made = unsafe {
        let made = if (*haste)[0] == now_s { (*haste)[1].wrapping_add(1) } else { 1 };
        *haste = [now_s, made];
        made
    };
    if made <= most {
        return;
    }
    let Some(until) = PRESSURE.get_ptr_mut(0) else { return };
    let end = now_s.wrapping_add(PRESSED_S);
    // SAFETY: an element of an array, one whole word; written once a second, so that the CPUs share its line.
    unsafe {
        if until.read_volatile() != end {
            until.write_volatile(end);
        }
    }
}

/// One has become an open flow.
#[inline(always)]
pub fn opened(now_s: u32) {
    let Some(haste) = HASTE.get_ptr_mut(0) else { return };
    // SAFETY: as above.
    unsafe {
        if (*haste)[0] == now_s && (*haste)[1] != 0 {
            (*haste)[1] -= 1;
        }
    }
}

/// Whether flows are to be made by rule alone.
#[inline(always)]
pub fn is_high() -> bool {
    let Some(until) = PRESSURE.get_ptr_mut(0) else { return false };
    // SAFETY: an element of an array, one whole word.
    let until_s = unsafe { until.read_volatile() };
    // SAFETY: takes no argument.
    until_s != 0 && unsafe { bpf_ktime_get_ns() } / 1_000_000_000 <= u64::from(until_s)
}
