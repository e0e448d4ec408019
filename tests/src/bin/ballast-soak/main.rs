//! `ballast-soak`, which `cargo xtask soak` starts: a million changes of endpoints, under load, with an agent that dies at random.

mod picture;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lb_tests::churn::{Sample, Soaked, soak};
use serde_json::json;

/// Most that may be asked for: some days.
const CHANGES_MAX: u64 = 1_000_000_000;
/// Memory in the last tenth by memory in the second tenth, in percent: more is growth.
const GROWTH_MAX: u64 = 110;

/// Churn without end, on network namespaces of its own.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask soak")]
struct Arguments {
    /// How many changes of endpoints are made.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=CHANGES_MAX))]
    changes: u64,
    /// Equal seeds give equal changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the result goes.
    #[arg(long, value_name = "FILE", default_value = "target/soak.json")]
    json: PathBuf,
    /// Where the picture goes.
    #[arg(long, value_name = "FILE", default_value = "target/soak.svg")]
    picture: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root: run it as in `sudo -E cargo xtask soak`");
    let mut next = 0;
    let soaked = soak(arguments.changes, arguments.seed, |sample| {
        if sample.changes >= next {
            next = sample.changes + arguments.changes / 20;
            let Sample { changes, seconds, rss_kib, records, draining, .. } = sample;
            println!("{seconds:7.1} s  {changes:8} changes  {rss_kib:6} KiB  {records:5} records, {draining:4} drain");
        }
    })?;
    let growth = soaked.growth_percent();
    std::fs::write(&arguments.json, serde_json::to_string_pretty(&report(arguments, &soaked, growth))?)
        .with_context(|| format!("writing {}", arguments.json.display()))?;
    std::fs::write(&arguments.picture, picture::draw(&soaked))
        .with_context(|| format!("writing {}", arguments.picture.display()))?;
    println!("written: {} and {}", arguments.json.display(), arguments.picture.display());
    verdict(&soaked, growth)
}

fn report(arguments: &Arguments, soaked: &Soaked, growth: u64) -> serde_json::Value {
    let Soaked { samples, changes, took, churned } = soaked;
    json!({
        "soak": "endpoint changes", "seed": arguments.seed, "changes": changes, "seconds": took.as_secs_f64(),
        "agentKilled": churned.kills, "logLines": churned.log_lines,
        "memoryEndByBeginPercent": growth,
        "recordsInUse": {"before": churned.in_use[0], "after": churned.in_use[1]},
        "slotsInUse": {"before": soaked.slots()[0], "after": soaked.slots()[1]},
        "packets": {"seen": churned.seen.packets, "stale": churned.seen.stale, "inherited": churned.seen.inherited},
        "drains": {
            "begun": churned.drains.begun, "oldestSeconds": tenths(churned.drains.oldest_ds),
            "putOff": churned.drains.put_off, "leftOver": churned.drains.draining,
        },
        "samples": samples,
    })
}

fn tenths(ds: u64) -> f64 {
    u32::try_from(ds).map_or(f64::INFINITY, |ds| f64::from(ds) / 10.0)
}

fn verdict(soaked: &Soaked, growth: u64) -> Result<()> {
    let Soaked { changes, took, churned, .. } = soaked;
    println!(
        "{changes} changes in {:.0} s, the agent killed {} times: {} of {} packets after a deadline, {} inherited; {} drains, the \
         oldest {:.1} s, {} left over; records in use {} before and {} after; memory at the end {growth} % of that in the beginning",
        took.as_secs_f64(),
        churned.kills,
        churned.seen.stale,
        churned.seen.packets,
        churned.seen.inherited,
        churned.drains.begun,
        tenths(churned.drains.oldest_ds),
        churned.drains.draining,
        churned.in_use[0],
        churned.in_use[1],
    );
    ensure!(churned.seen.stale == 0 && churned.seen.inherited == 0, "misdelivered: {:#?}", churned.seen.violations);
    ensure!(churned.drains.draining == 0, "drains are left over");
    ensure!(churned.in_use[0] == churned.in_use[1], "ids were leaked");
    ensure!(soaked.slots()[0] == soaked.slots()[1], "slots were leaked: {:?}", soaked.slots());
    ensure!(growth <= GROWTH_MAX, "memory grew to {growth} %");
    Ok(())
}
