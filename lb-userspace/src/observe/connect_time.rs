//! Connect times as people and scripts see them: how many, and which bucket the median and the 99th percentile lie in. Pure.

use lb_common::abi::ConnectTimes;
use lb_common::connect_times::{BUCKETS, TICK_NS, bound_ns};
use serde::Serialize;

/// How long backends took to answer SYNs: from the first one that a backend got of a connection to its SYN+ACK, as this node saw both.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConnectTimeView {
    /// Answers that were measured.
    pub answers: u64,
    /// Sum of their times.
    pub sum_microseconds: u64,
    /// Half of them took less: the upper bound of a bucket, which is twice its lower one. 1073742: one second or more.
    pub p50_microseconds: u64,
    /// 99 of 100 took less, in the same buckets.
    pub p99_microseconds: u64,
}

impl ConnectTimeView {
    /// `None`: nothing was measured.
    pub fn of(times: &ConnectTimes) -> Option<Self> {
        Some(Self {
            answers: answers(times),
            sum_microseconds: sum_ns(times) / 1_000,
            p50_microseconds: microseconds(quantile(times, 50)?),
            p99_microseconds: microseconds(quantile(times, 99)?),
        })
    }
}

/// How many were measured.
pub fn answers(times: &ConnectTimes) -> u64 {
    times.counts.iter().sum()
}

/// Nanoseconds that they took together.
pub fn sum_ns(times: &ConnectTimes) -> u64 {
    times.sum.saturating_mul(TICK_NS)
}

/// Those that were measured between two readings. A backend whose id has another owner since has fewer than before: all are new.
pub fn between(before: Option<&ConnectTimes>, after: &ConnectTimes) -> ConnectTimes {
    let Some(before) = before else { return *after };
    let mut counts = [0; BUCKETS];
    for (bucket, count) in counts.iter_mut().enumerate() {
        let Some(more) = after.counts[bucket].checked_sub(before.counts[bucket]) else { return *after };
        *count = more;
    }
    ConnectTimes { sum: after.sum.saturating_sub(before.sum), counts }
}

/// The bucket of a percentile; `None`: nothing was measured.
fn quantile(times: &ConnectTimes, percent: u64) -> Option<usize> {
    let all = answers(times);
    let rank = all.saturating_mul(percent).div_ceil(100);
    let mut below = 0;
    let reaches = |count: &u64| {
        below += count;
        below >= rank
    };
    (all > 0).then(|| times.counts.iter().position(reaches).unwrap_or(BUCKETS - 1))
}

/// The bound that a bucket's times lie below, rounded up; of the last one, the bound that they do not lie below.
fn microseconds(bucket: usize) -> u64 {
    bound_ns(bucket.min(BUCKETS - 2)).map_or(0, |ns| ns.div_ceil(1_000))
}

/// A percentile in a table: `<131us`, `<4.2ms`, `>1.1s`; a dash where nothing was measured.
pub fn percentile_text(times: Option<&ConnectTimes>, percent: u64) -> String {
    let Some(bucket) = times.and_then(|times| quantile(times, percent)) else { return "-".into() };
    let sign = if bucket == BUCKETS - 1 { '>' } else { '<' };
    #[expect(clippy::cast_precision_loss, reason = "a million microseconds and a bit")]
    let bound_us = microseconds(bucket) as f64;
    match bound_us {
        ..1_000.0 => format!("{sign}{bound_us:.0}us"),
        ..10_000.0 => format!("{sign}{:.1}ms", bound_us / 1e3),
        ..1_000_000.0 => format!("{sign}{:.0}ms", bound_us / 1e3),
        _ => format!("{sign}{:.1}s", bound_us / 1e6),
    }
}

/// A fixture: so many answers after so many microseconds each.
#[cfg(test)]
pub(super) fn times(answers: &[(u64, u64)]) -> ConnectTimes {
    let mut times = ConnectTimes::default();
    for (count, us) in answers {
        let ticks = u32::try_from(us * 1_000 / TICK_NS).expect("below an hour");
        times.counts[lb_common::connect_times::bucket(ticks)] += count;
        times.sum += count * u64::from(ticks);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_bounds_of_their_buckets() {
        let one_slow = times(&[(99, 100), (1, 40_000)]);
        let view = ConnectTimeView::of(&one_slow).expect("measured");
        assert_eq!((view.answers, view.p50_microseconds, view.p99_microseconds), (100, 132, 132));
        assert!((49_000..50_000).contains(&view.sum_microseconds), "{view:?}");
        let two_slow = times(&[(98, 100), (2, 40_000)]);
        assert_eq!(ConnectTimeView::of(&two_slow).map(|view| view.p99_microseconds), Some(67_109));
        assert_eq!(ConnectTimeView::of(&ConnectTimes::default()), None);
        assert_eq!(ConnectTimeView::of(&times(&[(1, 9_000_000)])).map(|view| view.p50_microseconds), Some(1_073_742));
    }

    #[test]
    fn a_table_has_a_unit_that_fits() {
        let text = |us| percentile_text(Some(&times(&[(1, us)])), 99);
        let shown = [10, 100, 3_000, 20_000, 900_000, 1_200_000].map(text);
        assert_eq!(shown, ["<66us", "<132us", "<4.2ms", "<34ms", "<1.1s", ">1.1s"]);
        assert_eq!(percentile_text(Some(&ConnectTimes::default()), 99), "-");
        assert_eq!(percentile_text(None, 50), "-");
    }

    #[test]
    fn what_another_owner_of_the_id_measured_is_not_subtracted() {
        let (before, after) = (times(&[(5, 100)]), times(&[(7, 100), (1, 3_000)]));
        assert_eq!(answers(&between(Some(&before), &after)), 3);
        assert_eq!(between(None, &after), after);
        let anew = times(&[(2, 3_000)]);
        assert_eq!(between(Some(&before), &anew), anew);
    }
}
