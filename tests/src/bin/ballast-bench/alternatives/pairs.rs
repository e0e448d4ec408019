//! Two entries for a flow, one for each direction, or one for both.

use anyhow::{Result, ensure};

use super::REPEAT;
use super::comparison::Comparison;
use super::programs::{PACKET, Task, run};
use super::run::Bench;
use super::tables::{AGAIN, ENTRIES, FEW};
use crate::packet::measure::FAMILIES;

const ARMS: [(&str, &str); 3] = [("two entries", "two"), ("one entry, sorted ends", "one"), (AGAIN, "two")];
/// Flows that come and go begin here.
const OTHERS: u32 = 1 << 21;

impl Bench<'_> {
    /// Packets of either direction, and flows that come and go.
    pub fn pairs(&mut self) -> Result<Vec<Comparison>> {
        let names = ARMS.map(|(name, _)| name);
        let mut comparisons = Vec::new();
        for (family, suffix) in [4_u32, 6].into_iter().enumerate() {
            // As many flows as fill half of the two entries' table: a quarter of its entries.
            let flows = ENTRIES[family] / 4;
            for (_, table) in &ARMS[..2] {
                self.fill(&format!("{table}_put{suffix}"), 0, flows)?;
            }
            for (what, program, base, keys) in [
                ("a packet of either direction, few flows", "find", 0, FEW),
                ("a packet of either direction, many flows", "find", 0, flows * 2),
                ("a flow comes and goes, few flows", "churn", OTHERS, FEW),
                ("a flow comes and goes, many flows", "churn", OTHERS, ENTRIES[family] * 4),
            ] {
                let mut comparison = Comparison::new(format!("{}: {what}", FAMILIES[family]), "ns", &names);
                let empty = self.programs.tc(&format!("both_key{suffix}"))?;
                let mut turn = 0;
                for round in 0..=self.rounds {
                    comparison.round(round > 0, self.stop, |arm| {
                        turn += REPEAT;
                        let task = Task { base, mask: keys - 1, scatter: 1, turn };
                        let program = format!("{}_{program}{suffix}", ARMS[arm].1);
                        self.tasks.set(task)?;
                        let made = run(empty, PACKET, REPEAT)?.ns;
                        self.tasks.set(task)?;
                        let ran = run(self.programs.tc(&program)?, PACKET, REPEAT)?;
                        ensure!(ran.returned == 1, "{program} returned {}", ran.returned);
                        Ok(ran.ns - made)
                    })?;
                }
                comparisons.push(comparison);
            }
        }
        Ok(comparisons)
    }
}
