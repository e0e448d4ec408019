//! Names of the maps, as pinned and as `bpftool` shows them.

pub use crate::map::names::*;
use crate::maps::TABLES;

/// Every map that is pinned in a set of tables.
pub const ALL: [&str; TABLES.len()] = {
    let (mut names, mut at) = ([""; TABLES.len()], 0);
    while at < names.len() {
        names[at] = TABLES[at].name;
        at += 1;
    }
    names
};
