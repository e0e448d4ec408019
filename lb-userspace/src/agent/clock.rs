//! The clocks: nothing else that decides reads them, so that it can be tested with time as a value. The data path reads the programs' clock
//! for what it permits them for some seconds.

use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use lb_model::Monotonic;

/// `CLOCK_MONOTONIC`, the clock of all deadlines and of the eBPF programs.
pub fn monotonic() -> Monotonic {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative: it starts at boot.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Monotonic::from_duration(Duration::new(seconds, nanos))
}

/// The wall clock: shown to people, never used for a decision.
pub fn wall() -> Timestamp {
    Timestamp::now()
}
