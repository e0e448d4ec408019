//! The state of a probe.

use tokio::time::Instant;

use crate::kube::{bounds, version::Version};

/// A second watch from where the first one is.
#[derive(Debug)]
pub struct Probe {
    pub asked: Instant,
    pub opened: Option<Instant>,
    pub(super) from: Version,
    /// The first change that the watch did not bring, and when it came.
    pub missed: Option<(Instant, Version)>,
    /// Only the verdict is due.
    pub over: bool,
    pub(super) check: VersionCheck,
}

/// What a probe that ended without a word still needs. A server sends no bookmark where nothing happened since the requested version, nor for a quiet
/// resource while others change. It does not know how far the store is until a client asks for the store's latest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionCheck {
    NotYet,
    /// The store's version was asked for.
    Asked,
    /// The server knows the store's version: this probe must bring a bookmark.
    Done,
}

impl Probe {
    /// It is no watch at the moment.
    pub fn is_looking(&self) -> bool {
        self.check == VersionCheck::Asked
    }

    pub(super) fn due(&self) -> Instant {
        match (&self.missed, self.opened) {
            (Some((since, _)), _) => *since + bounds::LATE_LIMIT,
            (None, Some(opened)) => opened + bounds::PROBE_LIMIT,
            (None, None) => self.asked + bounds::ANSWER_LIMIT,
        }
    }
}
