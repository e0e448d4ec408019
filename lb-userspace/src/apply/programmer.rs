//! Keeps the tables at what the last snapshot wants: level-triggered, so a failure is only a reason to come again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use super::{
    ApplyError, Report, Store, endpoints,
    pending::{Pending, Trouble},
    writer::{BATCH, Change, Released, Subject, Writer},
};
use crate::{
    maps::strangers,
    model::{Monotonic, ObjectName, Snapshot},
    plan::{
        BackendId, Book, Changes, Desired, DesiredService, Hold, NodeFacts, Op, PlanSettings, Planner, PortKey,
        diff_service, diff_vip, free_unreferred, restore, sweep, withdrawals,
    },
};

/// So many ids are freed in one run, and others after a pause: their counters are deleted one by one.
const RECLAIMED_AT_ONCE: usize = 1_024;
const RECLAIM_PAUSE: Duration = Duration::from_millis(100);

/// Writes the tables of one store.
#[derive(Debug)]
pub struct Programmer<S> {
    pub(super) writer: Writer<S>,
    pub(super) settings: PlanSettings,
    pub(super) planner: Planner,
    /// Of the last snapshot. `None` until the first one: nothing is programmed, and nothing removed, before.
    revision: Option<u64>,
    pub(super) pending: Pending,
    last_run: Monotonic,
    /// When ids of backends that are gone are next looked for in the flow tables.
    reclaim_at: Option<Monotonic>,
}

impl<S: Store> Programmer<S> {
    /// Takes over what the tables hold. Writes nothing but which addresses are strangers: what a version wrote that knows of none
    /// counts, too, before any program of this one runs.
    pub fn restore(mut store: S, mut settings: PlanSettings, now: Monotonic) -> Result<Self, ApplyError> {
        let mut loaded = store.load()?;
        endpoints::distrust_unnamed(&mut loaded);
        let capacities = store.capacities();
        settings.slots = capacities.slots;
        // Two that begin alike cannot both be ours: the larger one tells which frontends to write again.
        let ranges: BTreeMap<u32, _> =
            loaded.ranges(capacities.slots).into_iter().map(|range| (range.base, range)).collect();
        let ranges: Vec<_> = ranges.into_values().collect();
        let slots = store.slots(&ranges)?;
        loaded.slots = ranges.into_iter().zip(slots).collect();
        store.write_strangers(&strangers::all_but(loaded.addresses()));
        let mut book = restore(capacities, loaded);
        book.guess_drains(settings.drain_period);
        let reclaim_at = (!book.gone.is_empty()).then(|| now + settings.reclaim_interval);
        Ok(Self {
            writer: Writer { store, book, grace: settings.slot_grace },
            planner: Planner::new(settings.clone()),
            settings,
            revision: None,
            pending: Pending::default(),
            last_run: now,
            reclaim_at,
        })
    }

    /// Brings the tables to what the snapshot wants; costs what it changes. What fails or finds no room is in the report, and
    /// comes again with [`Self::tick`]; everything else is done.
    pub fn sync(&mut self, snapshot: &Snapshot, facts: &NodeFacts, now: Monotonic) -> Report {
        if self.revision.is_none() {
            self.planner.hold(Hold::of(&self.writer.book, &snapshot.unread));
        }
        let mut changes = self.planner.update(snapshot, facts);
        let book = &self.writer.book;
        // Also from those who kept one for another service port that never got it.
        let holders =
            changes.unwanted.iter().filter_map(|frontend| book.services.get(&book.frontends.get(frontend)?.id));
        changes.services.extend(holders.map(|holder| holder.key.clone()));
        if self.revision.replace(snapshot.revision).is_none() {
            // Whatever an agent before this one left.
            changes.services.extend(self.writer.book.service_ids.keys().cloned());
            changes.vips.extend(self.writer.book.vips.keys().copied());
        }
        self.add_pending(&mut changes, now);
        self.run(changes, now)
    }

