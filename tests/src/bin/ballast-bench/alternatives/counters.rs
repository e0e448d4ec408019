//! Counters and time stamps of each CPU, or shared; from one CPU, and while another one does the same.

use anyhow::{Result, ensure};

use super::REPEAT;
use super::comparison::Comparison;
use super::programs::{PACKET, Task, run};
use super::run::{Bench, beside_another};
use super::tables::AGAIN;

const COUNTERS: [(&str, &str); 3] =
    [("of each CPU", "count_each"), ("shared, atomic", "count_shared"), (AGAIN, "count_each")];
const STAMPS: [(&str, &str); 4] = [
    ("shared, written where it changed", "stamp_changed"),
    ("shared, written always", "stamp_always"),
    ("of each CPU, written always", "stamp_each"),
    (AGAIN, "stamp_changed"),
];
/// Elements (`tests/yardstick/src/alternatives/counters.rs`).
const MANY: u32 = 1_024;

impl Bench<'_> {
    pub fn counters(&mut self) -> Result<Vec<Comparison>> {
        let mut comparisons = Vec::new();
        for (what, arms) in [("a counter", &COUNTERS[..]), ("a time stamp", &STAMPS[..])] {
            for (elements, amount) in [(1, "one"), (MANY, "1,024")] {
                for beside in [false, true] {
                    let cpus = if beside { "two CPUs" } else { "one CPU" };
                    let names: Vec<&str> = arms.iter().map(|(name, _)| *name).collect();
                    let mut comparison = Comparison::new(format!("{what}, {amount} of them, {cpus}"), "ns", &names);
                    for round in 0..=self.rounds {
                        self.tasks.set(Task { base: 0, mask: elements - 1, scatter: 1, turn: 0 })?;
                        comparison.round(round > 0, self.stop, |arm| {
                            let program = self.programs.tc(arms[arm].1)?;
                            let none = self.programs.tc("count_none")?;
                            let there = beside.then_some(self.cpus.1);
                            let made = beside_another(there, none, || Ok(run(none, PACKET, REPEAT)?.ns))?;
                            beside_another(there, program, || {
                                let ran = run(program, PACKET, REPEAT)?;
                                ensure!(ran.returned == 1, "{} returned {}", arms[arm].1, ran.returned);
                                Ok(ran.ns - made)
                            })
                        })?;
                    }
                    comparisons.push(comparison);
                }
            }
        }
        Ok(comparisons)
    }
}
