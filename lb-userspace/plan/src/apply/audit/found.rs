//! What a comparison finds: a difference, and what puts it right.

use super::report::{Finding, FindingKind};
use crate::plan::{Op, ProgrammedState, Stray};

/// A difference, and what puts it right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub finding: Finding,
    pub repair: Repair,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    Write(Op),
    /// An id that somebody else used is free again, and its generation is noted.
    Free(Op),
    Stray(Stray),
}

/// The name of a service port as a user knows it.
pub(super) fn owner(programmed: &ProgrammedState, id: u32) -> Option<String> {
    programmed.services().get(id).map(|service| service.key.to_string())
}

pub(super) struct TableEntry<'a> {
    pub table: &'a str,
    pub name: String,
    pub service: Option<String>,
}

impl TableEntry<'_> {
    pub fn found(self, kind: FindingKind, difference: String, repair: Op) -> Found {
        let Self { table, name: entry, service } = self;
        debug_assert!(lb_common::maps::table(table).is_some_and(|table| table.is_audited), "{table}");
        Found {
            finding: Finding { kind, table: table.to_owned(), entry, service, difference, repaired: false },
            repair: Repair::Write(repair),
        }
    }
}
