//! Keeps the tables at what the last snapshot wants: level-triggered, so a failure is only a reason to come again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{ApplyError, Report, Store};
use crate::{
    model::{Monotonic, Refusal, Snapshot},
    plan::{
        Book, Desired, Frontend, Loaded, NodeFacts, Op, PlanSettings, PortKey, Range, diff_service, evictions,
        free_unreferred, plan, restore, sweep,
    },
};

/// Writes the tables of one store.
#[derive(Debug)]
pub struct Programmer<S> {
    store: S,
    settings: PlanSettings,
    book: Book,
    /// `None` until the first snapshot: nothing is programmed, and nothing removed, before.
    wanted: Option<Wanted>,
    retry: Option<Retry>,
    /// Changes that a table has no room for.
    no_room: BTreeMap<PortKey, Refusal>,
    last_run: Monotonic,
    /// When ids of backends that are gone are next looked for in the flow tables.
    reclaim_at: Option<Monotonic>,
}

#[derive(Debug)]
struct Wanted {
    revision: u64,
    desired: Arc<Desired>,
}

/// Something failed or found no room.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Monotonic,
    pause: Duration,
}

impl<S: Store> Programmer<S> {
    /// Takes over what the tables hold. Writes nothing.
    pub fn restore(store: S, settings: PlanSettings, now: Monotonic) -> Result<Self, ApplyError> {
        let mut loaded: Loaded = store.load()?;
        let capacities = store.capacities();
        let ranges: BTreeMap<u32, u32> = loaded
            .frontends
            .iter()
            .map(|(_, entry)| (entry.slot_base, entry.slot_count))
            .filter(|(base, count)| *count > 0 && base.checked_add(*count).is_some_and(|end| end <= capacities.slots))
            .collect();
        for (base, count) in ranges {
            let range = Range { base, count };
            loaded.slots.push((range, store.slots(range)?));
        }
        let book = restore(capacities, loaded);
        let reclaim_at = (!book.gone.is_empty()).then(|| now + settings.reclaim_interval);
        Ok(Self {
            store,
            settings,
            book,
            wanted: None,
            retry: None,
            no_room: BTreeMap::new(),
            last_run: now,
            reclaim_at,
        })
    }

    /// Brings the tables to what the snapshot wants. What fails or finds no room is in the report, and comes again with
    /// [`Self::tick`]; everything else is done.
    pub fn sync(&mut self, snapshot: &Snapshot, facts: &NodeFacts, now: Monotonic) -> Report {
        let desired = Arc::new(plan(snapshot, facts, &self.settings));
        let mut keys = self.all_keys(&desired);
        if let (Some(wanted), None) = (&self.wanted, self.retry) {
            // All else is written as it was wanted before.
            let before = &wanted.desired.services;
            keys.retain(|key| before.get(key) != desired.services.get(key));
        }
        self.wanted = Some(Wanted { revision: snapshot.revision, desired: Arc::clone(&desired) });
        self.run(&desired, &keys, true, now)
    }

    /// Does what time has brought about: deadlines that struck, ranges that have rested, retries. Does nothing before the
    /// first snapshot.
    pub fn tick(&mut self, now: Monotonic) -> Report {
        let Some(wanted) = &self.wanted else { return Report::default() };
        let desired = Arc::clone(&wanted.desired);
        if self.retry.is_some_and(|retry| retry.at <= now) {
            let keys = self.all_keys(&desired);
            return self.run(&desired, &keys, true, now);
        }
        let keys = self.struck(now);
        self.run(&desired, &keys, self.retry.is_none(), now)
    }

