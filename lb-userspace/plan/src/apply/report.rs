//! What one run of the programmer did, and what is left to do.

use std::time::Duration;

use lb_common::abi::backend_state;

use super::pending::Pending;
use crate::plan::{DrainEnds, ProgrammedState};
use lb_model::{Monotonic, Refused};

/// Result of a sync or a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Revision of the snapshot that the tables are to hold; 0: none yet.
    pub revision: u64,
    /// How many operations were carried out.
    pub writes: usize,
    /// How many operations failed in this run.
    pub failed_writes: usize,
    /// Whether the tables can be written at all, whatever becomes of one subject; `None`: this run does not show it.
    pub writable: Option<Result<(), String>>,
    /// Frontends that are taken, then changes that a table has no room for. The others are served.
    pub refusals: Refused,
    /// What failed, in this run or before, and is tried again by itself; at most [`Report::LISTED`].
    pub failures: Vec<String>,
    /// How many subjects failed, and are tried again.
    pub failing: usize,
    /// Since when the writes of one subject have failed without a success; of several subjects the one that has failed longest counts.
    pub failing_since: Option<Monotonic>,
    /// How many service ports and addresses wait for the next run, which is due at once.
    pub waiting: usize,
    /// Service ports in the tables.
    pub services: usize,
    pub backends: BackendCounts,
    /// Age of the drain that goes on longest; `None`: nothing drains.
    pub oldest_drain: Option<Duration>,
    /// How drains ended, since this agent runs.
    pub drain_ends: DrainEnds,
}

/// How many backends there are, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounts {
    pub active: usize,
    pub unready: usize,
    pub terminating: usize,
    pub draining: usize,
    pub maintenance: usize,
    pub gone: usize,
}

impl Report {
    /// So many failures are listed by name.
    pub const LISTED: usize = 1_000;

    /// What is not in the tables. `planned`: refused by the plan.
    pub(super) fn list(&mut self, pending: &Pending, planned: &Refused) {
        self.refusals = planned.and(pending.refusals());
        self.failures = pending.failures().take(Self::LISTED).cloned().collect();
        self.failing = pending.failed();
        self.failing_since = pending.failing_since();
    }

    pub(super) fn describe(&mut self, programmed: &ProgrammedState, now: Monotonic) {
        self.services = programmed.services().served();
        self.backends = BackendCounts {
            active: programmed.backends().count_in(backend_state::ACTIVE),
            unready: programmed.backends().count_in(backend_state::UNREADY),
            terminating: programmed.backends().count_in(backend_state::TERMINATING),
            draining: programmed.backends().count_in(backend_state::DRAINING),
            maintenance: programmed.backends().count_in(backend_state::MAINTENANCE),
            gone: programmed.backends().count_in(backend_state::GONE),
        };
        self.oldest_drain = programmed.drains().oldest().map(|began| now.since(began));
        self.drain_ends = programmed.drains().ends();
    }
}
