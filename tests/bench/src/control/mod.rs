//! `cargo xtask bench control`: Ballast and kube-proxy beside each other, on nodes of their own, before one real API server.

pub mod agents;
pub mod fixture;
mod latency;
pub mod objects;
mod print;
pub mod probe;
mod run;
mod start;
pub mod store;
pub mod tables;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};

use self::agents::Memory;
use self::fixture::Fixture;
use self::latency::Latency;
use self::run::Bench;
use self::start::Start;
use self::tables::KernelMemory;
use crate::figures::Part;
use crate::statistics::Samples;

const SERVICES: u32 = 10_000;
/// Most services: the cluster IPs that there are.
const SERVICES_MAX: i64 = 60_000;
/// Services of the largest start.
const MOST: usize = 100_000;

/// What is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct ControlArguments {
    /// Services in the API, of four endpoints each.
    #[arg(long, default_value_t = SERVICES, value_parser = clap::value_parser!(u32).range(100..=SERVICES_MAX))]
    services: u32,
    /// Fewer repetitions, and no start with 100,000 services: for a first look.
    #[arg(long)]
    quick: bool,
    /// Another program for Ballast, measured in the same place: what an allocator or a C library makes of it.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Leave kube-proxy out.
    #[arg(long)]
    alone: bool,
}

impl ControlArguments {
    /// As without any option but this one.
    pub fn of(quick: bool) -> Self {
        Self { services: SERVICES, quick, program: None, alone: false }
    }
}

/// How often things are done.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    starts: usize,
    /// Changes that both agents take part in, of each kind.
    both: usize,
    /// Changes of Ballast alone, of each kind.
    alone: usize,
    /// Changes before memory is measured again.
    many: usize,
}

const FULL: Amounts = Amounts { starts: 5, both: 10, alone: 200, many: 100_000 };
const QUICK: Amounts = Amounts { starts: 2, both: 3, alone: 100, many: 10_000 };

/// Everything that was measured.
#[derive(Debug)]
pub struct Results {
    services: usize,
    amounts: Amounts,
    load_before: String,
    load_after: String,
    /// Seconds a bare client takes for both lists, and their bytes.
    list_seconds: Samples,
    list_bytes: u64,
    /// System calls for each change of an endpoint, with few services and with all.
    calls_per_change: [f64; 2],
    ballast_starts: Vec<Start>,
    kube_proxy_starts: Vec<Start>,
    most_start: Option<Start>,
    /// After the start, and after many changes.
    ballast_memory: [Memory; 2],
    most_memory: Option<Memory>,
    kube_proxy_memory: Option<Memory>,
    /// Alone, then beside kube-proxy.
    latencies: Vec<Latency>,
    changes_per_second: f64,
    kernel: KernelMemory,
}

/// Measures everything and prints it.
pub fn run(arguments: &ControlArguments, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let program = arguments.program.as_deref().unwrap_or(agent);
    if !arguments.alone {
        lb_tests::cluster::binary("kube-proxy")?;
    }
    let folder = tempfile::Builder::new().prefix("blt-control-").tempdir()?;
    let fixture = Fixture::new().context("setting the fixture")?;
    let bench = Bench { arguments, program, folder: folder.path(), fixture: &fixture, stop };
    let results = bench.measure()?;
    print::print(&results);
    Ok(Part {
        bench: "control",
        figures: print::figures(&results),
        details: print::json(&results)?,
        left_out: if arguments.quick {
            vec![format!("control with {MOST} services: not in a quick run")]
        } else {
            Vec::new()
        },
    })
}