    /// When [`Self::tick`] has something to do; `None`: not before the next snapshot.
    pub fn next_tick(&self) -> Option<Monotonic> {
        self.wanted.as_ref()?;
        // What was due and is still there comes with the retry.
        let due = |at: Monotonic| match self.retry {
            _ if at > self.last_run => at,
            Some(retry) => retry.at,
            None => self.last_run + self.settings.retry_min,
        };
        let deadlines = || self.book.deadlines.iter().map(|(tenths, _)| Monotonic::from_tenths(*tenths));
        let first = deadlines().next();
        let next = deadlines().find(|at| *at > self.last_run);
        let release = self.book.resting.values().min().copied();
        let timed = [first, next, release, self.reclaim_at].into_iter().flatten().map(due);
        timed.chain(self.retry.map(|retry| retry.at)).min()
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    pub fn into_store(self) -> S {
        self.store
    }

    pub fn book(&self) -> &Book {
        &self.book
    }

    /// Every service port, wanted or written. Those that take a frontend over come first, so that it always leads somewhere;
    /// then those that are removed, which makes room.
    fn all_keys(&self, desired: &Desired) -> Vec<PortKey> {
        let takes_over = |frontend: &Frontend, key: &PortKey| {
            let written = self.book.frontends.get(frontend).and_then(|entry| self.book.services.get(&entry.id));
            written.is_some_and(|owner| owner.key != *key)
        };
        let takers = desired.owners.iter().filter(|(frontend, key)| takes_over(frontend, key));
        let takers: BTreeSet<&PortKey> = takers.map(|(_, key)| key).collect();
        let removed = self.book.service_ids.keys().filter(|key| !desired.services.contains_key(key));
        let others = desired.services.keys().filter(|key| !takers.contains(key));
        takers.iter().copied().chain(removed).chain(others).cloned().collect()
    }

    /// The service ports of backends whose deadline struck.
    fn struck(&self, now: Monotonic) -> Vec<PortKey> {
        let due = self.book.deadlines.iter().take_while(|(tenths, _)| Monotonic::from_tenths(*tenths) <= now);
        let services: BTreeSet<u32> =
            due.filter_map(|(_, id)| self.book.backends.get(id)).map(|record| record.service).collect();
        services.iter().filter_map(|id| self.book.services.get(id)).map(|service| service.key.clone()).collect()
    }

    /// Brings the service ports `keys` to what is wanted. `whole`: all others already are.
    fn run(&mut self, desired: &Desired, keys: &[PortKey], whole: bool, now: Monotonic) -> Report {
        self.last_run = now;
        let mut report = Report { refusals: desired.refusals.clone(), ..Report::default() };
        if whole {
            self.no_room.clear();
        }
        // What has rested makes room, and what is given up below leaves nothing behind.
        self.sweep(desired, now, &mut report);
        for key in keys {
            self.no_room.remove(key);
            match diff_service(key, desired, &self.book, &self.settings, now) {
                Ok(ops) => self.apply(key, &ops, now, &mut report),
                Err(refusal) => {
                    self.no_room.insert(key.clone(), refusal);
                    self.apply(key, &evictions(key, &self.book, now), now, &mut report);
                }
            }
        }
        self.reclaim(desired, now, &mut report);
        self.sweep(desired, now, &mut report);
        report.refusals.extend(self.no_room.values().cloned());
        let clean = report.failures.is_empty() && self.no_room.is_empty();
        self.note_programmed(whole && clean, now, &mut report);
        if whole || self.retry.is_none() {
            self.schedule(clean && report.failures.is_empty(), now);
        }
        report.describe(&self.book, &self.settings, now);
        report
    }

    /// Carries operations out until one fails: what follows it may depend on it.
    fn apply(&mut self, key: &PortKey, ops: &[Op], now: Monotonic, report: &mut Report) {
        for op in ops {
            if let Err(error) = self.store.apply(op) {
                report.failures.push(format!("Service {key}: {op}: {error}"));
                return;
            }
            self.book.record(key, op, now, self.settings.slot_grace);
            report.writes += 1;
        }
    }

    fn sweep(&mut self, desired: &Desired, now: Monotonic, report: &mut Report) {
        for (key, op) in sweep(&self.book, desired, now) {
            self.apply(&key, &[op], now, report);
        }
    }

    /// Frees the ids that no flow refers to any more, if it is time to look.
    fn reclaim(&mut self, desired: &Desired, now: Monotonic, report: &mut Report) {
        if self.book.gone.is_empty() {
            self.reclaim_at = None;
            return;
        }
        let at = *self.reclaim_at.get_or_insert(now + self.settings.reclaim_interval);
        if at > now {
            return;
        }
        self.reclaim_at = Some(now + self.settings.reclaim_interval);
        match self.store.referred(&self.book.gone) {
            Ok(referred) => {
                for (key, op) in free_unreferred(&self.book, desired, &referred) {
                    self.apply(&key, &[op], now, report);
                }
            }
            Err(error) => report.failures.push(format!("looking for flows of backends that are gone: {error}")),
        }
        if self.book.gone.is_empty() {
            self.reclaim_at = None;
        }
    }

    fn note_programmed(&mut self, clean: bool, now: Monotonic, report: &mut Report) {
        let Some(wanted) = &self.wanted else { return };
        report.revision = wanted.revision;
        if !clean {
            return;
        }
        if let Err(error) =
            self.store.apply(&Op::WriteConfig { revision: wanted.revision, programmed_ds: now.to_tenths() })
        {
            report.failures.push(format!("noting the revision: {error}"));
        }
    }

    fn schedule(&mut self, clean: bool, now: Monotonic) {
        self.retry = (!clean).then(|| {
            let pause =
                self.retry.map_or(self.settings.retry_min, |retry| (retry.pause * 2).min(self.settings.retry_max));
            Retry { at: now + pause, pause }
        });
    }
}

#[cfg(test)]
#[path = "programmer_tests.rs"]
mod tests;
