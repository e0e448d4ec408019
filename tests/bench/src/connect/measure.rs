//! The measurement: all arms take turns, there and back, in small blocks, round by round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lb_load::{Times, at_rate, exchange, stream, time_connection};

use crate::fixture::{Arm, Fixture};
use crate::statistics::Samples;

/// Connections or questions of one arm before the next one's turn.
const BLOCK: u32 = 20;

/// More than one of so many, and more than so many in a round, may not fail.
const FAILED_SHARE: u64 = 50;
const FAILED_ALWAYS: u64 = 2;

/// What an arm does on its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Connect, request, response, close: one after the other.
    Connect,
    /// Requests and responses on one connection.
    Exchange,
    /// Connections with a request and a response, begun by the clock.
    Rate { interval: Duration },
    /// One bulk stream.
    Stream { bytes: u64 },
}

impl Workload {
    /// One turn. A connection that fails is counted, and its time is not: kube-proxy's rules are seen to refuse one in some ten
    /// thousand.
    fn turn(self, arm: &Arm, turns: &mut ArmResults) {
        match self {
            Self::Connect => {
                for _ in 0..BLOCK {
                    turns.note(time_connection(arm.to));
                }
            }
            Self::Exchange => match exchange(arm.to, BLOCK) {
                Ok(times) => times.into_iter().for_each(|time| turns.note(Ok(time))),
                Err(error) => turns.note(Err(error)),
            },
            Self::Rate { interval } => {
                let clocked = at_rate(arm.to, interval, 5 * BLOCK);
                turns.times.add(&clocked.times);
                turns.failed += clocked.failed;
                turns.error = clocked.error.or(turns.error.take());
            }
            Self::Stream { bytes } => turns.note(stream(arm.to, bytes)),
        }
    }
}

/// What came of an arm's turns in a round.
#[derive(Default)]
struct ArmResults {
    times: Times,
    failed: u32,
    /// The last one.
    error: Option<std::io::Error>,
}

impl ArmResults {
    fn note(&mut self, took: std::io::Result<Duration>) {
        match took {
            Ok(time) => self.times.record(time),
            Err(error) => {
                self.failed += 1;
                self.error = Some(error);
            }
        }
    }

    /// An error, if so many failed that the rest tells nothing.
    fn check(&mut self) -> Result<()> {
        let most = self.times.count() / FAILED_SHARE + FAILED_ALWAYS;
        match self.error.take() {
            Some(error) if u64::from(self.failed) > most => {
                Err(error).with_context(|| format!("{} of a round failed", self.failed))
            }
            _ => Ok(()),
        }
    }
}

/// What an arm took.
#[derive(Clone, Debug)]
pub struct Row {
    pub arm: Arm,
    /// Median of each round, in microseconds, and its 99th percentile.
    pub median_us: Vec<f64>,
    pub p99_us: Vec<f64>,
    /// Of all rounds.
    pub all: Times,
    /// Connections that failed in all rounds.
    pub failed: u32,
}

impl Row {
    /// The rate of this one by that of another, round by round.
    pub fn rate_to(&self, other: &Self) -> Samples {
        self.median_us.iter().zip(&other.median_us).map(|(own, others)| others / own).collect()
    }

    /// The 99th percentile of this one by that of another, round by round.
    pub fn p99_to(&self, other: &Self) -> Samples {
        self.p99_us.iter().zip(&other.p99_us).map(|(own, others)| own / others).collect()
    }

    /// Median of the medians, in microseconds.
    pub fn median(&self) -> f64 {
        self.median_us.iter().copied().collect::<Samples>().median()
    }
}

/// Lets all arms take `round_robin` turns there and as many back in each of so many rounds, after one that does not count.
pub fn measure(fixture: &Fixture, kind: Workload, rounds: u32, turns: u32, stop: &AtomicBool) -> Result<Vec<Row>> {
    let new = |arm| Row { arm, median_us: Vec::new(), p99_us: Vec::new(), all: Times::default(), failed: 0 };
    let mut rows: Vec<Row> = fixture.arms().into_iter().map(new).collect();
    for round in 0..=rounds {
        let mut all: Vec<ArmResults> = rows.iter().map(|_| ArmResults::default()).collect();
        for _ in 0..turns {
            // There and back: what drifts falls on all arms alike.
            for index in (0..rows.len()).chain((0..rows.len()).rev()) {
                if stop.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                let (arm, turns) = (&rows[index].arm, &mut all[index]);
                arm.client.run(|| kind.turn(arm, turns));
            }
        }
        for (row, mut turns) in rows.iter_mut().zip(all) {
            turns.check().with_context(|| format!("{}: {}", row.arm.name(fixture.many), row.arm.to))?;
            // The first round warms up.
            if round > 0 {
                row.median_us.push(turns.times.quantile_us(0.5));
                row.p99_us.push(turns.times.quantile_us(0.99));
                row.all.add(&turns.times);
                row.failed += turns.failed;
            }
        }
    }
    Ok(rows)
}
