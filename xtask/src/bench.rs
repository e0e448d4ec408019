//! `cargo xtask bench`: builds all, then becomes the measurement.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::cmd;

use crate::compile;
use crate::image;
use crate::process::run_shown;
use crate::setup::{Level, setup};
use crate::toolchain::{Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, is_root};

/// `cargo xtask bench`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// What to measure, with its options: `all`, `connect`, `stream`, `packet`, `scale`, `memory`, `control`, `flood`, `start`,
    /// `north-south`, `connect --help`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "all|connect|stream|packet|scale|memory|control|flood|start|north-south"
    )]
    what: Vec<OsString>,
}

/// Returns only on failure: the last step replaces this process, so that a Ctrl-C reaches the one that cleans up.
pub fn run(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    if !is_root() {
        bail!("eBPF programs and network namespaces need root: run it as in `sudo -E cargo xtask bench connect`");
    }
    let (toolchain, agent) = build_agent(workspace, args)?;
    let source = workspace.root.join("tests/yardstick");
    let target = workspace.target().join("yardstick");
    run_shown("building the yardstick", &toolchain.build(workspace, &source, &target))?;
    let build = cmd!("cargo", "build", "--locked", "-p", "lb-bench")
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .stdout_to_stderr()
        .dir(&workspace.root);
    run_shown("building the measurement", &clean_cargo_env(build))?;
    let mut command = Command::new(workspace.target().join("debug/ballast-bench"));
    // What is tested, and not only measured, asks for it there.
    command.env("BALLAST_YARDSTICK", target.join("bpfel-unknown-none/release/yardstick"));
    command.env("BALLAST_BIN", &agent).arg("--agent").arg(agent).args(&args.what);
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", command.get_program().display()))
}

/// Benches in which the agent itself is measured, or reads 100,000 services: they have the binary that is released. For all others the
/// programs count, which are always built with optimisation.
const RELEASED: [&str; 4] = ["all", "control", "scale", "start"];
/// Benches that put kube-proxy beside it, which follows an API server.
const BESIDE: [&str; 4] = ["all", "connect", "control", "stream"];

fn build_agent(workspace: &Workspace, args: &BenchArgs) -> Result<(Toolchain, PathBuf)> {
    let is_one_of = |names: &[&str]| args.what.first().is_some_and(|what| names.iter().any(|name| what == name));
    let is_help = args.what.iter().any(|argument| argument == "--help" || argument == "-h");
    let toolchain = setup(workspace, if is_one_of(&BESIDE) { Level::Test } else { Level::Run })?;
    compile::build(workspace, toolchain, false)?;
    let agent = if is_one_of(&RELEASED) && !is_help { image::build_static(workspace)? } else { workspace.agent(false) };
    Ok((toolchain, agent))
}
