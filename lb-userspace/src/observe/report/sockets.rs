//! Sockets of host processes whose backend is gone, as the report has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was done about them since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SocketsReport {
    /// Sockets that were destroyed, by protocol; empty with `--socket-lb off`.
    pub destroyed: BTreeMap<String, u64>,
    /// Attempts that failed.
    pub failures: u64,
    /// Why such sockets are not ended; null: they are.
    pub problem: Option<String>,
}
