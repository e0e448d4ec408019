//! eBPF objects and agents built from an edited copy of the checkout, by `cargo xtask edited`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::test_run::workspace;

/// What the outer cargo says about itself would steer the inner one to the wrong compiler.
const OUTER: [&str; 6] = ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// The object of the programs with these edits: a folder below `tests/mutations` and a name there.
pub fn edited(folder: &str, name: &str) -> Result<PathBuf> {
    build(&[folder, name])
}

/// An agent with these edits, and with the programs of [`edited`].
pub fn edited_agent(folder: &str, name: &str) -> Result<PathBuf> {
    build(&["--agent", folder, name])
}

fn build(arguments: &[&str]) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["xtask", "edited"]).args(arguments).current_dir(workspace());
    for variable in OUTER {
        command.env_remove(variable);
    }
    let output = command.output().context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "the edited programs do not build: {arguments:?}\n{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said.lines().last().context("no object named")?.into())
}
