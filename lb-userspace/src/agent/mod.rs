//! The running agent: source → plan → apply → maps, with the programs attached and everything observable.
//!
//! Only this module reads clocks and signals.

mod accepted;
mod adoption;
mod api_address;
mod auditor;
mod changes;
mod checks;
pub mod clock;
mod descriptors;
mod ejections;
mod endpoint_events;
mod facts;
mod health_checks;
mod health_memory;
mod held_ports;
mod judge;
mod log_bound;
mod logged_problems;
mod logging;
pub mod marks;
mod neighbours;
mod node_memory;
mod object_events;
mod previews;
mod ring;
mod run;
mod run_files;
mod scrape;
mod servers;
mod shortages;
mod sockets;
mod start;
mod state;
mod sweeper;
mod tables;
mod task;
mod written;

use std::path::Path;

pub use run_files::run_files;

use crate::config::{Options, Settings};

/// `ballast agent`: runs until SIGTERM or SIGINT, and leaves everything pinned and attached.
pub fn run(config: Option<&Path>, flags: Options) -> anyhow::Result<()> {
    let settings = settings(config, flags)?;
    logging::start(settings.log_format, settings.log_level, settings.program_log_level)?;
    descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let done = runtime.block_on(start::start(settings));
    // A task that hangs in a system call must not hold up the end.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    done
}

/// The agent mostly waits; a second thread lets health answer while maps are written.
const WORKERS: usize = 2;
const SHUTDOWN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

fn settings(config: Option<&Path>, flags: Options) -> anyhow::Result<Settings> {
    let options = match config {
        Some(path) => flags.or(Options::read(path)?),
        None => flags,
    };
    let system = rustix::system::uname();
    Ok(options.settle(system.nodename().to_str().ok())?)
}
