//! The same work inlined, in functions of the program, and in global functions.

use anyhow::Result;

use super::REPEAT;
use super::comparison::Comparison;
use super::programs::{PACKET, run};
use super::run::Bench;
use super::tables::AGAIN;

const ARMS: [(&str, &str); 4] =
    [("inlined", "inlined"), ("functions", "own"), ("global functions", "global"), (AGAIN, "inlined")];
/// The work is done so often in each run (`tests/yardstick/src/alternatives/calls.rs`).
const TIMES: f64 = 64.0;

impl Bench<'_> {
    pub fn calls(&self) -> Result<Vec<Comparison>> {
        let names = ARMS.map(|(name, _)| name);
        let mut comparisons = Vec::new();
        for depth in [1, 2, 4] {
            let mut comparison = Comparison::new(format!("small work, {depth} deep"), "ns", &names);
            let nothing = self.programs.tc("nothing")?;
            for round in 0..=self.rounds {
                comparison.round(round > 0, self.stop, |arm| {
                    let program = self.programs.tc(&format!("{}_{depth}", ARMS[arm].1))?;
                    Ok((run(program, PACKET, REPEAT)?.ns - run(nothing, PACKET, REPEAT)?.ns) / TIMES)
                })?;
            }
            comparisons.push(comparison);
        }
        Ok(comparisons)
    }
}