    /// Does what time has brought about: deadlines that struck, ranges that have rested, retries. Does nothing before the
    /// first snapshot.
    pub fn tick(&mut self, now: Monotonic) -> Report {
        if self.revision.is_none() {
            return Report::default();
        }
        let mut changes = Changes { services: self.struck(now), ..Changes::default() };
        self.add_pending(&mut changes, now);
        self.run(changes, now)
    }

    /// When [`Self::tick`] has something to do; `None`: not before the next snapshot.
    pub fn next_tick(&self) -> Option<Monotonic> {
        self.revision?;
        // What was due and is still there comes with the retry.
        let due = |at: Monotonic| match self.pending.retry_at() {
            _ if at > self.last_run => at,
            Some(retry) => retry,
            None => self.last_run + self.settings.retry_min,
        };
        let book = &self.writer.book;
        let deadline = |(tenths, _): &(u32, _)| Monotonic::from_tenths(*tenths);
        let first = book.deadlines.first().map(deadline);
        let next = book.deadlines.iter().map(deadline).find(|at| *at > self.last_run);
        let release = book.resting.first().map(|(until, _)| *until);
        let timed = [first, next, release, self.reclaim_at].into_iter().flatten().map(due);
        timed.chain(self.pending.retry_at()).min()
    }

    pub fn store(&self) -> &S {
        &self.writer.store
    }

    pub fn store_mut(&mut self) -> &mut S {
        &mut self.writer.store
    }

    pub fn into_store(self) -> S {
        self.writer.store
    }

    pub fn book(&self) -> &Book {
        &self.writer.book
    }

    /// Takes down which of the backends that drain have no flow left.
    pub fn note_idle(&mut self, idle: &BTreeSet<BackendId>) {
        self.writer.book.note_idle(idle);
    }

    /// Ids of backends that are gone are looked for with the next tick: the store knows more of them now.
    pub fn reclaim_soon(&mut self, now: Monotonic) {
        if !self.writer.book.gone.is_empty() {
            self.reclaim_at = Some(now);
        }
    }

    /// Whether the service is served as an agent before this one wrote it.
    pub fn holds(&self, service: &ObjectName) -> bool {
        self.planner.holds(service)
    }

    /// Cluster IPs that a link of the node has: the node answers there by itself.
    pub fn local_cluster_ips(&self) -> &BTreeSet<IpAddr> {
        self.planner.local_cluster_ips()
    }

    /// What is wanted.
    pub fn desired(&self) -> &Desired {
        self.planner.desired()
    }

    /// Wanted service ports whose endpoints are checked.
    pub fn checked(&self) -> impl Iterator<Item = (&PortKey, &DesiredService)> {
        self.planner.checked()
    }

    /// What failed or found no room, and is to be tried again now.
    fn add_pending(&self, changes: &mut Changes, now: Monotonic) {
        for subject in self.pending.due(now) {
            match subject {
                Subject::Service(key) => drop(changes.services.insert(key.clone())),
                Subject::Vip(address) => drop(changes.vips.insert(*address)),
                // Each run looks for what may be released, and notes what the tables hold.
                Subject::Release(_) | Subject::Note => {}
            }
        }
    }

    /// Whether there is anything that the tables should hold.
    pub(super) fn has_snapshot(&self) -> bool {
        self.revision.is_some()
    }

    /// The service ports of backends whose deadline struck.
    pub(super) fn struck(&self, now: Monotonic) -> BTreeSet<PortKey> {
        let book = &self.writer.book;
        let due = book.deadlines.iter().take_while(|(tenths, _)| Monotonic::from_tenths(*tenths) <= now);
        let services: BTreeSet<u32> =
            due.filter_map(|(_, id)| book.backends.get(id)).map(|record| record.service).collect();
        services.iter().filter_map(|id| book.services.get(id)).map(|service| service.key.clone()).collect()
    }

