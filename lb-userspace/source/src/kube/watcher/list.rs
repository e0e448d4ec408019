//! The state of a list.

use std::collections::BTreeSet;

use lb_model::ObjectName;
use tokio::time::Instant;

use crate::Relist;
use crate::kube::{
    bounds,
    version::{Known, Version},
};

/// A complete list in the making.
#[derive(Debug)]
pub struct Listing {
    pub(super) reason: Relist,
    pub(super) asked: PageRequest,
    /// Of the page that is due.
    pub(super) token: Option<String>,
    /// How often that page was answered with an error.
    pub(super) refusals: u32,
    pub(super) seen: Known,
    /// A list that would delete nearly everything, and waits for a second one.
    pub(super) unconfirmed: Option<Unconfirmed>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PageRequest {
    /// The question waits until then.
    Waits(Instant),
    /// When something came of it, or it was put.
    Sent(Instant),
}

#[derive(Debug)]
pub(super) struct Unconfirmed {
    /// What is held and was not in it.
    pub(super) absent: BTreeSet<ObjectName>,
    pub(super) version: Version,
}

impl Listing {
    pub fn new(reason: Relist, at: Instant) -> Self {
        Self { reason, asked: PageRequest::Waits(at), token: None, refusals: 0, seen: Known::new(), unconfirmed: None }
    }

    pub fn due(&self) -> Instant {
        match self.asked {
            PageRequest::Waits(until) => until,
            PageRequest::Sent(last) => last + bounds::LIST_SILENCE_LIMIT,
        }
    }

    /// From the first page again.
    pub(super) fn start_over(&mut self, reason: Relist, at: Instant) {
        (self.reason, self.asked, self.token, self.refusals) = (reason, PageRequest::Waits(at), None, 0);
        self.seen.clear();
    }
}
