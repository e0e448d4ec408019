//! Days of churn in minutes: as many changes as the agent follows, while incident A goes on beside them. What is sampled on the way
//! shows whether anything grows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{Bulk, Churned, Scenario, ScenarioSettings};

/// So many changes are made before the agent is waited for, or a tenth of all.
const BATCH: u64 = 500;
/// Services that nobody uses, whose backends change.
const SERVICES: u8 = 20;
/// Changes of incident A's service for each batch, and how often the agent is killed: once in so many batches.
const CHANGES_IN_USE: usize = 2;
const BATCHES_PER_KILL: u64 = 40;
/// How long the agent may take to follow a batch. Generous: a test machine may be busy.
const FOLLOW_LIMIT: Duration = Duration::from_mins(2);
/// Slots in use that are the same for so long are counted and have rested.
const SETTLED: Duration = Duration::from_secs(5);

/// The state of things after some changes.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    pub changes: u64,
    pub seconds: f64,
    /// The agent's resident memory.
    pub rss_kib: u64,
    /// Records of backends in use, and those of them that drain.
    pub records: usize,
    pub draining: usize,
    /// Slots in use.
    pub slots: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Soaked {
    pub samples: Vec<Sample>,
    pub changes: u64,
    pub took: Duration,
    pub churned: Churned,
}

impl Soaked {
    /// Memory in the last tenth of the run by memory in the second tenth, when everything was in use once, in percent: medians.
    pub fn growth_percent(&self) -> u64 {
        let (samples, tenth) = (&self.samples, self.samples.len().div_ceil(10));
        let median = |samples: &[Sample]| {
            let mut sizes: Vec<u64> = samples.iter().map(|sample| sample.rss_kib).collect();
            sizes.sort_unstable();
            sizes.get(sizes.len() / 2).copied().unwrap_or_default()
        };
        let begin = &samples[tenth.min(samples.len() - 1)..(2 * tenth).clamp(1, samples.len())];
        let (first, last) =
            (median(if begin.is_empty() { samples } else { begin }), median(&samples[samples.len() - tenth..]));
        100 * last / first.max(1)
    }

    /// Slots in use before the changes and after them.
    pub fn slots(&self) -> [u64; 2] {
        [self.samples.first(), self.samples.last()].map(|sample| sample.map_or(0, |sample| sample.slots))
    }
}

/// Makes so many changes; `tell` gets every sample.
pub fn soak(changes: u64, seed: u64, mut tell: impl FnMut(&Sample)) -> Result<Soaked> {
    let mut scenario = Scenario::new("soak", ScenarioSettings { seed, ..ScenarioSettings::default() })?;
    let mut bulk = Bulk::start(&scenario.api, SERVICES, seed);
    wait(&mut scenario, bulk.listed())?;
    // From here on, what is in use beyond this has leaked.
    scenario.mark_start();
    let start = Instant::now();
    let mut samples = vec![settled(&scenario, start)?];
    let total = |scenario: &Scenario, bulk: &Bulk| scenario.changes() + bulk.changes();
    let mut batch = 0;
    while total(&scenario, &bulk) < changes {
        batch += 1;
        for _ in 0..BATCH.min(changes.div_ceil(10)) {
            bulk.change(&scenario.api);
        }
        for _ in 0..CHANGES_IN_USE {
            scenario.change()?;
        }
        // The first time at once: an agent that found its tables full is compared with others of that kind.
        if batch % BATCHES_PER_KILL == 1 {
            scenario.kill();
        }
        scenario.start()?;
        wait(&mut scenario, bulk.listed())?;
        scenario.api.forget_told();
        let sample = sample(&scenario, total(&scenario, &bulk), start)?;
        tell(&sample);
        samples.push(sample);
    }
    bulk.restore(&scenario.api);
    let churned = scenario.end()?;
    let changes = total(&scenario, &bulk);
    samples.push(rested(&scenario, changes, start, samples[0].slots)?);
    Ok(Soaked { samples, changes, took: start.elapsed(), churned })
}

/// Waits until the agent is ready and the tables hold as many backends of the bulk as the API lists. The tables alone do not tell:
/// they may be right already when an agent starts, before it reports anything.
fn wait(scenario: &mut Scenario, listed: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        scenario.look_at_agent();
        let states = scenario.agent.states().unwrap_or_default();
        let active = states.iter().filter(|(service, _, state)| Bulk::owns(service) && state == "active").count();
        if scenario.is_ready() && active == listed && scenario.is_current() {
            return Ok(());
        }
        ensure!(scenario.agent.alive(), "the agent ended:\n{}", scenario.agent.log());
        ensure!(start.elapsed() < FOLLOW_LIMIT, "{active} of {listed} backends in the tables after {FOLLOW_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first sample: the agent counts its slots once a second, and those of a first, smaller set rest for a moment.
fn settled(scenario: &Scenario, start: Instant) -> Result<Sample> {
    let (mut last, mut since) = (sample(scenario, 0, start)?, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let next = sample(scenario, 0, start)?;
        if next.slots != last.slots {
            since = Instant::now();
        } else if since.elapsed() > SETTLED {
            return Ok(next);
        }
        ensure!(start.elapsed() < FOLLOW_LIMIT, "the slots in use keep changing: {} now", next.slots);
        last = next;
    }
}

/// The last sample: slots rest for a moment before they are free. If they are not as before in time, it says so.
fn rested(scenario: &Scenario, changes: u64, start: Instant, slots: u64) -> Result<Sample> {
    let begun = Instant::now();
    loop {
        let sample = sample(scenario, changes, start)?;
        if sample.slots == slots || begun.elapsed() > FOLLOW_LIMIT {
            return Ok(sample);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn sample(scenario: &Scenario, changes: u64, start: Instant) -> Result<Sample> {
    let pid = scenario.agent.pid().context("the agent runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let rss_kib = line.trim().trim_end_matches("kB").trim().parse()?;
    let drains = scenario.tables.drains();
    let slots = counted_slots(scenario)?;
    Ok(Sample {
        changes,
        seconds: start.elapsed().as_secs_f64(),
        rss_kib,
        records: drains.in_use,
        draining: drains.draining,
        slots,
    })
}

/// Slots in use. An agent counts them first within a second of its start.
fn counted_slots(scenario: &Scenario) -> Result<u64> {
    let begun = Instant::now();
    loop {
        let report = scenario.agent.json(&["status"])?;
        if let Some(slots) = report["agent"]["tables"]["fill"]["slots"]["entries"].as_u64() {
            return Ok(slots);
        }
        ensure!(begun.elapsed() < FOLLOW_LIMIT, "no count of slots: {report:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
