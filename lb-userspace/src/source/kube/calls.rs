//! What is asked of the API, what is heard of it, and what that tells about one resource.

use kube::api::WatchEvent;

use super::version::Version;
use crate::{
    model::ObjectName,
    source::{Difference, Reach, ResourceStatus},
};

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
pub enum Heard<K> {
    /// The API answered, and will tell more.
    Opened,
    /// Some bytes of a page.
    Progress,
    Page(Page<K>),
    Event(WatchEvent<K>),
    /// The server ended the watch in order.
    Ended,
    Failed(Failure),
}

/// A part of a complete list.
#[derive(Debug)]
pub struct Page<K> {
    pub objects: Vec<K>,
    pub version: Option<String>,
    /// Asks for the next part; `None`: this was the last.
    pub token: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status, if the server sent one.
    pub status: Option<u16>,
    pub reason: String,
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
    /// Asks in place of the probe for one object, as the store holds it now: the answer tells the store's version.
    Look,
    /// The store went back in time: the other resources are of it, too.
    WentBack,
    /// Leaves the call alone.
    Close(Call),
    /// The probe becomes the watch.
    Promote,
    Tell(News<K>),
}

/// What is new of one resource.
#[derive(Debug)]
pub enum News<K> {
    /// A part of a list that may turn out to be no good.
    Page(Vec<K>),
    /// What the pages had is everything there is.
    Complete,
    /// The pages are of no use.
    Abandoned,
    Changed(Box<K>),
    Deleted(ObjectName),
    /// A comparison found this; the repair follows.
    Difference(Difference, ObjectName),
}

/// News with where their resource stands now.
#[derive(Debug)]
pub struct Told<K> {
    pub news: Vec<News<K>>,
    pub status: ResourceStatus,
    /// What was last seen of the API: an answer or the lack of one.
    pub reach: Option<Reach>,
}
