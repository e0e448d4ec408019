//! The tests of lb-common in the copy of the checkout: they judge a mutation in seconds, and need no kernel.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use duct::{Expression, cmd};

use super::SEED;
use super::checkout::Checkout;
use super::failures::Failures;
use crate::process::run_unseen;
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

/// Seconds after which the tests have not finished: a mutation may loop for ever.
const LIMIT_S: &str = "300";

/// The tests of the rules alone: they take a second, and notice most.
const QUICK: [&str; 2] = ["--test", "rules"];
/// All tests.
const ALL: [&str; 2] = ["--tests", "--no-fail-fast"];

/// Cargo's target folder of the copy, kept between mutations.
pub fn target(workspace: &Workspace) -> PathBuf {
    workspace.target().join("mutations/host")
}

/// Fails unless all tests of the copy pass without a mutation: else each mutation would count as noticed.
pub fn check_unmutated(workspace: &Workspace) -> Result<()> {
    let checkout = Checkout::restore(workspace)?;
    if let Some(test) = first_failure(&checkout.root, &target(workspace))? {
        bail!("{test} fails without any mutation: no mutation can be judged");
    }
    Ok(())
}

/// The first test of the copy that fails. An error: the tests do not build, or do not finish.
pub fn first_failure(checkout: &Path, target: &Path) -> Result<Option<String>> {
    for [kind, name] in [QUICK, ALL] {
        let command =
            cmd!("timeout", "--kill-after=5", LIMIT_S, "cargo", "test", "--offline", "-p", "lb-common", kind, name);
        let mut failures = Failures::default();
        let succeeded =
            run_unseen("lb-common", &environment(&command.dir(checkout), target), |line| failures.read_line(line))?;
        if let Some(test) = failures.first("lb-common", succeeded)? {
            return Ok(Some(test));
        }
    }
    Ok(None)
}

/// How the copy is compiled.
pub fn environment(command: &Expression, target: &Path) -> Expression {
    let command = command
        .env("CARGO_TARGET_DIR", target)
        // Who reads no backtrace needs no line numbers.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        // The next mutation changes a line of the same crates, whatever is compiled else.
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_TERM_COLOR", "never")
        .env("RUST_BACKTRACE", "0")
        .env(SEED.0, SEED.1);
    clean_cargo_env(command)
}
