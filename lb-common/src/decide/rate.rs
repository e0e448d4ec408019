//! The rate limit of a service: a token bucket, as arithmetic.

use crate::abi::{Bucket, Service};

/// A reading of the clock is never so old when it is compared.
const CLOCKS_APART_NS: u64 = 100_000_000;

/// Time between two new flows, and how far ahead of it they may come, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub interval_ns: u64,
    pub tolerance_ns: u64,
}

impl Pace {
    /// That of a service with a limit.
    #[inline(always)]
    #[must_use]
    pub const fn of(service: &Service) -> Self {
        Self::new(service.rate, service.burst)
    }

    /// So many in a second, and so many at once; at most 4.3 s × 10⁹ × burst, which is far from the bound of 64 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(rate: u32, burst: u32) -> Self {
        let interval_ns = 1_000_000_000 / if rate == 0 { 1 } else { rate as u64 };
        Self { interval_ns, tolerance_ns: interval_ns * burst.saturating_sub(1) as u64 }
    }

    /// What the bucket holds after one more flow (ITU-T I.371, the virtual scheduling algorithm); 0: it is one too many.
    #[inline(always)]
    #[must_use]
    pub const fn after(self, due_ns: u64, now_ns: u64) -> u64 {
        // No bucket of this pace is fuller, but by what another CPU's clock may be ahead: it is one of another pace, which the service had
        // before.
        let most_ns = self.tolerance_ns + self.interval_ns + CLOCKS_APART_NS;
        let is_own = due_ns > now_ns && due_ns - now_ns <= most_ns;
        let due_ns = if is_own { due_ns } else { now_ns };
        if due_ns - now_ns > self.tolerance_ns { 0 } else { due_ns + self.interval_ns }
    }
}

/// A bucket of a network that was not seen lately.
#[inline(always)]
#[must_use]
pub const fn fresh(pace: Pace, now_ns: u64) -> Bucket {
    Bucket { due_ns: now_ns + pace.interval_ns }
}
