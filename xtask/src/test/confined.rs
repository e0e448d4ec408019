//! Rungs with the agent as it is deployed: a static binary that aborts on a panic, with the rights of its container.

use std::path::PathBuf;

use anyhow::Result;
use duct::{Expression, cmd};

use super::test_environment;
use crate::image::binary::{self, Profile};
use crate::process::{run_shown, say};
use crate::workspace::Workspace;

/// The static agent, and the program that takes all other rights from it.
#[derive(Clone, Debug)]
pub struct Confined {
    agent: PathBuf,
    launcher: PathBuf,
}

impl Confined {
    /// Builds both; the agent as it is released, or as fast as can be.
    pub fn build(workspace: &Workspace, is_released: bool) -> Result<Self> {
        let agent = binary::build(workspace, if is_released { Profile::Release } else { Profile::Confined })?;
        say("building the launcher of the confined agent");
        let build = cmd!("cargo", "build", "--locked", "-p", "lb-tests", "--bin", "ballast-confined");
        let build = build.stdout_to_stderr().dir(&workspace.root);
        run_shown("building the launcher", &test_environment(workspace, &build, &workspace.object()))?;
        Ok(Self { agent, launcher: workspace.target().join("debug/ballast-confined") })
    }

    /// `tests` with this agent.
    pub fn with(&self, tests: &Expression) -> Expression {
        tests.env("BALLAST_BIN", &self.agent).env("BALLAST_CONFINED", &self.launcher)
    }
}
