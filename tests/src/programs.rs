//! eBPF objects built from an edited copy of the programs, by `cargo xtask edited`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::test_run::workspace;

/// What the outer cargo says about itself would steer the inner one to the wrong compiler.
const OUTER: [&str; 6] = ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// The object of the programs with these edits: a folder below `tests/mutations` and a name there.
pub fn edited(folder: &str, name: &str) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["xtask", "edited", folder, name]).current_dir(workspace());
    for variable in OUTER {
        command.env_remove(variable);
    }
    let output = command.output().context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "the edited programs do not build: {name:?}\n{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said.lines().last().context("no object named")?.into())
}
