//! Taking a new flow from the bucket of its client's network, while other CPUs take from it, too.

use aya_ebpf::bindings::BPF_ANY;
use lb_common::abi::BucketKey;
use lb_common::decide::{Pace, fresh};
use lb_common::limits::BUCKET_ATTEMPTS;

use crate::maps::BUCKETS;

/// Whether there was one. A bucket that so many take from at once that every attempt fails counts as empty.
#[inline(always)]
pub fn take(key: &BucketKey, pace: Pace, now_ns: u64) -> bool {
    let Some(bucket) = BUCKETS.get_ptr_mut(key) else {
        // Of two CPUs that meet a network for the first time, one may be given a flow too many.
        _ = BUCKETS.insert(key, fresh(pace, now_ns), u64::from(BPF_ANY));
        return true;
    };
    for _ in 0..BUCKET_ATTEMPTS {
        // SAFETY: a live map value of one whole word.
        let due_ns = unsafe { (&raw const (*bucket).due_ns).read_volatile() };
        let after_ns = pace.after(due_ns, now_ns);
        if after_ns == 0 {
            return false;
        }
        // SAFETY: a live map value, aligned to eight bytes.
        if unsafe { exchange(&raw mut (*bucket).due_ns, due_ns, after_ns) } == due_ns {
            return true;
        }
    }
    false
}

/// Writes `new` if `old` is there, in one instruction (Linux 5.12). What was there.
///
/// # Safety
/// `word` is a live map value, aligned to eight bytes.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    let mut seen = old;
    // SAFETY: as the caller says. The instruction's r0 holds what is expected, then what was there.
    unsafe {
        core::arch::asm!("r0 = cmpxchg_64({word} + 0, r0, {new})", word = in(reg) word, new = in(reg) new, inout("r0") seen);
    }
    seen
}

/// The same where the lints run, whose machine has no r0.
///
/// # Safety
/// `word` is valid.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    // SAFETY: as the caller says.
    unsafe { core::sync::atomic::AtomicU64::from_ptr(word) }
        .compare_exchange(old, new, core::sync::atomic::Ordering::Relaxed, core::sync::atomic::Ordering::Relaxed)
        .unwrap_or_else(|seen| seen)
}
