//! Connections begun by the clock, whatever became of those before: times count from when each one was due.
//!
//! A client that waits for an answer before it asks again asks less while the other side is slow, and so sees too little of it
//! ("coordinated omission"). Here a connection that begins late because the one before took long counts its wait, too.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::ask::connect_and_ask;

/// No time is longer: what took longer counts as this.
const LONGEST_NS: u64 = 60_000_000_000;
/// Digits of a time that are kept.
const DIGITS: u8 = 3;

/// Times, as a histogram of bounded size.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds that are written here"))
    }
}

impl Times {
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS));
    }

    /// The time that this share (0 to 1) of all do not exceed, in microseconds, to three digits.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let ns = self.0.value_at_quantile(share);
        Duration::from_nanos(ns).as_secs_f64() * 1e6
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// What came of connections that were begun by the clock.
#[derive(Debug, Default)]
pub struct Clocked {
    /// Of those that were answered, since each was due.
    pub times: Times,
    pub failed: u32,
    /// The last failure.
    pub error: Option<Error>,
}

/// Begins a connection every `interval`, `count` of them, one after the other on this thread.
pub fn at_rate(to: SocketAddr, interval: Duration, count: u32) -> Clocked {
    let begun = Instant::now();
    by_the_clock(interval, count, || begun.elapsed(), std::thread::yield_now, || connect_and_ask(to))
}

/// [`at_rate`] with any clock, any way to let time pass, and any work.
fn by_the_clock(
    interval: Duration,
    count: u32,
    now: impl Fn() -> Duration,
    mut pass: impl FnMut(),
    mut work: impl FnMut() -> Result<()>,
) -> Clocked {
    let mut clocked = Clocked::default();
    for number in 0..count {
        let due = interval * number;
        while now() < due {
            pass();
        }
        match work() {
            Ok(()) => clocked.times.record(now().saturating_sub(due)),
            Err(error) => {
                clocked.failed += 1;
                clocked.error = Some(error);
            }
        }
    }
    clocked
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Runs on a clock that only waiting and work move; the work of one number takes longer.
    fn run(slow: u32, slow_us: u32) -> Times {
        let clock = Cell::new(Duration::ZERO);
        let number = Cell::new(0);
        let work = || {
            let took = if number.get() == slow { slow_us } else { 10 };
            number.set(number.get() + 1);
            clock.set(clock.get() + US * took);
            Ok(())
        };
        by_the_clock(US * 100, 100, || clock.get(), || clock.set(clock.get() + US), work).times
    }

    #[test]
    fn work_in_time_takes_what_it_takes() {
        let times = run(u32::MAX, 0);
        assert_eq!(times.count(), 100);
        assert!((times.quantile_us(0.5) - 10.0).abs() < 0.1 && (times.quantile_us(1.0) - 10.0).abs() < 0.1);
    }

    #[test]
    fn who_had_to_wait_counts_the_wait() {
        // One takes as long as ten intervals: those that were due meanwhile are late, each a bit less than the one before.
        let times = run(20, 1_000);
        assert!((times.quantile_us(1.0) - 1_000.0).abs() < 2.0, "{}", times.quantile_us(1.0));
        assert!(times.quantile_us(0.95) > 300.0, "not only one is late: {}", times.quantile_us(0.95));
        assert!((times.quantile_us(0.5) - 10.0).abs() < 0.1);
    }

    #[test]
    fn who_fails_is_counted_and_has_no_time() {
        let refused = || Err(Error::from(std::io::ErrorKind::ConnectionRefused));
        let clocked = by_the_clock(US, 3, || US * 10, || (), refused);
        assert_eq!((clocked.failed, clocked.times.count(), clocked.error.is_some()), (3, 0, true));
    }

    #[test]
    fn times_add_up_and_have_an_end() {
        let mut all = run(20, 1_000);
        all.add(&run(u32::MAX, 0));
        assert_eq!(all.count(), 200);
        all.record(Duration::from_hours(1));
        assert!(all.quantile_us(1.0) < 61e6);
    }
}
