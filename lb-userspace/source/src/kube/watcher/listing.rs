//! A complete list, page by page, and whether it is believed.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{
    Call, Effect, Failure, HTTP_GONE, HTTP_NOT_FOUND, Received, Update, Version, Watcher, bounds,
    list::{Listing, PageRequest, Unconfirmed},
    watch::Watch,
};
use crate::{Confirming, ProofKind, Relist, kube::calls::Page};
use lb_model::ObjectName;

/// A list that deletes at most so many objects is no mass deletion.
const FEW: usize = 10;

/// A page that the server answers with so many errors in a row is not to be had: the list begins anew.
const PAGE_REFUSALS_MAX: u32 = 5;
/// Statuses of a server that only has too much to do.
const BUSY: [u16; 2] = [429, 503];

impl<K> Watcher<K> {
    pub(super) fn list_tick(&mut self, now: Instant) -> Vec<Effect<K>> {
        let Some(listing) = self.listing.as_mut().filter(|listing| listing.due() <= now) else { return Vec::new() };
        if let PageRequest::Sent(_) = listing.asked {
            self.reached(false, now);
            let reason = format!("nothing came of a list for {:?}", bounds::LIST_SILENCE_LIMIT);
            let mut effects = vec![Effect::Close(Call::List)];
            effects.extend(self.list_failed(Failure::without_status(reason), now));
            return effects;
        }
        listing.asked = PageRequest::Sent(now);
        if listing.token.is_none() {
            *self.status.relists.entry(listing.reason).or_default() += 1;
        }
        vec![Effect::List { token: listing.token.clone() }]
    }

    pub(super) fn list_received(&mut self, received: Received<K>, now: Instant) -> Vec<Effect<K>> {
        match received {
            Received::Page(page) => self.page(page, now),
            Received::Failed(failure) => self.list_failed(failure, now),
            Received::Opened
            | Received::Progress
            | Received::Put(_)
            | Received::Deleted(..)
            | Received::Bookmark(_)
            | Received::Unreadable(_)
            | Received::Ended => {
                if let Some(listing) = &mut self.listing {
                    listing.asked = PageRequest::Sent(now);
                }
                Vec::new()
            }
        }
    }

    /// A page that failed is asked for again, so that a long list gets on. A page whose token the server no longer knows ends the list. So does one
    /// that the server refuses again and again, as after a store went back in time: it does not know the token's version.
    fn list_failed(&mut self, failure: Failure, now: Instant) -> Vec<Effect<K>> {
        if self.settings.may_be_unknown && failure.status == Some(HTTP_NOT_FOUND) {
            return self.kind_is_unknown(now);
        }
        let Some(listing) = &mut self.listing else { return Vec::new() };
        let begun = listing.token.is_some();
        listing.refusals += u32::from(failure.status.is_some_and(|status| !BUSY.contains(&status)));
        let is_gone = failure.status == Some(HTTP_GONE);
        if begun && (is_gone || listing.refusals >= PAGE_REFUSALS_MAX) {
            listing.start_over(Relist::Retry, now + self.pauses.before_list());
            if !is_gone {
                self.trouble(failure.reason);
            }
            return vec![Effect::Emit(Update::Abandoned)];
        }
        if !begun {
            listing.reason = Relist::Retry;
        }
        listing.asked = PageRequest::Waits(now + self.pauses.after_failure(failure.retry_after));
        self.trouble(failure.reason);
        Vec::new()
    }

    /// The API has no such kind, and so no object of it. It is asked again: an upgrade may bring the kind.
    fn kind_is_unknown(&mut self, now: Instant) -> Vec<Effect<K>> {
        let (from, to) = bounds::UNKNOWN_KIND_PAUSE;
        self.listing = Some(Listing::new(Relist::First, now + self.pauses.between(from, to)));
        self.known.clear();
        self.status.objects = 0;
        self.prove(ProofKind::List, now);
        [Update::Abandoned, Update::Page(Vec::new()), Update::Complete].map(Effect::Emit).into()
    }

