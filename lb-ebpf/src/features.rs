//! What the running kernel has, set at load: 0 for what it lacks. A helper that the kernel does not know is refused only on a path that is
//! walked.

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};

/// `bpf_set_retval`: since Linux 5.18.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static HAS_SET_RETVAL: Global<u8> = Global::new(1);
/// `bpf_check_mtu`: since Linux 5.12.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static HAS_CHECK_MTU: Global<u8> = Global::new(1);
/// `bpf_ktime_get_coarse_ns`: since Linux 5.11.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static HAS_COARSE_CLOCK: Global<u8> = Global::new(1);

/// `CLOCK_MONOTONIC` as of the last tick (1 to 10 ms), if the kernel has it so: reading the counter takes some times as long.
#[inline(always)]
pub fn coarse_ns() -> u64 {
    // SAFETY: helpers without arguments.
    unsafe { if HAS_COARSE_CLOCK.load() != 0 { bpf_ktime_get_coarse_ns() } else { bpf_ktime_get_ns() } }
}
