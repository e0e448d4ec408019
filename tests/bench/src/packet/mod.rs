//! `packet`: programs run on one packet at a time (`BPF_PROG_TEST_RUN`, `repeat` 1), less the time of a program that does nothing. Results are ratios
//! to programs that do the least for the same packet. All take turns in one run.

pub mod frames;
pub mod measure;
mod print;
pub mod runner;
pub mod subject;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use serde::Serialize;

use self::measure::{Comparison, Figures, Measured};
use self::subject::Subject;
use crate::figures::{Better, Figure, Part};
use crate::machine::{Cpus, Machine, load, machine};
use crate::packet::runner::Yardstick;

const ROUNDS: u32 = 40;
const PACKETS: u32 = 500;
/// The version that is not called `before`.
const NOW: &str = "now";

#[derive(Debug, clap::Args)]
pub struct PacketArguments {
    /// The agent of another version, measured beside this one.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// How often all programs take turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Packets of each kind in a round.
    #[arg(long, default_value_t = PACKETS, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    packets: u32,
}

impl PacketArguments {
    /// As without any option but this one.
    pub fn of(quick: bool) -> Self {
        Self { before: None, rounds: ROUNDS, quick, packets: if quick { PACKETS / 2 } else { PACKETS } }
    }

    fn rounds(&self) -> u32 {
        if self.quick { self.rounds.min(10) } else { self.rounds }
    }
}

/// Everything that was measured, and where.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Results {
    machine: Machine,
    load_before: String,
    load_after: String,
    rounds: u32,
    packets_per_round: u32,
    #[serde(rename = "packets")]
    figures: Vec<Figures>,
    /// This version by `before`, if there is one.
    comparisons: Vec<Comparison>,
}

/// Measures and prints.
pub fn run(arguments: &PacketArguments, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let _before = Cpus::keep()?;
    eprintln!("==> building the programs that do the least");
    let yardstick = crate::yardstick::object()?;
    let load_before = load();
    let mut yardstick = Yardstick::load(&yardstick)?;
    let mut subjects = vec![Subject::start(NOW, agent)?];
    if let Some(before) = &arguments.before {
        subjects.push(Subject::start("before", before).with_context(|| before.display().to_string())?);
    }
    let Measured { figures, comparisons } = measure::measure(arguments, &mut yardstick, &subjects, stop)?;
    drop(subjects);
    let results = Results {
        machine: machine()?,
        load_before,
        load_after: load(),
        rounds: arguments.rounds(),
        packets_per_round: arguments.packets,
        figures,
        comparisons,
    };
    print::print(&results);
    Ok(Part {
        bench: "packet",
        figures: goals(&results.figures),
        details: serde_json::to_value(&results)?,
        left_out: Vec::new(),
    })
}

/// Those of this version, each with its goal.
fn goals(figures: &[Figures]) -> Vec<Figure> {
    let now = figures.iter().filter(|figures| figures.version == NOW);
    let figure = |figures: &Figures| {
        let (family, kind) = (figures.family, figures.kind);
        let figure = Figure::ratio(format!("packet, {family}: {kind}"), &figures.ratios, Better::Less);
        match kind {
            // No program does the least for it.
            "new flow, answer" => figure,
            _ if kind.contains("flood") => figure.aims(10, 1.1),
            _ => figure.aims(4, 1.5),
        }
    };
    now.map(figure).collect()
}
