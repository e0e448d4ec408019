//! `packet`: programs run on one packet at a time (`BPF_PROG_TEST_RUN`, `repeat` 1), less what a program takes that does nothing,
//! as ratios to programs that do the least for the same packet. All take turns in one run.

pub mod frames;
mod measure;
mod print;
pub mod runner;
mod subject;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use serde::Serialize;

use self::measure::Figures;
use self::subject::Subject;
use crate::packet::runner::Yardstick;

#[derive(Debug, clap::Args)]
pub struct PacketArguments {
    /// The agent of another version, measured beside this one.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// How often all programs take turns; the result is the median.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Packets of each kind in a round.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    packets: u32,
    /// Also write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything that was measured, and where.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Results {
    bench: &'static str,
    kernel: String,
    cpus: usize,
    load_before: String,
    load_after: String,
    rounds: u32,
    packets_per_round: u32,
    figures: Vec<Figures>,
}

/// Measures and prints.
pub fn run(arguments: &PacketArguments, agent: &Path, stop: &AtomicBool) -> Result<()> {
    eprintln!("==> building the programs that do the least");
    let yardstick = lb_tests::programs::build_yardstick()?;
    let (load_before, cpus) = (load(), std::thread::available_parallelism()?.get());
    let mut yardstick = Yardstick::load(&yardstick)?;
    let mut subjects = vec![Subject::start("now", agent)?];
    if let Some(before) = &arguments.before {
        subjects.push(Subject::start("before", before).with_context(|| before.display().to_string())?);
    }
    let figures = measure::measure(arguments, &mut yardstick, &subjects, stop)?;
    drop(subjects);
    let results = Results {
        bench: "packet",
        kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
        cpus,
        load_before,
        load_after: load(),
        rounds: arguments.rounds,
        packets_per_round: arguments.packets,
        figures,
    };
    print::print(&results);
    if let Some(file) = &arguments.json {
        std::fs::write(file, serde_json::to_string_pretty(&results)?)
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Load averages, as the kernel writes them.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
