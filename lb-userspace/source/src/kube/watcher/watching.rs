//! The watch: asked for, followed, replaced.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Call, Effect, Failure, Received, Version, WatchEvent, Watcher, bounds, no_answer, unusable_version,
    watch::{Line, Watch},
};
use crate::{Probed, ProofKind, Relist, Restart};

impl<K> Watcher<K> {
    pub(super) fn watch_tick(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.watch.due() > now {
            return Vec::new();
        }
        match self.watch.line {
            Line::Closed => Vec::new(),
            Line::Waiting(_) => {
                let Some(version) = self.version.clone() else { return self.relist(Relist::Retry, now) };
                let seconds = self.pauses.watch_seconds();
                self.watch = Watch {
                    line: Line::Asked(now),
                    at: self.version.clone(),
                    ends: now + Duration::from_secs(seconds.into()),
                    ..Watch::closed(now)
                };
                vec![Effect::Watch { call: Call::Watch, version, seconds }]
            }
            Line::Asked(_) => {
                self.reached(false, now);
                self.watch_failed(Failure::without_status(no_answer(bounds::ANSWER_LIMIT)), now)
            }
            Line::Open => self.watch_lost(now),
        }
    }

    pub(super) fn watch_received(&mut self, received: Received<K>, now: Instant) -> Vec<Effect<K>> {
        match received {
            Received::Opened => self.watch_opened(now),
            Received::Bookmark(version) => self.watch_received_version(None, version, now),
            Received::Put(item) => {
                let version = item.version.clone();
                self.watch_received_version(Some(WatchEvent::Put(Box::new(item))), version, now)
            }
            Received::Deleted(name, version) => {
                self.watch_received_version(Some(WatchEvent::Delete(name)), version, now)
            }
            Received::Unreadable(reason) => self.relist_unreadable(reason, now),
            Received::Ended if self.watch.is_short && !self.watch.proven => self.short_watch_was_silent(now),
            // Servers end a watch a little before or after the time.
            Received::Ended if now + Duration::from_secs(1) >= self.watch.ends => {
                self.watch = Watch::waiting(now);
                // What a probe brings from here on, no watch could have brought.
                self.probe = None;
                vec![Effect::Close(Call::Watch), Effect::Close(Call::Probe)]
            }
            Received::Ended => self.watch_lost(now),
            Received::Failed(failure) => self.watch_failed(failure, now),
            Received::Progress | Received::Page(_) => Vec::new(),
        }
    }

    /// A probe that took the place of the watch, and brought nothing. If no list is due, a probe of the next watch follows soon.
    fn short_watch_was_silent(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.forced_lists.force(&mut self.pauses, now) {
            return self.relist(Relist::Unproven, now);
        }
        self.watch = Watch::waiting(now);
        vec![Effect::Close(Call::Watch)]
    }

    fn watch_opened(&mut self, now: Instant) -> Vec<Effect<K>> {
        (self.watch.line, self.watch.opened, self.watch.received) = (Line::Open, now, now);
        // A replacement is trusted once. One in place of another that brought nothing must bring something.
        if !self.watch.is_short && self.replacements <= 1 {
            self.status.wedged_since = None;
        }
        if self.compare_at.is_some_and(|at| at <= now)
            && let Some(interval) = self.settings.compare_interval
        {
            self.compare_at = Some(now + self.pauses.between(Duration::ZERO, interval));
        }
        let proof_age = self.status.proof.map(|proof| now.saturating_duration_since(proof.at));
        let is_old = proof_age.is_none_or(|age| age > self.settings.silence);
        if self.status.last_error.is_some() {
            let most = if is_old { bounds::OLD_PROBE_MAX } else { bounds::REOPENED_PROBE_MAX };
            let soon = now + self.pauses.within(most);
            // What is overdue on all nodes must not be done by all at once.
            self.probe_at = if self.probe_at > now { self.probe_at.min(soon) } else { soon };
        }
        Vec::new()
    }

