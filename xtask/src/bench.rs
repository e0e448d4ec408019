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
use crate::toolchain::clean_cargo_env;
use crate::workspace::{Workspace, is_root};

/// `cargo xtask bench`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// What to measure, with its options: `connect`, `stream`, `control`, `packet`, `north-south`, `connect --help`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "connect|stream|control|packet|north-south"
    )]
    what: Vec<OsString>,
}

/// Returns only on failure: the last step replaces this process, so that a Ctrl-C reaches the one that cleans up.
pub fn run(workspace: &Workspace, args: &BenchArgs) -> Result<()> {
    if !is_root() {
        bail!("eBPF programs and network namespaces need root: run it as in `sudo -E cargo xtask bench connect`");
    }
    let agent = build_agent(workspace, args)?;
    // It measures on the topology of the tests, and so lives in their package.
    let build = cmd!("cargo", "build", "--locked", "-p", "lb-tests", "--bin", "ballast-bench")
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .stdout_to_stderr()
        .dir(&workspace.root);
    run_shown("building the measurement", &clean_cargo_env(build))?;
    let mut command = Command::new(workspace.target().join("debug/ballast-bench"));
    command.arg("--agent").arg(agent).args(&args.what);
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", command.get_program().display()))
}

/// What the agent itself takes, in time and in memory, is measured on the binary that is released.
fn build_agent(workspace: &Workspace, args: &BenchArgs) -> Result<PathBuf> {
    let is_control = args.what.first().is_some_and(|what| what == "control");
    let is_help = args.what.iter().any(|argument| argument == "--help" || argument == "-h");
    // All but this one put kube-proxy beside it, which follows an API server.
    let is_beside = args.what.first().is_some_and(|what| what != "packet");
    let toolchain = setup(workspace, if is_beside { Level::Test } else { Level::Run })?;
    compile::build(workspace, toolchain, false)?;
    if is_control && !is_help { image::build_static(workspace) } else { Ok(workspace.agent(false)) }
}