    /// Brings what changed to what is wanted; all else already is, or is pending.
    pub(super) fn run(&mut self, changes: Changes, now: Monotonic) -> Report {
        self.last_run = now;
        let mut run = Run { report: Report::default(), now };
        // What has rested makes room, and what is given up below leaves nothing behind.
        self.sweep(&mut run);
        self.services(changes.services, &mut run);
        self.vips(changes.vips, &mut run);
        self.reclaim(&mut run);
        self.sweep(&mut run);
        self.pending.forget_releases(now);
        self.note_programmed(&mut run);
        let mut report = run.report;
        report.list(&self.pending, &self.planner.desired().refusals);
        report.describe(&self.writer.book, now);
        report
    }

    /// Those that take a frontend over come first, one by one, so that it always leads somewhere; then those that are removed,
    /// which makes room; then all others.
    fn services(&mut self, keys: BTreeSet<PortKey>, run: &mut Run) {
        let (mut removed, mut others) = (BTreeSet::new(), BTreeSet::new());
        let planned = keys.clone();
        for key in keys {
            let losers = self.losers(&key);
            if losers.is_empty() {
                let group = if self.desired().services.contains_key(&key) { &mut others } else { &mut removed };
                group.insert(key);
            } else {
                self.change([Subject::Service(key)], run);
                // What a loser kept for the frontend may go now.
                others.extend(losers.into_iter().filter(|loser| self.desired().services.contains_key(loser)));
            }
        }
        self.change(removed.into_iter().map(Subject::Service), run);
        // One whose write failed just now takes over what it did not get, and its losers come after it.
        let takers: Vec<PortKey> = others.iter().filter(|key| !self.losers(key).is_empty()).cloned().collect();
        for key in takers {
            let losers = self.losers(&key);
            others.remove(&key);
            self.change([Subject::Service(key)], run);
            others.extend(losers.into_iter().filter(|loser| self.desired().services.contains_key(loser)));
        }
        self.change(others.into_iter().map(Subject::Service), run);
        for key in planned {
            if let Some(wanted) = self.planner.desired().services.get(&key) {
                self.writer.book.put_drain_period(&key, wanted.drain_period);
            }
        }
    }

    /// Service ports that hold a frontend which `key` is to have.
    fn losers(&self, key: &PortKey) -> Vec<PortKey> {
        let book = &self.writer.book;
        let wanted = self.desired().services.get(key);
        let frontends = wanted.into_iter().flat_map(|wanted| wanted.frontends.keys());
        let holders = frontends.filter_map(|frontend| book.services.get(&book.frontends.get(frontend)?.id));
        holders.filter(|holder| holder.key != *key).map(|holder| holder.key.clone()).collect()
    }

