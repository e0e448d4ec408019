//! Ballast's agent and command line, over the crates below it: the plan, the tables, and the programs that read them.

pub mod agent;
pub mod cli;
pub mod config;
pub mod explain;
pub mod fleet;
pub mod observe;
pub mod sysdump;
