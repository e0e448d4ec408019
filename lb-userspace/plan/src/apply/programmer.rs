//! Keeps the tables at what the last snapshot wants: level-triggered, so a failure is only a reason to come again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::Bound,
};

use super::{
    ApplyError, Report, Store, backlog::Backlog, endpoints, pending::Pending, subject::Subject, writer::Writer,
};
use crate::plan::{
    BackendId, Changes, Desired, DesiredService, Hold, Inputs, MaglevTables, NodeFacts, Part, PlanSettings, Planner,
    ProgrammedState, restore,
};
use lb_model::{Family, Monotonic, ObjectName, PortKey, Snapshot};
use lb_tables::vip_filter;

/// Writes the tables of one store.
#[derive(Debug)]
pub struct Programmer<S> {
    pub(super) writer: Writer<S>,
    pub(super) settings: PlanSettings,
    pub(super) planner: Planner,
    pub(super) tables: MaglevTables,
    /// Of the last snapshot. `None` until the first one: nothing is programmed, and nothing removed, before.
    pub(super) revision: Option<u64>,
    pub(super) pending: Pending,
    /// What no run has had time for yet.
    pub(super) backlog: Backlog,
    /// The last deadline that was handled, if more that passed are still to be.
    passed_to: Option<(u32, BackendId)>,
    /// More is to be released than one run does.
    pub(super) releases_left: bool,
    pub(super) last_run: Monotonic,
    /// When ids of backends that are gone are next looked for in the flow tables.
    pub(super) reclaim_at: Option<Monotonic>,
}

impl<S: Store> Programmer<S> {
    /// Takes over what the tables hold. Writes nothing but the VIP filter: what a version wrote that knows of none
    /// counts, too, before any program of this one runs.
    pub fn restore(mut store: S, mut settings: PlanSettings, now: Monotonic) -> Result<Self, ApplyError> {
        let mut loaded = store.load()?;
        endpoints::distrust_unnamed(&mut loaded);
        let capacities = store.capacities();
        settings.slots = capacities.of(Part::Slots);
        // Two that begin alike cannot both be ours: the larger one shows which frontends to write again.
        let ranges: BTreeMap<u32, _> =
            loaded.ranges(settings.slots).into_iter().map(|range| (range.base, range)).collect();
        let ranges: Vec<_> = ranges.into_values().collect();
        let slots = store.slots(&ranges)?;
        loaded.slots = ranges.into_iter().zip(slots).collect();
        store.write_vip_filter(&vip_filter::all_but(loaded.addresses()));
        let mut programmed = restore(capacities, loaded);
        programmed.guess_drains(settings.drain_limits.period);
        let reclaim_at = (!programmed.backends().gone().is_empty()).then(|| now + settings.reclaim_interval);
        Ok(Self {
            writer: Writer { store, programmed, grace: settings.slot_grace },
            planner: Planner::new(settings.clone()),
            tables: MaglevTables::default(),
            settings,
            revision: None,
            pending: Pending::default(),
            backlog: Backlog::default(),
            passed_to: None,
            releases_left: false,
            last_run: now,
            reclaim_at,
        })
    }

    /// Brings the tables to what the snapshot wants; costs what it changes. What fails or finds no room is in the report, and
    /// comes again with [`Self::tick`]. So does what is more than one run handles ([`PlanSettings::run_max`]); everything else is done.
    pub fn sync(&mut self, snapshot: &Snapshot, facts: &NodeFacts, now: Monotonic) -> Report {
        if self.revision.is_none() {
            self.planner.hold(Hold::of(&self.writer.programmed, &snapshot.unread));
        }
        let mut changes = self.planner.update(snapshot, facts);
        let programmed = &self.writer.programmed;
        // A service port may have kept one for another that never got it.
        let holders = changes
            .unwanted
            .iter()
            .filter_map(|frontend| programmed.services().get(programmed.frontends().get(frontend)?.id));
        changes.services.extend(holders.map(|holder| holder.key.clone()));
        if self.revision.replace(snapshot.revision).is_none() {
            // Whatever an agent before this one left.
            changes.services.extend(self.writer.programmed.services().ids().keys().cloned());
            changes.vips.extend(self.writer.programmed.vips().addresses());
        }
        self.add_pending(&mut changes, now);
        self.run(changes, now)
    }

    /// Does what is due: deadlines that have passed, slot ranges whose pause is over, retries. Does nothing before the
    /// first snapshot.
    pub fn tick(&mut self, now: Monotonic) -> Report {
        if self.revision.is_none() {
            return Report::default();
        }
        let passed = self.next_passed(now);
        let ended =
            self.writer.programmed.drains().idle().filter(|id| self.drained_at(**id).is_some_and(|at| at <= now));
        let due = passed.iter().map(|(_, id)| id).chain(ended);
        let mut changes = Changes { services: self.ports_of(due), ..Changes::default() };
        self.passed_to = passed.last().copied().filter(|_| passed.len() >= self.settings.run_max);
        self.add_pending(&mut changes, now);
        self.run(changes, now)
    }

