//! What is looked at, and what was found.

use std::{fs::File, path::PathBuf};

use serde::Serialize;

use crate::{
    DatapathError,
    settings::{Interfaces, SocketLb, TcAttach, XdpMode},
};
use lb_model::Mode;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// It works, but not all of it, or not for everybody.
    Warn,
    /// An agent does not start, or serves wrongly.
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What was looked at: a word that scripts may rely on.
    pub check: &'static str,
    pub level: Level,
    pub found: String,
    /// What to do about it; none if it is as it should be.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn bad(check: &'static str, level: Level, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// An error names its remedy behind a semicolon.
    pub(super) fn of(check: &'static str, level: Level, error: &DatapathError) -> Self {
        let text = error.to_string();
        let (found, remedy) = text.split_once("; ").unwrap_or((&text, "see the error"));
        Self::bad(check, level, found, remedy)
    }
}

/// What an agent would be asked to do.
#[derive(Debug)]
pub struct Wishes {
    pub bpffs: PathBuf,
    /// `None`: it is looked for.
    pub cgroup_root: Option<PathBuf>,
    pub socket_lb: SocketLb,
    pub tc_attach: TcAttach,
    pub xdp_mode: XdpMode,
    pub mode: Mode,
    pub pod_interfaces: Interfaces,
    pub external_interfaces: Interfaces,
    /// Network namespaces in which the other ends of pairs may be.
    pub namespaces: Vec<File>,
}
