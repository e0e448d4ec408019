//! The command line: arguments to calls, errors to one sentence and an exit code.

mod agent_dirs;
mod audit;
mod cleanup;
mod colour;
mod doctor;
mod explain;
mod filter;
mod fleet;
mod get;
mod maintenance;
mod migrate;
mod monitor;
mod output;
mod pace;
mod plan;
mod pods;
mod progress;
mod sort;
mod status;
mod sysdump;
mod top;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use output::{complain, print, sentence};

use crate::agent;
use crate::config::Options;

/// A service load balancer for Linux and Kubernetes: eBPF programs forward, this agent keeps their maps true.
#[derive(Debug, Parser)]
#[command(name = "ballast", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: load the programs and keep their maps in step; after a stop the programs go on
    Agent(Box<AgentArguments>),
    /// Show agent, source, tables and attachments; works without an agent, too
    Status(status::Arguments),
    /// Show a live table of services: new and open connections, retries, refusals, drains; works without an agent, too
    Top(top::Arguments),
    /// List services, backends or connections from the pinned maps; works without an agent, too
    Get(get::Arguments),
    /// Say what would become of a packet on this node, and why; exit code 1 if it would be refused or dropped
    Explain(explain::Arguments),
    /// Say what a change of Services and EndpointSlices would do on this node, and apply nothing; exit code 1 if anything would differ
    Plan(plan::Arguments),
    /// Compare the tables with the plan and repair what differs; exit code 2 if something still does
    Audit(audit::Arguments),
    /// Check whether an agent with these options can work on this node; exit code 1 if it cannot
    Doctor(Box<doctor::Arguments>),
    /// Print events as they come: refusals, retries, ejections; until Ctrl-C; exit code 2 without an agent
    Monitor(monitor::Arguments),
    /// Put backends into maintenance and end it: no new flows, present ones stay; exit code 3 while the tables do not hold it
    Maintenance(maintenance::Arguments),
    /// Translate a configuration of kube-proxy, and name fields without a counterpart
    Migrate(migrate::Arguments),
    /// Write one archive with all that is worth knowing of this node, without secrets; works without an agent, too
    Sysdump(sysdump::Arguments),
    /// Ask the agents of all nodes, or of one, with kubectl's credentials: the same as `kubectl ballast`
    Fleet(Box<fleet::Arguments>),
    /// Remove everything that the agent left in the kernel and on disk
    Cleanup(cleanup::Arguments),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    #[command(alias = "completion")]
    Completions { shell: Shell },
    /// Write a manual page of each command into a folder, as man reads them
    Man {
        /// The folder; it is made if it is not there
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
struct AgentArguments {
    /// YAML file with the same names as these flags; flags win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

/// Whether the program has the name of a plugin of kubectl.
fn is_plugin() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == fleet::PLUGIN))
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    if is_plugin() {
        return fleet::run(&fleet::Plugin::parse().arguments);
    }
    let done = match Cli::parse().command {
        Command::Agent(arguments) => agent::run(arguments.config.as_deref(), arguments.options),
        Command::Status(arguments) => status::run(&arguments),
        Command::Get(arguments) => get::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Explain(arguments) => return explain::run(&arguments),
        Command::Monitor(arguments) => return monitor::run(&arguments),
        Command::Plan(arguments) => return plan::run(&arguments),
        Command::Audit(arguments) => return audit::run(&arguments),
        Command::Doctor(arguments) => return doctor::run(*arguments),
        Command::Maintenance(arguments) => return maintenance::run(&arguments),
        Command::Migrate(arguments) => migrate::run(&arguments),
        Command::Sysdump(arguments) => sysdump::run(&arguments),
        Command::Fleet(arguments) => return fleet::run(&arguments),
        Command::Cleanup(arguments) => cleanup::run(&arguments),
        Command::Version => print(&format!("ballast {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completions { shell } => completion(shell),
        Command::Man { dir } => man(&dir),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(sentence(&error));
            ExitCode::FAILURE
        }
    }
}

