//! The folders of the agent that a command asks, or whose tables it reads.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::{DEFAULT_BPFFS, DEFAULT_RUN_DIR};
use crate::observe::report_socket::AskError;

/// Where the agent keeps its things.
#[derive(Clone, Debug, Args)]
pub(super) struct AgentDirs {
    /// The agent's --bpffs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,

    /// The agent's --run-dir
    #[arg(long, value_name = "DIR", default_value = DEFAULT_RUN_DIR)]
    pub run_dir: PathBuf,
}

impl AgentDirs {
    /// Asks the agent that has this run folder. Where none answers, its locks show whether one runs all the same.
    pub fn ask<T>(&self, ask: impl FnOnce(&Path) -> Result<T, AskError>) -> Result<T, AskError> {
        ask(&self.run_dir).map_err(|error| match error {
            AskError::NotRunning { .. } => error.or_elsewhere(lb_datapath::running_agent(&self.bpffs).as_deref()),
            AskError::Elsewhere { .. } | AskError::Denied { .. } | AskError::NoReport { .. } => error,
        })
    }
}
