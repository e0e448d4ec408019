//! From the snapshot to the tables: which entries are wanted, how they are written and audited, and which of the programs' entries are over.

pub mod apply;
pub mod plan;
pub mod sweep;
