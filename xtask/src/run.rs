//! `cargo xtask run`: builds what is missing, then becomes the demo, or the agent on a cluster.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::compile::Build;
use crate::process::say;
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

/// Runs the command. But for `--once` it returns only on failure: the last step replaces this process, so that a Ctrl-C reaches the one
/// that cleans up and nobody else.
pub fn run(workspace: &Workspace, args: &RunArgs) -> Result<()> {
    if !is_root() {
        bail!("eBPF programs and network namespaces need root: run it as in `sudo -E cargo xtask run`");
    }
    let before = since_start()?;
    let mut command = if let Some(kubeconfig) = &args.kubeconfig {
        setup_and_build(workspace, Level::Build, &[Build::Programs, Build::Agent])?;
        let mut command = Command::new(workspace.agent(false));
        command.args(["agent", "--source", "kube", "--kubeconfig"]).arg(kubeconfig).args(&args.flags);
        command
    } else {
        let (_, progress) = setup_and_build(workspace, Level::Run, &[Build::Programs, Build::Tour])?;
        let mut command = demo(workspace, args);
        if args.once {
            let started = Instant::now();
            let ended = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
            say("where the time went:");
            let steps = [("compiling xtask", before)].into_iter().chain(progress.done());
            for (name, took) in steps.chain([("the tour", started.elapsed())]) {
                eprintln!("{:>8.1} s  {name}", took.as_secs_f64());
            }
            ensure!(ended.success(), "the tour failed ({ended})");
            return Ok(());
        }
        command
    };
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", command.get_program().display()))
}

/// How long ago this process was cargo, which compiled xtask before it became that: `starttime` in `/proc/self/stat` (proc(5)), from the
/// machine's start on.
fn since_start() -> Result<Duration> {
    const TICKS_A_SECOND: f64 = 100.0;
    let (stat, uptime) = (fs::read_to_string("/proc/self/stat")?, fs::read_to_string("/proc/uptime")?);
    let began = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(19)?.parse::<f64>().ok());
    let now = uptime.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    let [Some(began), Some(now)] = [began, now] else { bail!("/proc does not say when this process began") };
    Ok(Duration::from_secs_f64((now - began / TICKS_A_SECOND).max(0.0)))
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
