//! What one run of the programmer did, and what is left to do.

use std::time::Duration;

use lb_common::abi::backend_state;

use crate::{
    model::{Monotonic, Refusal},
    plan::{Book, DrainEnds},
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
    /// How drains ended, since this agent runs.
    pub drain_ends: DrainEnds,
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
    pub(super) fn describe(&mut self, book: &Book, now: Monotonic) {
        self.services = book.served();
        self.backends = BackendCounts {
            active: book.count_in(backend_state::ACTIVE),
            resting: book.count_in(backend_state::RESTING),
            terminating: book.count_in(backend_state::TERMINATING),
            draining: book.count_in(backend_state::DRAINING),
            maintenance: book.count_in(backend_state::MAINTENANCE),
            gone: book.count_in(backend_state::GONE),
        };
        self.oldest_drain = book.drains.oldest().map(|began| now.since(began));
        self.drain_ends = book.drains.ends;
    }
}
