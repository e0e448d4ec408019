//! What is not yet as it is wanted: each subject is tried again by itself, after pauses that grow, and no other one waits for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use super::subject::Subject;
use crate::plan::PlanSettings;
use lb_model::{Monotonic, PortKey, Refusal};

/// Why a subject waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A write failed: with which words.
    Failed(String),
    /// A table has no room.
    NoRoom(Refusal),
}

/// When a subject is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    at: Monotonic,
    pause: Duration,
    /// Since when each write of the subject failed; `None`: the last try failed for no write.
    failing_since: Option<Monotonic>,
}

impl Retry {
    /// After a failure: the first pause, or twice the last one. A try that came before it was due, since the subject changed, puts
    /// nothing off.
    fn after(before: Option<Self>, settings: &PlanSettings, now: Monotonic) -> Self {
        let pause = match before {
            Some(retry) if retry.at > now => return retry,
            Some(retry) => (retry.pause * 2).min(settings.retry_max),
            None => settings.retry_min,
        };
        Self { at: now + pause, pause, failing_since: None }
    }
}

/// Subjects whose change failed, or that a table has no room for.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: BTreeMap<Subject, (Trouble, Retry)>,
    due: BTreeSet<(Monotonic, Subject)>,
    /// Those whose writes fail, by since when.
    failing: BTreeSet<(Monotonic, Subject)>,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn has_service(&self, key: &PortKey) -> bool {
        self.waiting.contains_key(&Subject::Service(key.clone()))
    }

    pub fn has_vip(&self, address: IpAddr) -> bool {
        self.waiting.contains_key(&Subject::Vip(address))
    }

    /// Takes one out that is being tried; when it was to be tried again, for [`Self::put`].
    pub fn take(&mut self, subject: &Subject) -> Option<Retry> {
        let (_, retry) = self.waiting.remove(subject)?;
        self.due.remove(&(retry.at, subject.clone()));
        if let Some(since) = retry.failing_since {
            self.failing.remove(&(since, subject.clone()));
        }
        Some(retry)
    }

    /// It was tried, and is to be tried again. `before`: what [`Self::take`] returned.
    pub fn put(
        &mut self,
        subject: Subject,
        trouble: Trouble,
        before: Option<Retry>,
        settings: &PlanSettings,
        now: Monotonic,
    ) {
        self.take(&subject);
        let fails = matches!(trouble, Trouble::Failed(_));
        let failing_since = fails.then(|| before.and_then(|retry| retry.failing_since).unwrap_or(now));
        let retry = Retry { failing_since, ..Retry::after(before, settings, now) };
        self.failing.extend(failing_since.map(|since| (since, subject.clone())));
        self.due.insert((retry.at, subject.clone()));
        self.waiting.insert(subject, (trouble, retry));
    }

    /// Whether it is not to be tried yet.
    pub fn waits(&self, subject: &Subject, now: Monotonic) -> bool {
        self.waiting.get(subject).is_some_and(|(_, retry)| retry.at > now)
    }

    /// Forgets those that need no retry any more.
    pub fn retain(&mut self, is_kept: impl Fn(&Subject) -> bool) {
        let over: Vec<Subject> = self.waiting.keys().filter(|subject| !is_kept(subject)).cloned().collect();
        for subject in over {
            self.take(&subject);
        }
    }

    /// Forgets releases that were to be tried and that nothing asks for any more. A later look finds what is still to be released.
    pub fn forget_releases(&mut self, now: Monotonic) {
        let releases = self.due(now).filter(|subject| matches!(subject, Subject::Release(_)));
        for subject in releases.cloned().collect::<Vec<_>>() {
            self.take(&subject);
        }
    }

    /// Those that are to be tried now.
    pub fn due(&self, now: Monotonic) -> impl Iterator<Item = &Subject> {
        self.due.iter().take_while(move |(at, _)| *at <= now).map(|(_, subject)| subject)
    }

    pub fn retry_at(&self) -> Option<Monotonic> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many subjects' writes failed.
    pub fn failed(&self) -> usize {
        self.failing.len()
    }

    /// Since when the writes of the subject fail that has failed longest.
    pub fn failing_since(&self) -> Option<Monotonic> {
        self.failing.first().map(|(since, _)| *since)
    }

    /// Why a service port is not as it is wanted.
    pub fn trouble_of(&self, key: &PortKey) -> Option<String> {
        let (trouble, _) = self.waiting.get(&Subject::Service(key.clone()))?;
        Some(match trouble {
            Trouble::Failed(words) => words.clone(),
            Trouble::NoRoom(refusal) => refusal.to_string(),
        })
    }

    /// Service ports that are not as they are wanted.
    pub fn services(&self) -> impl Iterator<Item = &PortKey> {
        self.waiting.keys().filter_map(|subject| match subject {
            Subject::Service(key) => Some(key),
            Subject::Vip(_) | Subject::Release(_) | Subject::Note => None,
        })
    }

    pub fn failures(&self) -> impl Iterator<Item = &String> {
        self.waiting.values().filter_map(|(trouble, _)| match trouble {
            Trouble::Failed(words) => Some(words),
            Trouble::NoRoom(_) => None,
        })
    }

    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.waiting.values().filter_map(|(trouble, _)| match trouble {
            Trouble::NoRoom(refusal) => Some(refusal),
            Trouble::Failed(_) => None,
        })
    }
}
