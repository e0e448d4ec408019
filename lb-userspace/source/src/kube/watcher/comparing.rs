//! The store is compared with a fresh list: whatever the watch should have brought and did not is counted, named and repaired.
//!
//! Two lists must show a difference, and no event may have touched the object meanwhile: what is only on its way is none.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    Call, Effect, HTTP_GONE, Received, Update, Version, Watcher, bounds,
    comparison::{Comparison, Phase},
    watch::Line,
};
use crate::{Difference, ProofKind, Relist, Restart, kube::calls::Page};
use lb_model::ObjectName;

impl<K> Watcher<K> {
    /// `is_first`: all nodes may have listed together, so the first comparison is spread over all of the interval.
    pub(super) fn schedule_comparison(&mut self, is_first: bool, now: Instant) {
        self.comparison = None;
        let pauses = &mut self.pauses;
        let pause = |interval| if is_first { pauses.within(interval) } else { pauses.around(interval, 5) };
        self.compare_at = self.settings.compare_interval.map(pause).map(|pause| now + pause);
    }

    /// A comparison begins only while the watch is open.
    pub(super) fn comparison_due(&self) -> Option<Instant> {
        match &self.comparison {
            Some(comparison) => Some(comparison.due()),
            None => self.compare_at.filter(|_| self.watch.line == Line::Open),
        }
    }

    pub(super) fn comparison_tick(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.comparison_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let Some(comparison) = &mut self.comparison else {
            self.comparison = Some(Comparison::new(self.version.clone(), now));
            return vec![Effect::List { token: None }];
        };
        match comparison.phase {
            Phase::Settling { .. } => {
                comparison.phase = Phase::Listing { is_second: true, last: now };
                comparison.from.clone_from(&self.version);
                vec![Effect::List { token: None }]
            }
            Phase::Listing { .. } => {
                self.reached(false, now);
                let reason = format!("nothing came of a list for {:?}", bounds::LIST_SILENCE_LIMIT);
                self.comparison_failed(Some(reason), now)
            }
        }
    }

    pub(super) fn comparison_received(&mut self, received: Received<K>, now: Instant) -> Vec<Effect<K>> {
        match received {
            Received::Page(page) => self.compare_page(page, now),
            Received::Failed(failure) if failure.status == Some(HTTP_GONE) => self.comparison_failed(None, now),
            Received::Failed(failure) => self.comparison_failed(Some(failure.reason), now),
            Received::Opened
            | Received::Progress
            | Received::Put(_)
            | Received::Deleted(..)
            | Received::Bookmark(_)
            | Received::Unreadable(_)
            | Received::Ended => {
                if let Some(Comparison { phase: Phase::Listing { last, .. }, .. }) = &mut self.comparison {
                    *last = now;
                }
                Vec::new()
            }
        }
    }

    /// It is tried again soon; what is held and the watch stay as they are.
    fn comparison_failed(&mut self, reason: Option<String>, now: Instant) -> Vec<Effect<K>> {
        let (from, to) = bounds::COMPARE_PAUSE;
        self.comparison = None;
        self.compare_at = Some(now + self.pauses.between(from, to));
        if let Some(reason) = reason {
            self.trouble(format!("comparison with a complete list: {reason}"));
        }
        vec![Effect::Close(Call::List)]
    }

    /// While no watch is open, everything that changes would look like a difference.
    pub(super) fn break_off_comparison(&mut self, now: Instant) -> Vec<Effect<K>> {
        if self.comparison.is_some() { self.comparison_failed(None, now) } else { Vec::new() }
    }

    fn compare_page(&mut self, page: Page<K>, now: Instant) -> Vec<Effect<K>> {
        let Some(comparison) = &mut self.comparison else { return Vec::new() };
        let Phase::Listing { is_second, .. } = comparison.phase else { return Vec::new() };
        for item in page.items {
            let (name, version) = (item.name.clone(), item.version.clone());
            if comparison.found.contains_key(&name) {
                comparison.objects.insert(name.clone(), item);
            }
            comparison.seen.insert(name, version.unwrap_or_else(Version::unknown));
        }
        if page.token.is_some() {
            comparison.phase = Phase::Listing { is_second, last: now };
            return vec![Effect::List { token: page.token }];
        }
        let Some(version) = page.version else {
            return self.comparison_failed(Some("the API's list has no resourceVersion".into()), now);
        };
        if comparison.from.as_ref().is_some_and(|from| version < *from) {
            return self.relist(Relist::RolledBack, now);
        }
        let differences = comparison.differences(&self.known, &version);
        comparison.seen.clear();
        if is_second {
            return self.repair(&differences, now);
        }
        if differences.is_empty() {
            self.compared(now);
            return Vec::new();
        }
        comparison.found = differences;
        comparison.phase = Phase::Settling { until: now + bounds::COMPARE_GRACE };
        Vec::new()
    }

    /// Repairs what both lists show.
    fn repair(&mut self, second: &BTreeMap<ObjectName, Difference>, now: Instant) -> Vec<Effect<K>> {
        let Some(mut comparison) = self.comparison.take() else { return Vec::new() };
        let mut effects = Vec::new();
        for (name, kind) in &comparison.found {
            if second.get(name) != Some(kind) {
                continue;
            }
            *self.status.differences.entry(*kind).or_default() += 1;
            effects.push(Effect::Emit(Update::Difference(*kind, name.clone())));
            if let Some(item) = comparison.objects.remove(name) {
                self.known.insert(name.clone(), item.version.clone().unwrap_or_else(Version::unknown));
                effects.push(Effect::Emit(Update::Changed(Box::new(item))));
            } else {
                self.known.remove(name);
                effects.push(Effect::Emit(Update::Deleted(name.clone())));
            }
        }
        self.status.objects = self.known.len();
        self.compared(now);
        if !effects.is_empty() {
            // The watch should have brought this.
            self.forced_lists.reset();
            effects.extend(self.condemn(Restart::Compare, now));
        }
        effects
    }

    /// What is held is what the list says.
    fn compared(&mut self, now: Instant) {
        self.status.compares += 1;
        self.prove(ProofKind::List, now);
        self.schedule_comparison(false, now);
    }
}
