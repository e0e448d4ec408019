//! `ballast maintenance`: takes backends out by hand and brings them back; the flows that they have stay.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};

use super::agent_dirs::AgentDirs;
use super::output::{Format, complain, print, render, sentence};
use crate::agent::marks;
use crate::observe::maintenance::{Answer, Order, State};
use crate::observe::report_socket;
use crate::observe::table::aligned;
use lb_plan::plan::Target;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// `list`, or an address (all endpoints there), or an address and a port; there may be no endpoint yet
    #[arg(value_name = "list|ADDRESS|ADDRESS:PORT")]
    what: What,

    /// on: no new flows; off: new flows again
    #[arg(value_enum)]
    switch: Option<Switch>,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    dirs: AgentDirs,
}

#[derive(Clone, Copy, Debug)]
enum What {
    List,
    Target(Target),
}

impl std::str::FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "list" => Ok(Self::List),
            _ => text.parse().map(Self::Target).map_err(|_| {
                format!("{text:?} is neither `list` nor an address (10.0.0.1, 10.0.0.1:8080, [2001:db8::1]:8080)")
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The exit code where the agent has written an order down, and the tables do not hold it.
const PENDING: u8 = 3;

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match order(arguments) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(pending)) => {
            complain(pending);
            ExitCode::from(PENDING)
        }
        Err(error) => {
            complain(sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// Gives the order and prints the answer. Returns what of it the tables do not hold.
fn order(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    let order = match (arguments.what, arguments.switch) {
        (What::List, None) => Order::List,
        (What::List, Some(_)) => bail!("`list` takes no more; give an address to switch"),
        (What::Target(_), None) => bail!("say `on` or `off` behind the address"),
        (What::Target(target), Some(Switch::On)) => Order::On(target),
        (What::Target(target), Some(Switch::Off)) => Order::Off(target),
    };
    let run_dir = &arguments.dirs.run_dir;
    let answer = match arguments.dirs.ask(|run_dir| report_socket::order(run_dir, order)) {
        // What the next agent will keep out can be read without one.
        Err(report_socket::AskError::NotRunning { .. }) if order == Order::List => written(run_dir)?,
        answer => answer?,
    };
    if let Some(error) = &answer.error {
        bail!("{error}");
    }
    let unchanged = match order {
        Order::On(_) if !answer.changed => "It was in maintenance already.\n",
        Order::Off(_) if !answer.changed => "It was not in maintenance.\n",
        Order::List | Order::On(_) | Order::Off(_) => "",
    };
    let unserved = match order {
        Order::On(target) => {
            answer.targets.iter().any(|state| state.target == target.to_string() && state.endpoints == 0)
        }
        Order::List | Order::Off(_) => false,
    };
    let nobody =
        if unserved { "No service has an endpoint there yet; one that comes takes no new flows.\n" } else { "" };
    let text = |_| format!("{}{unchanged}{nobody}", table(&answer));
    print(&render(arguments.output, &answer, text)?)?;
    Ok(answer.pending.as_deref().map(pending))
}

/// What to do about an order that the tables do not hold.
fn pending(reason: &str) -> String {
    format!(
        "written down, but not in the tables yet, so new connections go as before; the agent goes on trying: give the order again until it \
         succeeds ({reason})"
    )
}

fn written(run_dir: &std::path::Path) -> anyhow::Result<Answer> {
    let state = |target: Target| State { target: target.to_string(), endpoints: 0 };
    let targets = marks::read(run_dir)?.into_iter().map(state).collect();
    Ok(Answer { targets, ..Answer::default() })
}

fn table(answer: &Answer) -> String {
    if answer.targets.is_empty() {
        return "Nothing is in maintenance.\n".to_owned();
    }
    let rows = answer.targets.iter().map(|state| vec![state.target.clone(), state.endpoints.to_string()]);
    aligned(&["TARGET", "ENDPOINTS"], rows)
}
