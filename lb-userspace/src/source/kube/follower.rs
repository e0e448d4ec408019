//! What to ask the API next, given what it answered about one resource. Pure: the answer and the time are values.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use kube::{
    Resource, ResourceExt as _,
    api::{ObjectList, WatchEvent},
};
use tokio::time::Instant;

/// How long a watch lasts until the server ends it. It sends a bookmark about once a minute.
pub const WATCH_SECONDS: u32 = 290;
/// Length of a watch that shall show soon whether nothing was missed: the last thing that a server sends on a watch, two seconds
/// before its end, is a bookmark.
pub const PROBE_SECONDS: u32 = 5;
/// The first pause after a failure, and the longest; jitter adds up to as much again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// "Gone": the server no longer knows the changes since the version that was asked for.
const HTTP_GONE: u16 = 410;

/// What came of a question.
#[derive(Debug)]
pub enum Answer<K: Clone> {
    /// A complete list.
    Listed(ObjectList<K>),
    Event(WatchEvent<K>),
    /// The server ended the watch in order.
    Ended,
    /// The watch said nothing for so long that a bookmark is overdue.
    Silent,
    Failed(Failure),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status, if the server sent one.
    pub status: Option<u16>,
    pub reason: String,
}

/// The next question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    List,
    /// A new watch of the changes after a version.
    Watch {
        version: String,
        seconds: u32,
    },
    /// The next event of the open watch.
    Next,
}

/// What an answer tells about the resource. All but [`News::Trouble`] prove what is held.
#[derive(Debug)]
pub enum News<K> {
    /// All objects.
    All(Vec<K>),
    Changed(K),
    Deleted(K),
    /// Nothing was missed.
    Bookmark,
    Trouble(String),
}

/// What to do after an answer: tell, wait, ask.
#[derive(Debug)]
pub struct Step<K> {
    pub news: Option<News<K>>,
    pub pause: Duration,
    pub question: Question,
}

/// Where one resource stands.
#[derive(Debug)]
pub struct Follower {
    /// Everything up to this version is known; without one, a list is due.
    version: Option<String>,
    watch: Watch,
    retries: ExponentialBuilder,
    backoff: ExponentialBackoff,
}

/// The watch that is open or was asked for last.
#[derive(Clone, Copy, Debug)]
struct Watch {
    is_probe: bool,
    /// When the server ends it.
    end: Instant,
    /// It brought an event or a bookmark.
    proven: bool,
}

impl Follower {
    /// Begins with [`Question::List`]. `seed`: of the jitter, another one on each node.
    pub fn new(seed: u64, now: Instant) -> Self {
        let retries = ExponentialBuilder::new()
            .with_min_delay(PAUSE_MIN)
            .with_max_delay(PAUSE_MAX)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(seed);
        let watch = Watch { is_probe: false, end: now, proven: false };
        Self { version: None, watch, retries, backoff: retries.build() }
    }

    pub fn step<K: Resource + Clone>(&mut self, answer: Answer<K>, now: Instant) -> Step<K> {
        match answer {
            Answer::Listed(list) => self.listed(list, now),
            Answer::Event(event) => self.event(event, now),
            Answer::Ended => self.ended(now),
            Answer::Silent if self.watch.is_probe => self.list_again(),
            Answer::Silent => self.watch_again(None, Duration::ZERO, true, now),
            Answer::Failed(failure) => self.failed(failure, now),
        }
    }

    fn listed<K>(&mut self, list: ObjectList<K>, now: Instant) -> Step<K>
    where
        K: Clone,
    {
        self.version = list.metadata.resource_version.filter(|version| !version.is_empty());
        if self.version.is_none() {
            let news = Some(News::Trouble("the API's list has no resourceVersion".into()));
            return Step { news, pause: self.pause(), question: Question::List };
        }
        // Only a watch that brings something ends the growth of pauses: lists in a loop must not come fast.
        self.watch_again(Some(News::All(list.items)), Duration::ZERO, false, now)
    }

    fn event<K: Resource + Clone>(&mut self, event: WatchEvent<K>, now: Instant) -> Step<K> {
        let (version, news) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (object.resource_version(), News::Changed(object))
            }
            WatchEvent::Deleted(object) => (object.resource_version(), News::Deleted(object)),
            WatchEvent::Bookmark(bookmark) => (Some(bookmark.metadata.resource_version), News::Bookmark),
            WatchEvent::Error(status) => {
                return self.failed(Failure { status: Some(status.code), reason: status.to_string() }, now);
            }
        };
        // A server that leaves it out makes us see this change once more after the next break.
        self.version = version.filter(|version| !version.is_empty()).or(self.version.take());
        self.watch.proven = true;
        self.backoff = self.retries.build();
        Step { news: Some(news), pause: Duration::ZERO, question: Question::Next }
    }

    fn ended<K>(&mut self, now: Instant) -> Step<K> {
        if !self.watch.proven {
            return self.list_again();
        }
        // Before its time it was cut off, and those of all other nodes with it.
        let pause = if now >= self.watch.end { Duration::ZERO } else { self.pause() };
        self.watch_again(None, pause, false, now)
    }

    fn failed<K>(&mut self, failure: Failure, now: Instant) -> Step<K> {
        if failure.status == Some(HTTP_GONE) {
            return self.list_again();
        }
        let pause = self.pause();
        self.watch_again(Some(News::Trouble(failure.reason)), pause, true, now)
    }

    fn list_again<K>(&mut self) -> Step<K> {
        self.version = None;
        Step { news: None, pause: self.pause(), question: Question::List }
    }

    /// Goes on from the last version; without one, by a list.
    fn watch_again<K>(&mut self, news: Option<News<K>>, pause: Duration, is_probe: bool, now: Instant) -> Step<K> {
        let seconds = if is_probe { PROBE_SECONDS } else { WATCH_SECONDS };
        self.watch = Watch { is_probe, end: now + pause + Duration::from_secs(seconds.into()), proven: false };
        let question = match &self.version {
            Some(version) => Question::Watch { version: version.clone(), seconds },
            None => Question::List,
        };
        Step { news, pause, question }
    }

    fn pause(&mut self) -> Duration {
        self.backoff.next().unwrap_or(PAUSE_MAX)
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
