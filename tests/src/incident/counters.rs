//! The programs' counters, read from the pinned maps: they work without an agent.

use std::path::Path;

use anyhow::Result;
use lb_common::outcome::Outcome;
use lb_tables::Pinned;
use lb_userspace::observe::contents;

/// Counters by outcome at one moment.
#[derive(Clone, Debug)]
pub struct Counters(Vec<(Outcome, u64)>);

impl Counters {
    /// Reads those pinned below a bpffs.
    pub fn read(bpffs: &Path) -> Result<Self> {
        let pinned = Pinned::open(&bpffs.join("ballast/tables"))?;
        Ok(Self(contents::outcomes(&pinned)?))
    }

    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0.iter().filter(|(of, _)| *of == outcome).map(|(_, count)| count).sum()
    }

    /// How much one grew since.
    pub fn since(&self, before: &Self, outcome: Outcome) -> u64 {
        self.get(outcome) - before.get(outcome)
    }

    /// All that grew since, as `selected 3, forwarded 12`.
    pub fn line_since(&self, before: &Self) -> String {
        let grown = Outcome::ALL.into_iter().map(|outcome| (outcome, self.since(before, outcome)));
        let grown = grown.filter(|(_, count)| *count > 0).map(|(outcome, count)| format!("{} {count}", outcome.name()));
        grown.collect::<Vec<_>>().join(", ")
    }
}
