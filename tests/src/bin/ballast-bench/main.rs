//! `ballast-bench`, which `cargo xtask bench` starts: what Ballast costs, as ratios measured side by side in one run.
//!
//! All arms of a comparison take turns, there and back (A B B A), so that whatever else the machine does falls on all of them alike. A
//! comparison of a thing with itself shows how much of a ratio is noise.

mod connect;
mod control;
mod figures;
mod history;
mod machine;
mod outside;
mod packet;
mod stage;
mod statistics;
mod targets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};

use self::figures::{Figure, Part};

/// Measures Ballast on network namespaces of its own.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench")]
struct Arguments {
    /// The agent to run.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Also write the result as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// An earlier result (`--json`): what has become worse by more than noise is named, and is an error.
    #[arg(long, value_name = "FILE", global = true)]
    previous: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// TCP connections and requests through a cluster IP, beside direct ones and beside kube-proxy's.
    Connect(connect::ConnectArguments),
    /// Bulk TCP streams, in the same way.
    Stream(connect::ConnectArguments),
    /// Starts, changes and memory with ten thousand services, beside kube-proxy.
    Control(control::ControlArguments),
    /// What the programs take of the processor for one packet, as ratios to the least that any program needs.
    Packet(packet::PacketArguments),
    /// Clients outside: frames over a wire and packets one by one, beside kube-proxy and plain forwarding.
    #[command(name = "north-south")]
    NorthSouth(outside::NorthSouthArguments),
}

fn main() -> ExitCode {
    // Before any thread starts, so that all of them inherit it: signals come to one thread, and everything is cleaned up.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    match signals.thread_block().context("blocking signals").and_then(|()| run(&Arguments::parse(), signals)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, signals: SigSet) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root: run it as in `sudo -E cargo xtask bench`");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // Ends with the process.
    std::thread::spawn(move || {
        let _ = signals.wait();
        stopped.store(true, Ordering::Relaxed);
    });
    // Before anything is measured: a file that cannot be read is told at once.
    let previous = arguments.previous.as_deref().map(history::read).transpose()?;
    let part = measure(&arguments.what, &arguments.agent, &stop)?;
    println!("\n{}", targets::table(&part.figures, false));
    for reason in &part.left_out {
        println!("Left out: {reason}.");
    }
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&part.json())? + "\n";
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    previous.map_or(Ok(()), |previous| compare(&previous, &part))
}

/// An error that names what has become worse.
fn compare(previous: &[Figure], part: &Part) -> Result<()> {
    let noise = history::noise(&part.figures).max(history::noise(previous));
    let worse = history::regressions(previous, &part.figures, noise);
    let lines: Vec<String> = worse.iter().map(|regression| format!("  {regression}")).collect();
    ensure!(worse.is_empty(), "{} figures have become worse:\n{}", worse.len(), lines.join("\n"));
    println!("Nothing has become worse by more than noise ({:.1} %).", noise * 100.0);
    Ok(())
}

fn measure(what: &What, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    match what {
        What::Connect(asked) => connect::connect(asked, &asked.stage(agent, stop)?, stop),
        What::Stream(asked) => connect::stream(asked, &asked.stage(agent, stop)?, stop),
        What::Control(asked) => control::run(asked, agent, stop),
        What::Packet(asked) => packet::run(asked, agent, stop),
        What::NorthSouth(asked) => outside::run(asked, agent, stop),
    }
}
