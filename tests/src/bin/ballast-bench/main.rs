//! `ballast-bench`, which `cargo xtask bench` starts: what Ballast costs, as ratios measured side by side in one run.
//!
//! `connect`: a connection made through a cluster IP, one made to the same backend directly, and one on a node without Ballast take
//! turns (A B B A), so that whatever else the machine does falls on all of them alike. A comparison of a thing with itself
//! shows how much of a ratio is noise. Clients and servers share one CPU: the work on the way is compared, not the
//! scheduler's luck (waking another CPU takes several times as long as all the rest).

mod connect;
mod control;
mod network;
mod outside;
mod packet;
mod statistics;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use crate::network::Network;

/// Bounds of what may be asked for: some minutes at most.
const ROUNDS_MAX: u32 = 1_000;
const CONNECTIONS_MAX: u32 = 1_000;

/// Measures Ballast on network namespaces of its own.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench")]
struct Arguments {
    /// The agent to run.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// TCP connect + request + response through a cluster IP, as a ratio to direct.
    Connect(ConnectArguments),
    /// Starts, changes and memory with ten thousand services, beside kube-proxy.
    Control(control::ControlArguments),
    /// What the programs take of the processor for one packet, as ratios to the least that any program needs.
    Packet(packet::PacketArguments),
    /// Clients outside: frames over a wire and packets one by one, beside kube-proxy and plain forwarding.
    #[command(name = "north-south")]
    NorthSouth(outside::NorthSouthArguments),
}

#[derive(Debug, clap::Args)]
struct ConnectArguments {
    /// How often everything is measured; the result is the median.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: u32,
    /// Connections of each side in a round, rounded up to a multiple of 20.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    connections: u32,
    /// The result as JSON.
    #[arg(long)]
    json: bool,
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
    let asked = match &arguments.what {
        What::Connect(asked) => asked,
        What::Control(asked) => return control::run(asked, &arguments.agent, &stop),
        What::Packet(asked) => return packet::run(asked, &arguments.agent, &stop),
        What::NorthSouth(asked) => {
            stay_on_one_cpu()?;
            return outside::run(asked, &arguments.agent, &stop);
        }
    };
    stay_on_one_cpu()?;
    let network = Network::new(&arguments.agent, &stop)?;
    let results = connect::measure(&network, asked.rounds, asked.connections, &stop)?;
    drop(network);
    if asked.json {
        return table::print_json(asked, &results);
    }
    table::print(asked, &results);
    Ok(())
}

/// Binds this process and its threads to come to the last CPU that it may use; the first one serves most interrupts.
fn stay_on_one_cpu() -> Result<()> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread).context("asking for our CPUs")?;
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).context("no CPU")?;
    let mut one = CpuSet::new();
    one.set(last).context("choosing a CPU")?;
    sched_setaffinity(this_thread, &one).context("binding ourselves to a CPU")
}
