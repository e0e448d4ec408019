//! Builds the programs of `tests/yardstick`, which Ballast's are compared with.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use lb_tests::programs::compile;
use lb_tests::test_run::workspace;

/// The built object. Cargo knows whether there is anything to do.
pub fn build() -> Result<PathBuf> {
    let target = workspace().join("target/yardstick");
    compile(&workspace().join("tests/yardstick"), &target).context("tests/yardstick")?;
    Ok(target.join("bpfel-unknown-none/release/yardstick"))
}