    fn page(&mut self, page: Page<K>, now: Instant) -> Vec<Effect<K>> {
        let Some(listing) = &mut self.listing else { return Vec::new() };
        for item in &page.items {
            let version = item.version.clone().unwrap_or_else(Version::unknown);
            listing.seen.insert(item.name.clone(), version);
        }
        let mut effects = vec![Effect::Emit(Update::Page(page.items))];
        if page.token.is_some() {
            (listing.token, listing.asked, listing.refusals) = (page.token, PageRequest::Sent(now), 0);
            effects.push(Effect::List { token: listing.token.clone() });
            return effects;
        }
        let believed = if let Some(version) = page.version {
            self.believe(version, now)
        } else {
            listing.start_over(Relist::Retry, now + self.pauses.after_failure(None));
            self.trouble("the API's list has no resourceVersion".into());
            false
        };
        if self.listing.as_ref().is_some_and(|listing| listing.reason == Relist::RolledBack) {
            effects.push(Effect::WentBack);
        }
        effects.push(Effect::Emit(if believed { Update::Complete } else { Update::Abandoned }));
        effects
    }

    /// Takes the list as the truth unless it is implausible; then a second one on a new connection must say the same. If it does
    /// not, neither counts.
    fn believe(&mut self, version: Version, now: Instant) -> bool {
        let Some(listing) = &mut self.listing else { return false };
        let absent: BTreeSet<ObjectName> =
            self.known.keys().filter(|name| !listing.seen.contains_key(name)).cloned().collect();
        // Before the first list, what the tables hold stands for what is known.
        let expected = self.settings.expected_objects;
        let (held, listed) = (self.known.len().max(expected), listing.seen.len());
        let rolled_back = self.version.as_ref().is_some_and(|held| version < *held);
        let lost = absent.len().max(expected.saturating_sub(listed));
        let empty = listed == 0 && held > 0;
        let shrunk = lost > FEW && lost * 2 > held;
        let is_implausible = rolled_back || empty || shrunk;
        let agreed = match &listing.unconfirmed {
            None => !is_implausible,
            Some(first) => is_implausible && absent.is_subset(&first.absent) && !version.is_before(&first.version),
        };
        if agreed {
            let before = std::mem::replace(&mut self.known, std::mem::take(&mut listing.seen));
            if self.known.contains_key(&ObjectName::unreadable()) {
                // What it does not name is still held.
                let unnamed = before.iter().filter(|(name, _)| absent.contains(name));
                self.known.extend(unnamed.map(|(name, version)| (name.clone(), version.clone())));
            }
            self.take_list(version, before != self.known, now);
            return true;
        }
        let is_first = listing.unconfirmed.is_none();
        let pause = if is_first { self.pauses.before_list() } else { self.pauses.after_failure(None) };
        let reason = match (rolled_back, is_first) {
            (_, false) => "two lists of the API contradict each other".to_owned(),
            (true, true) => format!("the API went back to version {version}"),
            (false, true) => format!("the API lists {listed} objects, held are {held}"),
        };
        listing.unconfirmed = (is_implausible && is_first).then_some(Unconfirmed { absent, version });
        listing.start_over(if rolled_back && is_first { Relist::RolledBack } else { Relist::Confirm }, now + pause);
        let since = self.status.confirming.map_or(now, |confirming| confirming.since);
        self.status.confirming = Some(Confirming { since, held, listed });
        self.trouble(format!("{reason}; nothing is deleted before a second list confirms it"));
        false
    }

    /// What was listed is known now; a watch follows from there.
    fn take_list(&mut self, version: Version, is_changed: bool, now: Instant) {
        self.listing = None;
        self.version = Some(version);
        self.status.objects = self.known.len();
        self.status.confirming = None;
        self.settings.expected_objects = 0;
        self.prove(ProofKind::List, now);
        self.watch = Watch::waiting(now);
        let is_forced = self.forced_lists.listed(is_changed, &mut self.pauses, now);
        self.schedule_comparison(!is_forced, now);
    }
}
