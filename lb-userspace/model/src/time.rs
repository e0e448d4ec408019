//! A moment on `CLOCK_MONOTONIC`, as a value: only the agent's runtime reads the clock.

use std::{ops::Add, time::Duration};

/// Time since the clock's start. Never the wall clock: deadlines in the tables outlive the agent, not the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    pub const fn from_duration(since_start: Duration) -> Self {
        Self(since_start)
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// As it stands in the tables. Rounded up, so that a deadline never strikes early; never 0, which means never.
    pub fn to_tenths(self) -> u32 {
        u32::try_from(self.0.as_nanos().div_ceil(100_000_000)).unwrap_or(u32::MAX).max(1)
    }

    /// The second that begins no earlier than this long from now, as programs compare it; 0, which is long ago, for no time at all.
    pub fn second_after(self, duration: Duration) -> u32 {
        if duration.is_zero() { 0 } else { (self + duration).to_tenths().div_ceil(10) }
    }

    /// From the tables.
    pub fn from_tenths(tenths: u32) -> Self {
        Self(Duration::from_millis(u64::from(tenths) * 100))
    }

    /// Time from `earlier` to this moment; zero if that is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Monotonic {
    /// The moment that lies `age` before this one, or the clock's start.
    #[must_use]
    pub fn before(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(age))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_in_the_tables_is_never_early_and_never_never() {
        assert_eq!(Monotonic::from_nanos(0).to_tenths(), 1);
        assert_eq!(Monotonic::from_nanos(1_000_000_001).to_tenths(), 11);
        let now = Monotonic::from_nanos(7_300_000_000);
        assert_eq!(now.second_after(Duration::from_millis(1_700)), 9);
        assert_eq!((now.second_after(Duration::from_secs(2)), now.second_after(Duration::ZERO)), (10, 0));
        assert_eq!(Monotonic::from_tenths(Monotonic::from_nanos(7_300_000_000).to_tenths()).to_tenths(), 73);
    }
}
