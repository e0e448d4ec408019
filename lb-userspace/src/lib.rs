//! Ballast's agent and command line, over the crates below it: the plan, the tables, and the programs that read them.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod agent;
pub mod cli;
pub mod config;
pub mod explain;
pub mod fleet;
pub mod observe;
pub mod sysdump;
