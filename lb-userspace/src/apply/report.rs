//! What one run of the programmer did, and what is left to do.

use std::time::Duration;

use lb_common::abi::backend_state;

use crate::{
    model::{Monotonic, Refusal},
    plan::{Book, PlanSettings},
};

/// Result of a sync or a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Revision of the snapshot that the tables are to hold; 0: none yet.
    pub revision: u64,
    /// How many operations were carried out.
    pub writes: usize,
    /// Frontends that are taken, and changes that a table has no room for. The others are served.
    pub refusals: Vec<Refusal>,
    /// What failed, and is tried again by itself.
    pub failures: Vec<String>,
    /// Service ports in the tables.
    pub services: usize,
    pub backends: BackendCounts,
    /// Age of the drain that goes on longest; `None`: nothing drains.
    pub oldest_drain: Option<Duration>,
}

/// How many backends there are, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounts {
    pub active: usize,
    pub resting: usize,
    pub terminating: usize,
    pub draining: usize,
    pub maintenance: usize,
    pub gone: usize,
}

impl Report {
    pub(super) fn describe(&mut self, book: &Book, settings: &PlanSettings, now: Monotonic) {
        self.services = book.services.values().filter(|service| !service.frontends.is_empty()).count();
        self.backends = BackendCounts::default();
        let counts = &mut self.backends;
        let mut first_deadline: Option<u32> = None;
        for record in book.backends.values() {
            match record.state {
                backend_state::ACTIVE => counts.active += 1,
                backend_state::RESTING => counts.resting += 1,
                backend_state::TERMINATING => counts.terminating += 1,
                backend_state::DRAINING => {
                    counts.draining += 1;
                    first_deadline =
                        Some(first_deadline.map_or(record.deadline_ds, |first| first.min(record.deadline_ds)));
                }
                backend_state::MAINTENANCE => counts.maintenance += 1,
                _ => counts.gone += 1,
            }
        }
        self.oldest_drain = first_deadline.map(|deadline| {
            let left = Monotonic::from_tenths(deadline).since(now);
            let late = now.since(Monotonic::from_tenths(deadline));
            settings.drain_period.saturating_sub(left) + late
        });
    }
}