    /// When [`Self::tick`] has something to do; `None`: not before the next snapshot.
    pub fn next_tick(&self) -> Option<Monotonic> {
        self.revision?;
        if !self.backlog.is_empty() || self.passed_to.is_some() || self.releases_left {
            return Some(self.last_run);
        }
        // What was due and is still there comes with the retry.
        let due = |at: Monotonic| match self.pending.retry_at() {
            _ if at > self.last_run => at,
            Some(retry) => retry,
            None => self.last_run + self.settings.retry_min,
        };
        let programmed = &self.writer.programmed;
        let deadline = |(tenths, _): &(u32, _)| Monotonic::from_tenths(*tenths);
        let first = programmed.backends().deadlines().first().map(deadline);
        // Skips all that have passed: they may be very many.
        let later = programmed
            .backends()
            .deadlines()
            .range((self.last_run.to_tenths(), BackendId { family: Family::V4, id: 0 })..);
        let next = later.map(deadline).find(|at| *at > self.last_run);
        let drained = programmed.drains().idle().filter_map(|id| self.drained_at(*id)).min();
        let release = programmed.slots().unused().first().map(|(until, _)| *until);
        let timed = [first, next, drained, release, self.reclaim_at].into_iter().flatten().map(due);
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

    pub fn programmed(&self) -> &ProgrammedState {
        &self.writer.programmed
    }

    /// Takes down which of the backends that drain have no flow left.
    pub fn note_idle(&mut self, idle: &BTreeSet<BackendId>) {
        self.writer.programmed.note_idle(idle);
    }

    /// Ids of backends that are gone are looked for with the next tick: the store knows more of them now.
    pub fn reclaim_soon(&mut self, now: Monotonic) {
        if !self.writer.programmed.backends().gone().is_empty() {
            self.reclaim_at = Some(now);
        }
    }

    /// Whether the service is served as an agent before this one wrote it.
    pub fn holds(&self, service: &ObjectName) -> bool {
        self.planner.holds(service)
    }

    /// Services with a port whose change failed, or that a table has no room for.
    pub fn unprogrammed(&self) -> BTreeSet<ObjectName> {
        self.pending.services().map(|key| key.service.clone()).collect()
    }

    /// Cluster IPs that a link of the node has: the node answers there by itself.
    pub fn local_cluster_ips(&self) -> &BTreeSet<IpAddr> {
        self.planner.local_cluster_ips()
    }

    /// What is wanted.
    pub fn desired(&self) -> &Desired {
        self.planner.desired()
    }

    /// What is planned by, besides the snapshot.
    pub fn inputs(&self, facts: &NodeFacts) -> Inputs {
        Inputs { facts: facts.clone(), settings: self.settings.clone(), hold: self.planner.held().clone() }
    }

    /// Wanted service ports whose endpoints are checked.
    pub fn checked(&self) -> impl Iterator<Item = (&PortKey, &DesiredService)> {
        self.planner.checked()
    }

    /// Wanted service ports with problems of their endpoints; `None`: they are the same as when this was asked last.
    pub fn new_problems(&mut self) -> Option<impl Iterator<Item = (&PortKey, &DesiredService)>> {
        self.planner.take_new_problems().then(|| self.planner.troubled())
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

    /// As many of the passed deadlines as one run handles, after those of the runs just before.
    fn next_passed(&self, now: Monotonic) -> Vec<(u32, BackendId)> {
        let from = self.passed_to.map_or(Bound::Unbounded, Bound::Excluded);
        let due = self
            .writer
            .programmed
            .backends()
            .deadlines()
            .range((from, Bound::Unbounded))
            .take_while(|one| has_passed(one, now));
        due.take(self.settings.run_max).copied().collect()
    }

    /// When the drain period of the backend ends.
    fn drained_at(&self, id: BackendId) -> Option<Monotonic> {
        self.writer.programmed.backends().get(id).map(|record| Monotonic::from_tenths(record.drain_ds))
    }

    /// The service ports of these backends.
    fn ports_of<'a>(&self, ids: impl Iterator<Item = &'a BackendId>) -> BTreeSet<PortKey> {
        let programmed = &self.writer.programmed;
        let records = ids.filter_map(|id| programmed.backends().get(*id));
        let services: BTreeSet<u32> = records.map(|record| record.service).collect();
        services.iter().filter_map(|id| programmed.services().get(*id)).map(|service| service.key.clone()).collect()
    }
}

fn has_passed((tenths, _): &(u32, BackendId), now: Monotonic) -> bool {
    Monotonic::from_tenths(*tenths) <= now
}

#[cfg(test)]
#[path = "programmer_tests.rs"]
mod tests;
