//! Which call to make next for one resource, given what the calls before it have brought. Pure: that and the time are values.
//!
//! Either a complete list is due (`listing`), or a watch is followed (`watching`), probed when it is silent (`probing`), and
//! compared with a fresh list now and then (`comparing`). Nothing is ever deleted but by a delete event or a complete list that is believed.

mod comparing;
mod comparison;
mod forced;
mod list;
mod listing;
mod probe;
mod probing;
mod watch;
mod watching;

use std::{fmt::Debug, time::Duration};

use tokio::time::Instant;

use self::{
    comparison::Comparison,
    forced::ForcedLists,
    list::Listing,
    probe::Probe,
    watch::{Line, Watch},
};
use super::{
    bounds::{self, Pauses},
    calls::{Call, Effect, Received, Update, WatcherOutput},
    failure::Failure,
    item::Item,
    version::{Known, Version},
};
use crate::{ApiError, Failing, Proof, ProofKind, Reach, Relist, ResourceStatus};
use lb_model::ObjectName;

/// "Not found": the server does not know the kind, or no longer.
const HTTP_NOT_FOUND: u16 = 404;
/// "Gone": the server no longer knows the changes since the version that was asked for.
const HTTP_GONE: u16 = 410;

/// How a resource is to be followed; see [`super::KubeSettings`].
#[derive(Clone, Copy, Debug)]
pub struct WatchSettings {
    /// Silences are that many times as long: nothing that is forwarded waits for this resource. Otherwise 1. Failures are repeated as
    /// soon as those of others: readiness waits for each resource.
    pub patience: u32,
    pub silence: Duration,
    pub compare_interval: Option<Duration>,
    /// How many objects were known before the first list; 0: none.
    pub expected_objects: usize,
    /// An API server may not know the kind: then it has no object of it, and that is no error.
    pub may_be_unknown: bool,
}

/// Where one resource stands.
#[derive(Debug)]
pub struct Watcher<K> {
    settings: WatchSettings,
    pauses: Pauses,
    status: ResourceStatus,
    reach: Option<Reach>,
    known: Known,
    /// Everything up to this version is known.
    version: Option<Version>,
    /// A complete list is due, and no watch is open.
    listing: Option<Listing>,
    watch: Watch,
    probe: Option<Probe>,
    probe_at: Instant,
    forced_lists: ForcedLists,
    /// From where the last watch was opened that was lost at once.
    lost_at: Option<Version>,
    /// Replacements of dead watches that brought nothing so far.
    replacements: u32,
    compare_at: Option<Instant>,
    comparison: Option<Comparison<K>>,
}

impl<K> Watcher<K> {
    /// `seed`: of all random choices, another one on each node and for each resource.
    pub fn new(mut settings: WatchSettings, seed: u64, now: Instant) -> Self {
        settings.silence *= settings.patience;
        Self {
            settings,
            pauses: Pauses::new(seed),
            status: ResourceStatus::default(),
            reach: None,
            known: Known::new(),
            version: None,
            listing: Some(Listing::new(Relist::First, now)),
            watch: Watch::closed(now),
            probe: None,
            probe_at: now,
            forced_lists: ForcedLists::default(),
            lost_at: None,
            replacements: 0,
            compare_at: None,
            comparison: None,
        }
    }

    #[cfg(test)]
    pub fn status(&self) -> &ResourceStatus {
        &self.status
    }

    /// These updates, with the state of the resource.
    pub fn updates(&self, updates: Vec<Update<K>>) -> WatcherOutput<K> {
        let version = if let Some(Version::Number(version)) = self.version { version } else { 0 };
        let status = ResourceStatus { version, ..self.status.clone() };
        WatcherOutput { updates, status, reach: self.reach }
    }

    /// When [`Self::tick`] is due.
    pub fn due(&self) -> Instant {
        if let Some(listing) = &self.listing {
            return listing.due();
        }
        let others = [self.probe_due(), self.comparison_due()];
        others.into_iter().flatten().fold(self.watch.due(), Instant::min)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.listing.is_some() {
            return self.list_tick(now);
        }
        let mut effects = self.watch_tick(now);
        if self.listing.is_none() {
            effects.extend(self.probe_tick(now));
        }
        if self.listing.is_none() {
            effects.extend(self.comparison_tick(now));
        }
        effects
    }

    /// A call that is open brought something.
    pub fn receive(&mut self, call: Call, received: Received<K>, now: Instant) -> Vec<Effect<K>> {
        self.note_reach(call, &received, now);
        if let Received::Failed(failure) = &received {
            self.note_error(failure, now);
        }
        match (&self.listing, call) {
            (Some(_), Call::List) => self.list_received(received, now),
            // It was left alone.
            (Some(_), _) => Vec::new(),
            (None, Call::Watch) => self.watch_received(received, now),
            (None, Call::Probe) => self.probe_received(received, now),
            (None, Call::List) => self.comparison_received(received, now),
        }
    }

