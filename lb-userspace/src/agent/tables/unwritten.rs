//! Changes that came and are not in the tables yet: how many, and since when.

use std::mem;

use jiff::Timestamp;

use crate::observe::report::PassReport;
use lb_plan::apply::Report;

/// How many changes of endpoints are timed at once: more happen only while nothing can be written.
const TIMED_MAX: usize = 4096;

/// Changes that are not written in full.
pub(super) struct Unwritten {
    counts: PassReport,
    /// When the changes of endpoints happened; at most [`TIMED_MAX`].
    happened: Vec<Timestamp>,
    /// What happened before is no matter of this agent's speed.
    started: Timestamp,
}

impl Unwritten {
    pub fn new(started: Timestamp) -> Self {
        Self { counts: PassReport::default(), happened: Vec::new(), started }
    }

    /// More changes came; those of endpoints happened at these times.
    pub fn add(&mut self, changed: PassReport, happened: impl Iterator<Item = Timestamp>) {
        self.counts.services += changed.services;
        self.counts.slices += changed.slices;
        let times = happened.filter(|at| *at >= self.started);
        self.happened.extend(times.take(TIMED_MAX - self.happened.len()));
    }

    /// How many there are.
    pub fn counts(&self) -> PassReport {
        self.counts
    }

    /// A run is over. Returns when the changes happened that are timed no longer. What failed in an earlier run is among them: it may never be
    /// written.
    pub fn take_timed(&mut self, report: &Report) -> Vec<Timestamp> {
        if report.failing == 0 && report.waiting == 0 {
            self.counts = PassReport::default();
        }
        if report.failed_writes == 0 && report.waiting == 0 { mem::take(&mut self.happened) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("valid")
    }

    #[test]
    fn a_change_is_timed_until_it_is_written_and_counted_until_nothing_fails() {
        let mut unwritten = Unwritten::new(at(10));
        let (one, two) = (PassReport { services: 1, slices: 2 }, PassReport { services: 2, slices: 4 });
        unwritten.add(one, [at(9), at(11)].into_iter());
        unwritten.add(one, [at(12)].into_iter());
        assert_eq!(unwritten.take_timed(&Report { waiting: 1, ..Report::default() }), []);
        assert_eq!(unwritten.counts(), two);
        assert_eq!(unwritten.take_timed(&Report { failing: 1, ..Report::default() }), [at(11), at(12)]);
        assert_eq!(unwritten.counts(), two, "it is tried again");
        assert_eq!(unwritten.take_timed(&Report::default()), []);
        assert_eq!(unwritten.counts(), PassReport::default());
        unwritten.add(one, std::iter::repeat_n(at(11), 2 * TIMED_MAX));
        assert_eq!(unwritten.take_timed(&Report::default()).len(), TIMED_MAX);
    }
}
