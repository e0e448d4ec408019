//! The calls to the API, what they bring, and the updates of one resource that follow from it.

use super::{failure::Failure, item::Item, version::Version};
use crate::{Difference, Reach, ResourceStatus};
use lb_model::ObjectName;

/// The three calls that may be open at once. Each has a TCP connection of its own, which nothing else ever uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Watch,
    /// A short watch that shows whether the other one missed something.
    Probe,
    List,
}

/// What came of a call.
#[derive(Debug)]
pub enum Received<K> {
    /// The API answered; more will follow.
    Opened,
    /// Some bytes of a page.
    Progress,
    Page(Page<K>),
    /// An object was made or changed.
    Put(Item<K>),
    /// An object is gone.
    Deleted(ObjectName, Option<Version>),
    /// Nothing else happened up to this version.
    Bookmark(Option<Version>),
    /// An event that names no object, and why: a list must bring what it was about.
    Unreadable(String),
    /// The server ended the watch in order.
    Ended,
    Failed(Failure),
}

/// A part of a complete list.
#[derive(Debug)]
pub struct Page<K> {
    pub items: Vec<Item<K>>,
    pub version: Option<Version>,
    /// Asks for the next part; `None`: this was the last.
    pub token: Option<String>,
    /// Length of its text.
    pub bytes: usize,
}

/// What to do next.
#[derive(Debug)]
pub enum Effect<K> {
    /// Opens a watch of the changes after a version, in place of the one that is open there.
    Watch {
        call: Call,
        version: Version,
        seconds: u32,
    },
    /// Asks for a page of the list of what the store holds now.
    List {
        token: Option<String>,
    },
    /// Asks in place of the probe for one object, as the store holds it now: the answer has the store's version.
    CheckVersion,
    /// The store went back in time: the other resources are of it, too.
    WentBack,
    /// Leaves the call alone.
    Close(Call),
    /// The probe becomes the watch.
    Promote,
    Emit(Update<K>),
}

/// What is new of one resource.
#[derive(Debug)]
pub enum Update<K> {
    /// A part of a list that may turn out to be no good.
    Page(Vec<Item<K>>),
    /// What the pages had is everything there is.
    Complete,
    /// The pages are of no use.
    Abandoned,
    Changed(Box<Item<K>>),
    Deleted(ObjectName),
    /// A comparison found this; the repair follows.
    Difference(Difference, ObjectName),
}

/// Updates, with the state of their resource after them.
#[derive(Debug)]
pub struct WatcherOutput<K> {
    pub updates: Vec<Update<K>>,
    pub status: ResourceStatus,
    /// What was last seen of the API: an answer or the lack of one.
    pub reach: Option<Reach>,
}
