//! `cargo xtask soak`: builds all, then becomes the soak.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::cmd;

use crate::compile;
use crate::process::run_shown;
use crate::setup::{Level, setup};
use crate::toolchain::clean_cargo_env;
use crate::workspace::{Workspace, is_root};

/// `cargo xtask soak`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct SoakArgs {
    /// `--changes N` (a million), `--seed N`, `--json FILE`, `--picture FILE`, `--help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Returns only on failure: the last step replaces this process.
pub fn run(workspace: &Workspace, args: &SoakArgs) -> Result<()> {
    if !is_root() {
        bail!("eBPF programs and network namespaces need root: run it as in `sudo -E cargo xtask soak`");
    }
    let toolchain = setup(workspace, Level::Run)?;
    compile::build(workspace, toolchain, false)?;
    // It churns on the topology of the tests, and so lives in their package.
    let build = cmd!("cargo", "build", "--locked", "-p", "lb-tests", "--bin", "ballast-soak")
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .stdout_to_stderr()
        .dir(&workspace.root);
    run_shown("building the soak", &clean_cargo_env(build))?;
    let mut command = Command::new(workspace.target().join("debug/ballast-soak"));
    command.args(&args.options).env("BALLAST_BIN", workspace.agent(false)).current_dir(&workspace.root);
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", command.get_program().display()))
}
