//! `ballast-bench`, which `cargo xtask bench` starts: what Ballast costs, as ratios measured side by side in one run.
//!
//! All arms of a comparison take turns, there and back (A B B A), so that whatever else the machine does falls on all of them alike. A
//! comparison of a thing with itself shows how much of a ratio is noise.

mod all;
mod connect;
mod control;
mod figures;
mod fixture;
mod flood;
mod machine;
mod memory;
mod north_south;
mod packet;
mod pages;
mod scale;
mod start;
mod statistics;
mod targets;
mod yardstick;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use self::figures::{Figure, Part};

/// Measures Ballast on network namespaces of its own.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench")]
struct Arguments {
    /// The agent to run.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Write the result as JSON, too.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// The book's sources (`docs/src`): the table of the goals is written there. For `all`.
    #[arg(long, value_name = "FOLDER", global = true)]
    book: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Everything below, one after the other.
    All(all::AllArguments),
    /// TCP connections and requests through a cluster IP, beside direct ones and beside kube-proxy's.
    Connect(connect::ConnectArguments),
    /// Bulk TCP streams, in the same way.
    Stream(connect::ConnectArguments),
    /// Starts, changes and memory with ten thousand services, beside kube-proxy.
    Control(control::ControlArguments),
    /// What the programs take of the processor for one packet, as ratios to the least that any program needs.
    Packet(packet::PacketArguments),
    /// What a packet costs with 10, 10,000 and 100,000 services: what it costs that there are many.
    Scale(scale::ScaleArguments),
    /// What connections and services take of the kernel's memory.
    Memory,
    /// What a flood of SYNs breaks.
    Flood,
    /// Cold starts from a file: until the first connection, and how long other processes of the node stall.
    Start(start::StartArguments),
    /// External clients: the programs on one frame at a time, at XDP and at tc.
    #[command(name = "north-south")]
    NorthSouth(north_south::NorthSouthArguments),
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
    let is_all = matches!(arguments.what, What::All(_));
    ensure!(arguments.book.is_none() || is_all, "--book writes the table of all goals: it goes with `bench all`");
    let (parts, heading) = measure_parts(arguments, &stop)?;
    let figures: Vec<Figure> = parts.iter().flat_map(|part| part.figures.clone()).collect();
    println!("\n{heading}\n\n{}", targets::table(&figures, is_all));
    for reason in pages::left_out(&parts) {
        println!("Left out: {reason}.");
    }
    if let Some(file) = &arguments.json {
        let value = match &parts[..] {
            [part] => part.json(),
            parts => all_json(parts, &figures)?,
        };
        let text = serde_json::to_string_pretty(&value)? + "\n";
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    if let Some(book) = &arguments.book {
        pages::write(book, &parts, &heading)?;
    }
    Ok(())
}

/// All parts of what is asked for, and a line about where and when they were measured.
fn measure_parts(arguments: &Arguments, stop: &AtomicBool) -> Result<(Vec<Part>, String)> {
    let (before, machine) = (machine::load(), machine::machine()?);
    let parts = match &arguments.what {
        What::All(asked) => all::run(*asked, &arguments.agent, stop)?,
        what => vec![measure(what, &arguments.agent, stop)?],
    };
    let heading = format!(
        "Kernel {}, {} CPUs, load average {before} before and {} after. In brackets where the median lies with 95 %.",
        machine.kernel,
        machine.cpus,
        machine::load()
    );
    Ok((parts, heading))
}

/// All parts, and all figures once more in one list.
fn all_json(parts: &[Part], figures: &[Figure]) -> Result<Value> {
    let all: Vec<Value> = parts.iter().map(Part::json).collect();
    Ok(json!({"bench": "all", "machine": machine::machine()?, "parts": all, "figures": figures}))
}

fn measure(what: &What, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    match what {
        What::All(_) => bail!("all is more than one bench"),
        What::Connect(asked) => connect::connect(asked, &asked.fixture(agent, stop)?, stop),
        What::Stream(asked) => connect::stream(asked, &asked.fixture(agent, stop)?, stop),
        What::Control(asked) => control::run(asked, agent, stop),
        What::Packet(asked) => packet::run(asked, agent, stop),
        What::Scale(asked) => scale::run(asked, agent, stop),
        What::Memory => memory::run(agent, stop),
        What::Flood => flood::run(stop),
        What::Start(asked) => start::run(asked, agent, stop),
        What::NorthSouth(asked) => north_south::run(asked, agent, stop),
    }
}
