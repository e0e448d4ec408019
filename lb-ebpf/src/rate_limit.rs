//! Taking a new flow from the bucket of its client's network, while other CPUs take from it, too.
//!
//! Instructions that compare and exchange need Linux 5.12, so that the bucket is read first and added to afterwards. CPUs that read it at the
//! same moment may all take the last flow of a burst. Each of them is charged, so that the rate over time is exact.

use core::arch::asm;

use aya_ebpf::bindings::BPF_ANY;
use lb_common::abi::BucketKey;
use lb_common::decide::{Pace, fresh};

use crate::maps::BUCKETS;

/// Whether there was one.
#[inline(always)]
pub fn take(key: &BucketKey, pace: Pace, now_ns: u64) -> bool {
    let Some(bucket) = BUCKETS.get_ptr_mut(key) else {
        // Of two CPUs that meet a network for the first time, one may be given a flow too many.
        _ = BUCKETS.insert(key, fresh(pace, now_ns), u64::from(BPF_ANY));
        return true;
    };
    // SAFETY: a live map value of one whole word, aligned to eight bytes.
    unsafe {
        let due = &raw mut (*bucket).due_ns;
        let due_ns = due.read_volatile();
        let after_ns = pace.after(due_ns, now_ns);
        if after_ns == 0 {
            return false;
        }
        if after_ns == due_ns + pace.interval_ns {
            asm!("lock *(u64 *)({due} + 0) += {more}", due = in(reg) due, more = in(reg) pace.interval_ns);
        } else {
            // It was full.
            due.write_volatile(after_ns);
        }
    }
    true
}
