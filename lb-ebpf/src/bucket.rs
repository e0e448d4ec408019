//! Taking a new flow from the bucket of its client's network, while other CPUs take from it, too.

use core::arch::asm;

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
        let mut seen_ns = due_ns;
        // SAFETY: an atomic instruction (Linux 5.12) on a live map value of eight bytes; r0 holds what is expected, then what was there.
        unsafe {
            asm!("r0 = cmpxchg_64({bucket} + 0, r0, {after})", bucket = in(reg) bucket, after = in(reg) after_ns, inout("r0") seen_ns);
        }
        if seen_ns == due_ns {
            return true;
        }
    }
    false
}
