//! Connect times of backends, in one histogram for each.

use core::arch::asm;

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use lb_common::abi::{ConnectKey, ConnectTimes, stat_kind};
use lb_common::connect_times::{BUCKETS, bucket, ticks};

use crate::maps::CONNECT_TIMES;

/// Whether connect times are measured: set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static CONNECT_TIMES_ON: Global<u8> = Global::new(0);

/// A backend's first record. Not on the stack, which has no room for it.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static NO_CONNECT_TIMES: ConnectTimes = ConnectTimes { sum: 0, counts: [0; BUCKETS] };

/// This moment in ticks, by the fine clock: the coarse one ticks every few milliseconds. 0: connect times are not measured.
#[inline(always)]
pub fn clock() -> u32 {
    if CONNECT_TIMES_ON.load() == 0 {
        return 0;
    }
    // SAFETY: takes no argument.
    ticks(unsafe { bpf_ktime_get_ns() })
}

/// Counts a connect time of a backend. A function of its own: off the stack of those that ask.
#[inline(never)]
#[expect(clippy::needless_borrows_for_generic_args, reason = "by value, key and record would be copied to the stack")]
pub fn count<const N: usize>(backend: u32, ticks: u32) {
    let key =
        ConnectKey { id: backend, kind: u32::from(if N == 4 { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 }) };
    let mut found = CONNECT_TIMES.get_ptr_mut(&key);
    if found.is_none() {
        // Another CPU may have been first: its record is found then.
        let _ = CONNECT_TIMES.insert(&key, &NO_CONNECT_TIMES, u64::from(BPF_NOEXIST));
        found = CONNECT_TIMES.get_ptr_mut(&key);
    }
    let Some(times) = found else { return };
    // SAFETY: a live map value, aligned to eight bytes; other CPUs add at the same time. The mask tells the verifier what `bucket` promises.
    unsafe {
        let count = (&raw mut (*times).counts).cast::<u64>().add(bucket(ticks) & (BUCKETS - 1));
        let sum = &raw mut (*times).sum;
        asm!("lock *(u64 *)({count} + 0) += {one}", count = in(reg) count, one = in(reg) 1_u64);
        asm!("lock *(u64 *)({sum} + 0) += {ticks}", sum = in(reg) sum, ticks = in(reg) u64::from(ticks));
    }
}
