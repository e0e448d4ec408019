//! The state of a watch.

use tokio::time::Instant;

use crate::kube::{bounds, version::Version};

/// The one watch that is followed.
#[derive(Debug)]
pub struct Watch {
    pub line: Line,
    /// Where it is by its own words.
    pub at: Option<Version>,
    /// When the server ends it.
    pub(super) ends: Instant,
    pub(super) opened: Instant,
    /// The last event or bookmark, or its opening.
    pub received: Instant,
    /// It brought an event or a bookmark.
    pub(super) proven: bool,
    /// It was opened as a probe, and is as short.
    pub is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Closed,
    /// It is asked for then.
    Waiting(Instant),
    Asked(Instant),
    Open,
}

impl Watch {
    pub fn closed(now: Instant) -> Self {
        Self { line: Line::Closed, at: None, ends: now, opened: now, received: now, proven: false, is_short: false }
    }

    pub fn waiting(until: Instant) -> Self {
        Self { line: Line::Waiting(until), ..Self::closed(until) }
    }

    pub fn due(&self) -> Instant {
        match self.line {
            // Only while a list is due.
            Line::Closed => self.ends,
            Line::Waiting(until) => until,
            Line::Asked(at) => at + bounds::ANSWER_LIMIT,
            Line::Open => self.ends + bounds::END_LIMIT,
        }
    }
}