    fn vips(&mut self, addresses: BTreeSet<IpAddr>, run: &mut Run) {
        let (others, removed): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| self.desired().vips.contains_key(address));
        self.change(removed.into_iter().map(Subject::Vip), run);
        self.change(others.into_iter().map(Subject::Vip), run);
    }

    /// Plans and writes changes that do not wait for one another.
    fn change(&mut self, subjects: impl IntoIterator<Item = Subject>, run: &mut Run) {
        let (mut changes, mut planned) = (Vec::new(), 0);
        for subject in subjects {
            let before = self.pending.take(&subject);
            let (desired, book) = (self.planner.desired(), &self.writer.book);
            let (planned_ops, owner) = match &subject {
                Subject::Service(key) => (diff_service(key, desired, book, &self.settings, run.now), Some(key.clone())),
                Subject::Vip(address) => (diff_vip(*address, desired, book).map(|op| op.into_iter().collect()), None),
                Subject::Release(_) | Subject::Note => continue,
            };
            let ops = planned_ops.unwrap_or_else(|refusal| {
                self.pending.put(subject.clone(), Trouble::NoRoom(refusal), before, &self.settings, run.now);
                let owner = owner.as_ref();
                owner.map(|key| withdrawals(key, desired, book, &self.settings, run.now)).unwrap_or_default()
            });
            let change = Change { subject, ops, owner, before };
            self.writer.reserve(&change);
            planned += change.ops.len();
            changes.push(change);
            if planned >= BATCH {
                self.write(std::mem::take(&mut changes), run);
                planned = 0;
            }
        }
        self.write(changes, run);
    }

    fn write(&mut self, changes: Vec<Change>, run: &mut Run) {
        for (change, reason) in self.writer.write(changes, run.now, &mut run.report) {
            let failed = Trouble::Failed(reason);
            self.pending.put(change.subject, failed, change.before, &self.settings, run.now);
        }
    }

    fn sweep(&mut self, run: &mut Run) {
        let book = &self.writer.book;
        self.pending.retain(|subject| match subject {
            Subject::Release(Released::Slots(base)) => book.is_at_rest(*base),
            Subject::Release(Released::Backend(id)) => book.gone.contains(id),
            Subject::Release(Released::Service(id)) => book.empty.contains(id),
            Subject::Service(_) | Subject::Vip(_) | Subject::Note => true,
        });
        self.release(sweep(&self.writer.book, self.planner.desired(), run.now), run);
    }

    /// Frees the ids that no flow refers to any more, if it is time to look.
    fn reclaim(&mut self, run: &mut Run) {
        let gone = &self.writer.book.gone;
        if gone.is_empty() {
            self.reclaim_at = None;
            return;
        }
        let at = *self.reclaim_at.get_or_insert(run.now + self.settings.reclaim_interval);
        if at > run.now {
            return;
        }
        self.reclaim_at = Some(run.now + self.settings.reclaim_interval);
        match self.writer.store.referred(gone) {
            Ok(referred) => {
                let mut free = free_unreferred(&self.writer.book, self.planner.desired(), &referred);
                if free.len() > RECLAIMED_AT_ONCE {
                    free.truncate(RECLAIMED_AT_ONCE);
                    self.reclaim_at = Some(run.now + RECLAIM_PAUSE);
                }
                self.release(free, run);
            }
            Err(error) => tracing::warn!("looking for flows of backends that are gone, which goes on: {error}"),
        }
        if self.writer.book.gone.is_empty() {
            self.reclaim_at = None;
        }
    }

    /// One that failed is found again by the next look after its pause; nothing else waits for it.
    fn release(&mut self, ops: Vec<(PortKey, Op)>, run: &mut Run) {
        let mut changes = Vec::new();
        for (key, op) in ops {
            let Some(subject) = Released::by(&op).map(Subject::Release) else { continue };
            if !self.pending.waits(&subject, run.now) {
                let before = self.pending.take(&subject);
                changes.push(Change { subject, ops: vec![op], owner: Some(key), before });
            }
        }
        self.write(changes, run);
    }

    /// Notes the revision where all of it is in the tables. Where a write failed, what is noted already is written once more: this
    /// tells the failure of one subject from tables that cannot be written at all.
    fn note_programmed(&mut self, run: &mut Run) {
        let Some(revision) = self.revision else { return };
        run.report.revision = revision;
        let before = self.pending.take(&Subject::Note);
        let note = if self.pending.is_empty() {
            Op::WriteConfig { revision, programmed_ds: run.now.to_tenths() }
        } else if let (1.., Some(noted)) = (run.report.failed_writes, self.writer.book.config) {
            let revision = u64::from(noted.revision_high) << 32 | u64::from(noted.revision_low);
            Op::WriteConfig { revision, programmed_ds: noted.programmed_ds }
        } else {
            return;
        };
        let written = self.writer.note(&note).map_err(|error| format!("noting the revision: {error}"));
        if let (Err(error), true) = (&written, self.pending.is_empty()) {
            self.pending.put(Subject::Note, Trouble::Failed(error.clone()), before, &self.settings, run.now);
        }
        run.report.writable = Some(written);
    }
}

/// One run under way.
struct Run {
    report: Report,
    now: Monotonic,
}

#[cfg(test)]
#[path = "programmer_tests.rs"]
mod tests;