fn completion(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ballast", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes `ballast.1`, `ballast-status.1` and so on.
fn man(dir: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.with_context(|| format!("manual pages cannot be written to {}", dir.display()))
}

#[cfg(test)]
mod book_tests;
#[cfg(test)]
mod endpoint_problem_tests;
#[cfg(test)]
mod schemas;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command_and_option() {
        let options = clap_markdown::MarkdownOptions::new()
            .title("Commands and options".to_owned())
            .show_footer(false)
            .show_table_of_contents(false);
        let text = clap_markdown::help_markdown_custom::<Cli>(&options);
        lb_pages::is_current("commands.md", &text);
    }

    #[test]
    fn agent_takes_every_documented_flag() {
        let flags = "ballast agent --config c.yaml --source file=/m.yaml --kubeconfig k --api-server https://h:6443 \
            --node-name n --pod-interfaces auto --external-interfaces eth0,wlan* --bpffs /b --cgroup-root auto \
            --socket-lb all --drain-period 10s --run-dir /r --metrics-bind 127.0.0.1:0 --health-bind [::]:0 \
            --tc-attach tcx --log-format json --log-level debug --program-log-level trace";
        assert!(Cli::try_parse_from(flags.split_whitespace()).is_ok());
    }

    #[test]
    fn the_doctor_takes_the_agents_flags() {
        let flags = "ballast doctor -o json --config c.yaml --xdp-mode native --mode dsr --bpffs /b --run-dir /r";
        assert!(Cli::try_parse_from(flags.split_whitespace()).is_ok());
    }

    #[test]
    fn bad_value_names_flag_and_choices() {
        let error = Cli::try_parse_from(["ballast", "agent", "--source", "files"]).expect_err("bad").to_string();
        assert!(error.contains("--source") && error.contains("file=PATH or kube"), "{error}");
        let error = Cli::try_parse_from(["ballast", "agent", "--socket-lb", "some"]).expect_err("bad").to_string();
        assert!(error.contains("--socket-lb") && error.contains("host"), "{error}");
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("man1");
        man(&dir).expect("pages");
        for (page, text) in [("ballast.1", "top"), ("ballast-top.1", "interval"), ("ballast-get.1", "sort")] {
            let page = std::fs::read_to_string(dir.join(page)).expect("a page");
            assert!(page.contains(text), "{page}");
        }
        let file = dir.join("ballast.1");
        let error = sentence(&man(&file).expect_err("no folder"));
        assert!(error.contains(&file.display().to_string()), "{error}");
    }

    #[test]
    fn completions_know_every_command() {
        for (word, shell) in [("completions", "bash"), ("completion", "zsh")] {
            assert!(Cli::try_parse_from(["ballast", word, shell]).is_ok(), "{word}");
        }
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "ballast", &mut script);
        let script = String::from_utf8(script).expect("text");
        assert!(script.contains("sysdump") && script.contains("--sort-by"));
    }

    #[test]
    fn maintenance_takes_a_target_and_a_switch() {
        for good in ["list", "10.0.0.1 on", "[2001:db8::1]:80 off", "10.0.0.1 on -o json"] {
            assert!(
                Cli::try_parse_from(["ballast", "maintenance"].into_iter().chain(good.split(' '))).is_ok(),
                "{good}"
            );
        }
        let error = Cli::try_parse_from(["ballast", "maintenance", "web", "on"]).expect_err("bad").to_string();
        assert!(error.contains("neither `list` nor an address"), "{error}");
        assert!(Cli::try_parse_from(["ballast", "maintenance", "10.0.0.1", "maybe"]).is_err());
    }

    #[test]
    fn a_cleanup_takes_one_purpose() {
        let parse = |text: &str| Cli::try_parse_from(["ballast", "cleanup"].into_iter().chain(text.split_whitespace()));
        for good in ["", "--dry-run", "--hold", "--hand-over --hold", "--kube-proxy", "--kube-proxy --dry-run"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["--hand-over --kube-proxy", "--hand-over --dry-run", "--hold --dry-run"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn namespace_and_all_namespaces_exclude_each_other() {
        assert!(Cli::try_parse_from(["ballast", "get", "services", "-A", "-o", "json"]).is_ok());
        assert!(Cli::try_parse_from(["ballast", "get", "backends", "-n", "demo", "-o", "wide"]).is_ok());
        assert!(Cli::try_parse_from(["ballast", "get", "services", "-A", "-n", "demo"]).is_err());
    }
}
