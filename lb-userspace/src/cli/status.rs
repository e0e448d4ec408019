//! `ballast status`: the agent's own report, and what the pinned maps and links show without it.

use std::time::Duration;

use clap::Args;

use super::agent_dirs::AgentDirs;
use super::colour;
use super::output::{Format, print, render};
use crate::agent::clock;
use crate::observe::contents::{Contents, Wanted, WantedFlows};
use crate::observe::inventory::Inventory;
use crate::observe::report::LinkReport;
use crate::observe::report_socket::{self, AskError};
use crate::observe::status::{self, Adoption, Status};
use lb_datapath::maps_dir;
use lb_model::Monotonic;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    dirs: AgentDirs,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let status = gather(&arguments.dirs);
    print(&render(arguments.output, &status, |wide| colour::labelled(status::text(&status, wide)))?)
}

/// What can be found out is shown; what cannot is an error in its place.
fn gather(dirs: &AgentDirs) -> Status {
    let mut status = Status::default();
    match dirs.ask(report_socket::ask) {
        Ok(report) => (status.agent, status.agent_running) = (Some(report), Some(true)),
        Err(error) => {
            status.agent_running = match error {
                AskError::NotRunning { .. } => Some(false),
                AskError::Elsewhere { .. } => Some(true),
                AskError::Denied { .. } | AskError::NoReport { .. } => {
                    lb_datapath::running_agent(&dirs.bpffs).map(|_| true)
                }
            };
            status.agent_error = Some(error.to_string());
        }
    }
    match Contents::read(&maps_dir(&dirs.bpffs), Wanted { flows: WantedFlows::All, health: true, ..Wanted::default() })
    {
        Ok(contents) => add_tables(&mut status, &contents),
        Err(error) => status.tables_error = Some(error.to_string()),
    }
    match lb_datapath::read_attached(&dirs.bpffs) {
        Ok(attached) => {
            status.links = attached.links.iter().map(LinkReport::from).collect();
            status.socket_programs = attached.sockets;
        }
        Err(error) => status.links_error = Some(error.to_string()),
    }
    status
}

fn add_tables(status: &mut Status, contents: &Contents) {
    let now = clock::monotonic();
    status.tables = Some(Inventory::new(contents, now).totals());
    status.adoption = adoption(contents.adoption_until_s, now);
    let happened = contents.outcomes.iter().filter(|(_, count)| *count > 0);
    status.outcomes = happened.map(|(outcome, count)| (outcome.name(), *count)).collect();
    if let Some(config) = contents.config.filter(|config| config.programmed_ds != 0) {
        let programmed = Monotonic::from_tenths(config.programmed_ds);
        status.revision = Some(u64::from(config.revision_high) << 32 | u64::from(config.revision_low));
        status.programmed_seconds = Some(now.since(programmed).as_secs_f64());
    }
}

/// `None`: the window is not open.
fn adoption(until_s: u32, now: Monotonic) -> Option<Adoption> {
    let left = Monotonic::from_duration(Duration::from_secs(until_s.into())).since(now);
    (!left.is_zero()).then(|| Adoption { until: clock::wall() + left, seconds: left.as_secs_f64() })
}
