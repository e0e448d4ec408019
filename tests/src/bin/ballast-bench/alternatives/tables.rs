//! Tables of flows: look-up, insert with delete, and insert into a full one.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::REPEAT;
use super::comparison::Comparison;
use super::programs::{PACKET, Task, run};
use super::run::{Bench, beside_another};
use crate::packet::measure::FAMILIES;
use crate::statistics::Samples;

/// What a table is, and the beginning of its programs' names.
const KINDS: [(&str, &str); 6] = [
    ("LRU hash, one list", "lru"),
    ("LRU hash, a list for each CPU", "lists"),
    ("hash, allocated before", "hash"),
    ("hash, allocated on demand", "demand"),
    ("own, four ways, spin lock", "locked"),
    ("own, four ways, versions", "free"),
];
/// Of these, those that make room in a full table by themselves.
const EVICTING: [usize; 4] = [0, 1, 4, 5];
pub const AGAIN: &str = "the first again";
/// Entries of each table.
pub const ENTRIES: [u32; 2] = [262_144, 131_072];
/// Few keys, which stay in the processor's caches.
pub const FEW: u32 = 64;
/// Keys that no table holds begin here, and those that fill tables.
const ABSENT: u32 = 1 << 21;
const FILLING: u32 = 1 << 22;
/// Single inserts of one table in a round.
const SINGLES: u32 = 1_000;
/// Keys that are asked for to see how many are still there.
const ASKED: u32 = 4_096;

/// Single inserts into a full table: nanoseconds less those that making a key takes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Full {
    pub family: &'static str,
    pub table: &'static str,
    /// Whether the other CPU did the same at the same time.
    pub beside_another: bool,
    pub median_ns: f64,
    pub p99_ns: f64,
    pub p999_ns: f64,
    /// Flows still there, of those that filled half of the table, and three quarters of it, all from one CPU.
    pub kept_of_half: f64,
    pub kept_of_three_quarters: f64,
}

/// What is asked of a table.
struct Case {
    name: &'static str,
    program: &'static str,
    base: u32,
    /// Of the cold keys: a share of the table's entries, or more than there are entries.
    many: fn(u32) -> u32,
    returns: u32,
}

const CASES: [Case; 3] = [
    Case { name: "look-up, found", program: "find", base: 0, many: |entries| entries / 2, returns: 1 },
    Case { name: "look-up, not found", program: "find", base: ABSENT, many: |entries| entries * 4, returns: 0 },
    Case { name: "insert and delete", program: "churn", base: ABSENT, many: |entries| entries * 4, returns: 1 },
];

