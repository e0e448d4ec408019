//! From the snapshot to the tables: which entries are wanted, how they are written and audited, and which of the programs' entries are over.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod apply;
pub mod plan;
pub mod sweep;
