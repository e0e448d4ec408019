//! `ballast top`: a live table of services on a terminal; plain text where there is none.

mod draw;
mod keys;
mod live;
mod model;
mod plain;
mod readings;
mod screen;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use readings::Wanted;

use super::agent_dirs::AgentDirs;
use super::filter::ServiceName;
use super::pace;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only this namespace [default: all of them]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Only this service, or this port of it
    #[arg(long, value_name = "[NAMESPACE/]NAME[:PORT]")]
    service: Option<ServiceName>,

    /// Time between two readings; rates are those of this time
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = pace::interval)]
    interval: Duration,

    /// Print one table as plain text, after one interval
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    dirs: AgentDirs,
}

/// Ends by `q`, by a signal, with a closed pipe, or with its terminal.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let dirs = &arguments.dirs;
    let wanted = Wanted {
        namespace: arguments.namespace.clone(),
        service: arguments.service.clone(),
        bpffs: dirs.bpffs.clone(),
        run_dir: dirs.run_dir.clone(),
    };
    if arguments.once || !takes_a_screen() {
        return plain::run(wanted, arguments.interval, arguments.once);
    }
    // Two threads: a signal ends the process also while the terminal takes nothing.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(live::run(wanted, arguments.interval))
}

/// Whether there is a keyboard, and a terminal that can be drawn on.
fn takes_a_screen() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !matches!(term.as_str(), "" | "dumb")
}