impl Bench<'_> {
    /// All of it.
    pub fn tables(&mut self) -> Result<(Vec<Comparison>, Vec<Full>)> {
        let (mut comparisons, mut full) = (Vec::new(), Vec::new());
        for (family, suffix) in [4, 6].into_iter().enumerate() {
            let entries = ENTRIES[family];
            for (_, table) in KINDS {
                self.fill(&format!("{table}_put{suffix}"), 0, entries / 2)?;
            }
            let kept_of_half = self.kept(suffix, entries / 2)?;
            comparisons.extend(self.cases(family, suffix)?);
            for number in EVICTING {
                self.fill(&format!("{}_put{suffix}", KINDS[number].1), entries / 2, entries / 4)?;
            }
            let kept_of_three_quarters = self.kept(suffix, entries / 4 * 3)?;
            for number in EVICTING {
                self.fill(&format!("{}_put{suffix}", KINDS[number].1), FILLING, entries * 2)?;
            }
            for beside in [false, true] {
                let (compared, singles) = self.full(family, suffix, beside)?;
                comparisons.push(compared);
                full.extend(EVICTING.iter().zip(singles).map(|(number, times)| Full {
                    family: FAMILIES[family],
                    table: KINDS[*number].0,
                    beside_another: beside,
                    median_ns: times.median(),
                    p99_ns: times.quantile(0.99),
                    p999_ns: times.quantile(0.999),
                    kept_of_half: kept_of_half[*number],
                    kept_of_three_quarters: kept_of_three_quarters[*number],
                }));
            }
        }
        Ok((comparisons, full))
    }

    /// The share of the first keys that each table still holds.
    fn kept(&mut self, suffix: u32, count: u32) -> Result<[f64; KINDS.len()]> {
        let mut kept = [0.0; KINDS.len()];
        for ((_, table), kept) in KINDS.into_iter().zip(&mut kept) {
            let program = self.programs.tc(&format!("{table}_find{suffix}"))?;
            let step = count / ASKED;
            let mut found = 0;
            for number in 0..ASKED {
                self.tasks.set(Task { base: number * step, mask: 0, scatter: 0, turn: 0 })?;
                found += run(program, PACKET, 1)?.returned;
            }
            *kept = f64::from(found) / f64::from(ASKED);
        }
        Ok(kept)
    }

    /// All cases, with few keys and with many.
    fn cases(&mut self, family: usize, suffix: u32) -> Result<Vec<Comparison>> {
        let arms: Vec<&str> = KINDS.iter().map(|(name, _)| *name).chain([AGAIN]).collect();
        let mut comparisons = Vec::new();
        for case in CASES {
            for is_cold in [false, true] {
                let keys = if is_cold { (case.many)(ENTRIES[family]) } else { FEW };
                let amount = if is_cold { "many keys" } else { "few keys" };
                let mut comparison =
                    Comparison::new(format!("{}: {}, {amount}", FAMILIES[family], case.name), "ns", &arms);
                let base = self.programs.tc(&format!("key{suffix}"))?;
                let mut turn = 0;
                for round in 0..=self.rounds {
                    comparison.round(round > 0, self.stop, |arm| {
                        let program = format!("{}_{}{suffix}", KINDS[arm % KINDS.len()].1, case.program);
                        // Others than those of the turn before, which are still near.
                        turn += REPEAT;
                        let task = Task { base: case.base, mask: keys - 1, scatter: 1, turn };
                        self.tasks.set(task)?;
                        let made = run(base, PACKET, REPEAT)?.ns;
                        self.tasks.set(task)?;
                        let ran = run(self.programs.tc(&program)?, PACKET, REPEAT)?;
                        // A table that loses flows of itself may not have the last one.
                        ensure!(
                            ran.returned == case.returns || case.returns == 1,
                            "{program} returned {}",
                            ran.returned
                        );
                        Ok(ran.ns - made)
                    })?;
                }
                comparisons.push(comparison);
            }
        }
        Ok(comparisons)
    }

    /// New keys into full tables, on average and one by one, alone or while the other CPU does the same.
    fn full(&mut self, family: usize, suffix: u32, beside: bool) -> Result<(Comparison, Vec<Samples>)> {
        let arms: Vec<&str> = EVICTING.iter().map(|number| KINDS[*number].0).chain([AGAIN]).collect();
        let name = if beside { "insert into a full table, two CPUs" } else { "insert into a full table" };
        let mut comparison = Comparison::new(format!("{}: {name}", FAMILIES[family]), "ns", &arms);
        let mut singles: Vec<Vec<f64>> = vec![Vec::new(); EVICTING.len()];
        let base = self.programs.tc(&format!("key{suffix}"))?;
        let making: Samples = (0..SINGLES).map(|_| run(base, PACKET, 1).map(|ran| ran.ns)).collect::<Result<_>>()?;
        for round in 0..=self.rounds {
            // New keys in each turn: the task is not set anew for those after the first.
            self.tasks.set(Task { base: 1 << 23, mask: (1 << 22) - 1, scatter: 0, turn: round << 17 })?;
            let mut seen = [false; EVICTING.len()];
            comparison.round(round > 0, self.stop, |arm| {
                let number = arm % EVICTING.len();
                let program = self.programs.tc(&format!("{}_put{suffix}", KINDS[EVICTING[number]].1))?;
                let made = run(base, PACKET, REPEAT)?.ns;
                let there = beside.then_some(self.cpus.1);
                beside_another(there, program, || {
                    let mean = run(program, PACKET, REPEAT)?.ns - made;
                    if !std::mem::replace(&mut seen[number], true) && round > 0 {
                        for _ in 0..SINGLES {
                            singles[number].push(run(program, PACKET, 1)?.ns - making.median());
                        }
                    }
                    Ok(mean)
                })
            })?;
        }
        Ok((comparison, singles.into_iter().map(|times| times.into_iter().collect()).collect()))
    }
}