    /// An answer is an answer, also a refusal; none, or one of a server that cannot, is none. A watch that is cut off says
    /// nothing about the next question.
    fn note_reach(&mut self, call: Call, received: &Received<K>, now: Instant) {
        let reachable = match received {
            Received::Failed(failure) => match failure.status {
                Some(status) => status < 500,
                None if call == Call::Watch && self.watch.line == Line::Open => return,
                None => false,
            },
            Received::Ended => return,
            Received::Opened
            | Received::Progress
            | Received::Page(_)
            | Received::Put(_)
            | Received::Deleted(..)
            | Received::Bookmark(_)
            | Received::Unreadable(_) => true,
        };
        self.reached(reachable, now);
    }

    /// Counts an answer that is an error. That a version is too old, or too new, is none: a list follows.
    fn note_error(&mut self, failure: &Failure, now: Instant) {
        let status = failure.status.filter(|_| unusable_version(failure, &self.settings).is_none());
        let Some(error) = status.and_then(ApiError::of) else { return };
        *self.status.errors.entry(error).or_default() += 1;
        if self.status.failing.is_none_or(|failing| failing.error != error) {
            self.status.failing = Some(Failing { error, since: now });
        }
    }

    fn reached(&mut self, reachable: bool, now: Instant) {
        self.reach = Some(Reach { reachable, since: now });
        if !reachable {
            // What is wrong now is not this node's watch alone.
            self.status.wedged_since = None;
        }
    }

    /// Everything up to now is known.
    fn prove(&mut self, kind: ProofKind, now: Instant) {
        self.status.proof = Some(Proof { at: now, kind });
        (self.status.last_error, self.status.failing) = (None, None);
        if kind == ProofKind::List {
            self.pauses.answered();
        } else {
            self.pauses.reset();
        }
        self.probe_at = now + self.pauses.around(self.settings.silence, 4);
    }

    fn trouble(&mut self, reason: String) {
        self.status.last_error = Some(reason);
    }

    /// Leaves everything, and lists anew.
    fn relist(&mut self, reason: Relist, now: Instant) -> Vec<Effect<K>> {
        let pause = self.pauses.before_list();
        self.listing = Some(Listing::new(reason, now + pause));
        self.watch = Watch::closed(now);
        self.probe = None;
        self.comparison = None;
        let mut effects: Vec<Effect<K>> = [Call::Watch, Call::Probe, Call::List].map(Effect::Close).into();
        if reason == Relist::RolledBack {
            effects.push(Effect::WentBack);
        }
        effects
    }

    /// Another resource showed that the store went back. What we hold may be of a version that the store has overtaken since, so
    /// our own watch would never show it.
    pub fn went_back_elsewhere(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.listing.is_some() {
            return Vec::new();
        }
        let mut effects = self.relist(Relist::RolledBack, now);
        effects.retain(|effect| !matches!(effect, Effect::WentBack));
        effects
    }

    /// A change that is not known yet, from whatever call.
    fn changed(&mut self, change: WatchEvent<K>, version: Option<Version>) -> Update<K> {
        self.version = version.clone().or(self.version.take());
        let name = change.name().clone();
        if let Some(comparison) = &mut self.comparison {
            comparison.touched(&name);
        }
        let updates = match change {
            WatchEvent::Put(item) => {
                self.known.insert(name, version.unwrap_or_else(Version::unknown));
                Update::Changed(item)
            }
            WatchEvent::Delete(name) => {
                self.known.remove(&name);
                Update::Deleted(name)
            }
        };
        self.status.objects = self.known.len();
        updates
    }
}

/// What a watch brings of one object.
#[derive(Debug)]
enum WatchEvent<K> {
    Put(Box<Item<K>>),
    Delete(ObjectName),
}

impl<K> WatchEvent<K> {
    fn name(&self) -> &ObjectName {
        match self {
            Self::Put(item) => &item.name,
            Self::Delete(name) => name,
        }
    }
}

/// Whether the server says that a version is none that it can go on from, and why.
fn unusable_version(failure: &Failure, settings: &WatchSettings) -> Option<Relist> {
    match failure.status {
        Some(HTTP_GONE) => Some(Relist::Gone),
        // A list says so for good, and it is no error.
        Some(HTTP_NOT_FOUND) if settings.may_be_unknown => Some(Relist::Gone),
        Some(504) if failure.reason.contains("Too large resource version") => Some(Relist::RolledBack),
        Some(400) => Some(Relist::Unproven),
        _ => None,
    }
}

fn no_answer(limit: Duration) -> String {
    format!("the API gave no answer within {limit:?}")
}

#[cfg(test)]
#[path = "stampede_tests.rs"]
mod stampede;
#[cfg(test)]
#[path = "watcher_tests.rs"]
mod tests;
