//! The probe, which distinguishes a silent watch from a dead one.

use tokio::time::Instant;

use super::{
    Call, Effect, Failure, Received, Version, WatchEvent, Watcher, bounds, no_answer,
    probe::{Probe, VersionCheck},
    unusable_version,
    watch::Line,
};
use crate::{Probed, ProofKind, Relist, Restart};

impl<K> Watcher<K> {
    /// While the watch is closed there is nothing to probe.
    pub(super) fn probe_due(&self) -> Option<Instant> {
        match &self.probe {
            Some(probe) => Some(probe.due()),
            None => (self.watch.line == Line::Open && !self.watch.is_short).then_some(self.probe_at),
        }
    }

    pub(super) fn probe_tick(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.probe_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let Some(probe) = &self.probe else {
            let Some(from) = self.version.clone() else { return Vec::new() };
            let probe = Probe {
                asked: now,
                opened: None,
                from: from.clone(),
                missed: None,
                over: false,
                check: VersionCheck::NotYet,
            };
            self.probe = Some(probe);
            return vec![Effect::Watch { call: Call::Probe, version: from, seconds: bounds::PROBE_SECONDS }];
        };
        if probe.missed.is_some() {
            *self.status.probes.entry(Probed::MissedEvents).or_default() += 1;
            return self.condemn(Restart::MissedEvents, now);
        }
        let limit = if probe.opened.is_some() { bounds::PROBE_LIMIT } else { bounds::ANSWER_LIMIT };
        self.reached(false, now);
        self.probe_failed(Failure::without_status(no_answer(limit)), now)
    }

    pub(super) fn probe_received(&mut self, received: Received<K>, now: Instant) -> Vec<Effect<K>> {
        let Some(probe) = &mut self.probe else { return Vec::new() };
        match received {
            Received::Opened => probe.opened = Some(now),
            Received::Unreadable(reason) => return self.relist_unreadable(reason, now),
            Received::Bookmark(version) => {
                if version.as_ref().is_some_and(|version| *version < probe.from) {
                    return self.relist(Relist::RolledBack, now);
                }
                if probe.missed.is_none() {
                    if probe.check == VersionCheck::Done && version.as_ref() > Some(&probe.from) {
                        // The server does learn of the store's progress.
                        self.forced_lists.reset();
                    }
                    return self.probed_fresh(version, now);
                }
            }
            Received::Put(item) => {
                let version = item.version.clone();
                return self.probe_received_version(WatchEvent::Put(Box::new(item)), version, now);
            }
            Received::Deleted(name, version) => {
                return self.probe_received_version(WatchEvent::Delete(name), version, now);
            }
            Received::Ended | Received::Failed(_) if probe.missed.is_some() => probe.over = true,
            Received::Ended if probe.check == VersionCheck::NotYet => {
                (probe.check, probe.asked, probe.opened) = (VersionCheck::Asked, now, None);
                return vec![Effect::CheckVersion];
            }
            Received::Ended => return self.probe_was_silent(now),
            Received::Page(page) if probe.check == VersionCheck::Asked => {
                return self.looked(page.version, now);
            }
            Received::Failed(failure) => return self.probe_failed(failure, now),
            Received::Progress | Received::Page(_) => {}
        }
        Vec::new()
    }

    /// A change that the watch has not brought (yet).
    fn probe_received_version(
        &mut self,
        change: WatchEvent<K>,
        version: Option<Version>,
        now: Instant,
    ) -> Vec<Effect<K>> {
        let Some(effect) = self.unless_known(Some(change), version) else { return Vec::new() };
        if let (Some(probe), Some(version)) = (&mut self.probe, &self.version) {
            probe.missed.get_or_insert((now, version.clone()));
        }
        self.prove(ProofKind::Probe, now);
        vec![effect]
    }

    /// The store's version: nothing happened since ours, or a second probe shows what did.
    fn looked(&mut self, store: Option<Version>, now: Instant) -> Vec<Effect<K>> {
        let (Some(store), Some(held)) = (store, self.version.clone()) else {
            return self.probe_failed(Failure::without_status("the API's list has no resourceVersion"), now);
        };
        if store == held {
            // The watch has nothing to say.
            self.watch.received = now;
            return self.probed_fresh(Some(store), now);
        }
        if store < held {
            return self.relist(Relist::RolledBack, now);
        }
        let probe = Probe {
            asked: now,
            opened: None,
            from: held.clone(),
            missed: None,
            over: false,
            check: VersionCheck::Done,
        };
        self.probe = Some(probe);
        vec![Effect::Watch { call: Call::Probe, version: held, seconds: bounds::PROBE_SECONDS }]
    }

    /// Not even the second probe brought a word. A fresh watch was accepted and the store was read, so connection and API are well. Whether
    /// the server's watches leave something out, only a list shows.
    fn probe_was_silent(&mut self, now: Instant) -> Vec<Effect<K>> {
        *self.status.probes.entry(Probed::Unproven).or_default() += 1;
        if self.forced_lists.force(&mut self.pauses, now) {
            return self.relist(Relist::Unproven, now);
        }
        self.probe = None;
        // The watch has no more to say than the probe.
        self.watch.received = now;
        self.prove(ProofKind::SilentProbe, now);
        vec![Effect::Close(Call::Probe)]
    }

    fn probed_fresh(&mut self, version: Option<Version>, now: Instant) -> Vec<Effect<K>> {
        *self.status.probes.entry(Probed::Fresh).or_default() += 1;
        self.probe = None;
        let _nothing: Option<Effect<K>> = self.unless_known(None, version);
        self.prove(ProofKind::Probe, now);
        let overdue = bounds::OVERDUE_LIMIT.max(self.settings.silence * 4);
        if now.saturating_duration_since(self.watch.received) >= overdue {
            return self.condemn(Restart::Overdue, now);
        }
        vec![Effect::Close(Call::Probe)]
    }

    /// The API is to blame: the watch stays as it is.
    fn probe_failed(&mut self, failure: Failure, now: Instant) -> Vec<Effect<K>> {
        *self.status.probes.entry(Probed::Failed).or_default() += 1;
        if let Some(reason) = unusable_version(&failure, &self.settings) {
            return self.relist(reason, now);
        }
        self.probe_at = now + self.pauses.after_failure(failure.retry_after);
        self.trouble(failure.reason);
        self.probe = None;
        vec![Effect::Close(Call::Probe)]
    }
}