    /// The watch brought a change, or a bookmark.
    fn watch_received_version(
        &mut self,
        change: Option<WatchEvent<K>>,
        version: Option<Version>,
        now: Instant,
    ) -> Vec<Effect<K>> {
        if let (Some(new), Some(at)) = (&version, &self.watch.at)
            && new < at
        {
            return self.relist(Relist::RolledBack, now);
        }
        self.watch.received = now;
        self.watch.proven = true;
        self.watch.at = version.clone().or(self.watch.at.take());
        if !self.watch.is_short {
            (self.replacements, self.status.wedged_since) = (0, None);
        }
        let mut effects = Vec::new();
        if let Some(probe) = &self.probe {
            let caught_up = probe.missed.as_ref().is_none_or(|(_, missed)| version.as_ref() >= Some(missed));
            if caught_up {
                if probe.missed.is_some() {
                    *self.status.probes.entry(Probed::Late).or_default() += 1;
                }
                self.probe = None;
                effects.push(Effect::Close(Call::Probe));
            }
        }
        self.prove(if change.is_some() { ProofKind::Event } else { ProofKind::Bookmark }, now);
        effects.extend(self.unless_known(change, version));
        effects
    }

    /// What the other call already brought is no update.
    pub(super) fn unless_known(
        &mut self,
        change: Option<WatchEvent<K>>,
        version: Option<Version>,
    ) -> Option<Effect<K>> {
        if let (Some(new), Some(held)) = (&version, &self.version)
            && new <= held
        {
            return None;
        }
        self.forced_lists.put_off();
        if let Some(change) = change {
            return Some(Effect::Emit(self.changed(change, version)));
        }
        self.version = version.or(self.version.take());
        None
    }

    fn watch_failed(&mut self, failure: Failure, now: Instant) -> Vec<Effect<K>> {
        if let Some(reason) = unusable_version(&failure, &self.settings) {
            return self.relist(reason, now);
        }
        let was_open = self.watch.line == Line::Open;
        self.trouble(failure.reason);
        if was_open {
            return self.watch_lost(now);
        }
        self.watch = Watch::waiting(now + self.pauses.after_failure(failure.retry_after));
        let mut effects = self.break_off_comparison(now);
        effects.push(Effect::Close(Call::Watch));
        effects
    }

    /// An open watch is no more, and those of all other nodes perhaps with it. A probe that is under way takes its place.
    fn watch_lost(&mut self, now: Instant) -> Vec<Effect<K>> {
        *self.status.watch_restarts.entry(Restart::Cut).or_default() += 1;
        if self.status.last_error.is_none() {
            self.trouble("the watch was cut off".into());
        }
        let was_lost_at_once = now.saturating_duration_since(self.watch.opened) < bounds::SHORT_WATCH;
        let lost_before = std::mem::replace(&mut self.lost_at, self.version.clone().filter(|_| was_lost_at_once));
        if was_lost_at_once && lost_before == self.version {
            return self.relist(Relist::WatchFails, now);
        }
        let mut effects = self.break_off_comparison(now);
        if let Some(promoted) = self.promote_probe() {
            effects.extend(promoted);
            return effects;
        }
        self.watch = Watch::waiting(now + self.pauses.after_failure(None));
        self.probe = None;
        effects.extend([Effect::Close(Call::Watch), Effect::Close(Call::Probe)]);
        effects
    }

    /// An event that names no object needs a list: the watch would bring the same event again.
    pub(super) fn relist_unreadable(&mut self, reason: String, now: Instant) -> Vec<Effect<K>> {
        *self.status.watch_restarts.entry(Restart::Unreadable).or_default() += 1;
        self.trouble(reason);
        self.relist(Relist::WatchFails, now)
    }

    fn promote_probe(&mut self) -> Option<Vec<Effect<K>>> {
        let probe = self.probe.take().filter(|probe| !probe.over && !probe.is_looking())?;
        self.watch = Watch {
            line: if probe.opened.is_some() { Line::Open } else { Line::Asked(probe.asked) },
            at: self.version.clone(),
            ends: probe.opened.unwrap_or(probe.asked) + Duration::from_secs(bounds::PROBE_SECONDS.into()),
            opened: probe.opened.unwrap_or(probe.asked),
            received: probe.opened.unwrap_or(probe.asked),
            proven: probe.missed.is_some(),
            is_short: true,
        };
        Some(vec![Effect::Promote])
    }

    /// The watch is dead, though the API answers: it is replaced by another one on a new connection. Only changes that came to this
    /// node by another watch are a fault of this node's own; a server without bookmarks, or whose watches leave changes out, is none.
    pub(super) fn condemn(&mut self, reason: Restart, now: Instant) -> Vec<Effect<K>> {
        *self.status.watch_restarts.entry(reason).or_default() += 1;
        if reason == Restart::MissedEvents {
            self.status.wedged_since.get_or_insert(now);
        }
        self.replacements += 1;
        self.promote_probe().unwrap_or_else(|| {
            self.watch = Watch::waiting(now);
            vec![Effect::Close(Call::Watch), Effect::Close(Call::Probe)]
        })
    }
}
