//! `cargo xtask run`: builds all, then becomes the demo, or the agent on a cluster.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::compile::Build;
use crate::setup::{Level, setup_and_build};
use crate::workspace::{Workspace, is_root};

/// `cargo xtask run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// End after the tour; succeed only if every step did what it says.
    #[arg(long)]
    once: bool,
    /// The tour's steps as JSON on standard output.
    #[arg(long)]
    json: bool,
    /// Run the agent on this cluster, on this machine as its node, instead of the demo.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["once", "json"])]
    kubeconfig: Option<PathBuf>,
    /// Flags for the agent.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

/// Runs the command. Returns only on failure: the last step replaces this process, so that a Ctrl-C reaches the one that
/// cleans up and nobody else.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<()> {
    if !is_root() {
        bail!("eBPF programs and network namespaces need root: run it as in `sudo -E cargo xtask run`");
    }
    let agent = workspace.agent(false);
    let mut command = if let Some(kubeconfig) = &args.kubeconfig {
        setup_and_build(workspace, Level::Build, &[Build::Agent])?;
        let mut command = Command::new(agent);
        command.args(["agent", "--source", "kube", "--kubeconfig"]).arg(kubeconfig).args(&args.flags);
        command
    } else {
        setup_and_build(workspace, Level::Run, &[Build::Agent, Build::Demo])?;
        demo(workspace, args)
    };
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", command.get_program().display()))
}

fn demo(workspace: &Workspace, args: &RunArgs) -> Command {
    let mut command = Command::new(workspace.demo());
    // The replays of the incidents start the agent as the tests do.
    command.arg("--agent").arg(workspace.agent(false)).env("BALLAST_BIN", workspace.agent(false));
    command.arg("--sample").arg(workspace.root.join("deploy/sample.yaml"));
    for (given, flag) in [(args.once, "--once"), (args.json, "--json")] {
        if given {
            command.arg(flag);
        }
    }
    if !args.flags.is_empty() {
        command.arg("--").args(&args.flags);
    }
    command
}
