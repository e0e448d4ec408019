//! `alternatives`: other ways to do what the programs do, beside the way they do it, so that a decision has its numbers
//! (`docs/adr/0025-what-was-tried-side-by-side.md`). Programs of `tests/yardstick`, no agent.

mod calls;
mod comparison;
mod counters;
mod hooks;
mod pairs;
mod print;
mod programs;
mod run;
mod tables;
mod write;

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use serde_json::json;

use self::comparison::Comparison;
use self::hooks::Hooks;
use self::programs::Programs;
use self::run::Bench;
use crate::figures::Part;
use crate::machine::{Cpus, load, machine};
use crate::packet::measure::{pin_to, two_cpus};

const ROUNDS: u32 = 40;
/// Runs of one arm before the next one's turn.
const REPEAT: u32 = 2_000;
#[derive(Debug, clap::Args)]
pub struct AlternativesArguments {
    /// How often all arms take turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
}

impl AlternativesArguments {
    fn rounds(&self) -> u32 {
        if self.quick { self.rounds.min(10) } else { self.rounds }
    }
}

/// Measures and prints.
pub fn run(arguments: &AlternativesArguments, stop: &AtomicBool) -> Result<Part> {
    let _before = Cpus::keep()?;
    eprintln!("==> building the alternatives");
    let yardstick = lb_tests::programs::build_yardstick()?;
    let load_before = load();
    let mut programs = Programs::load(&yardstick.with_file_name("alternatives"))?;
    let mut tasks = programs.tasks()?;
    let mut hooks = Hooks::new(&yardstick, &mut programs)?;
    let cpus = two_cpus()?;
    pin_to(cpus.0)?;
    let rounds = arguments.rounds();
    let mut comparisons = write::measure(&programs, rounds, stop)?;
    let mut bench = Bench { programs: &programs, tasks: &mut tasks, rounds, cpus, stop };
    comparisons.extend(bench.calls()?);
    comparisons.extend(bench.counters()?);
    comparisons.extend(bench.pairs()?);
    let (compared, full) = bench.tables()?;
    comparisons.extend(compared);
    comparisons.push(hooks.measure(rounds, stop)?);
    drop(hooks);
    let rows: Vec<_> = comparisons.iter().flat_map(Comparison::rows).collect();
    print::print(&rows, &full);
    Ok(Part {
        bench: "alternatives",
        figures: comparisons.iter().flat_map(Comparison::figures).collect(),
        details: json!({
            "machine": machine()?, "loadBefore": load_before, "loadAfter": load(), "rounds": rounds, "rows": rows, "full": full,
        }),
        left_out: Vec::new(),
    })
}
