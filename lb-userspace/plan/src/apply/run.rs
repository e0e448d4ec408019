//! One run of the programmer: it carries out a bounded part of what is wanted, and says what is left.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use super::{
    Programmer, Report, Store,
    backlog::Backlog,
    pending::Trouble,
    subject::{Released, Subject},
    writer::OpSequence,
};
use crate::plan::{
    Changes, Frontend, Obstacle, Op, diff_service, diff_vip, free_unreferred, part, sweep, withdrawals, work,
};
use lb_model::{Monotonic, PortKey, Protocol};

/// An id that is given up counts as so many endpoints: its counters are deleted one by one.
const WORK_OF_ID: usize = 8;
/// The pause before more ids of backends that are gone are freed, where one run does not free all.
const RECLAIM_PAUSE: Duration = Duration::from_millis(25);

/// One run under way.
pub(super) struct Run {
    report: Report,
    now: Monotonic,
}

impl<S: Store> Programmer<S> {
    /// Brings what changed and what waits to what is wanted, as much as one run handles; all else already is, waits, or is pending.
    pub(super) fn run(&mut self, changes: Changes, now: Monotonic) -> Report {
        self.last_run = now;
        let mut run = Run { report: Report::default(), now };
        self.tables.begin_run();
        // What has rested makes room, and what is given up below leaves nothing behind.
        self.sweep(&mut run);
        let services = self.choose(changes.services);
        self.services(services.clone(), &mut run);
        let vips = self.choose_vips(changes.vips, &services);
        self.vips(vips, &mut run);
        self.reclaim(&mut run);
        self.sweep(&mut run);
        self.pending.forget_releases(now);
        self.note_programmed(&mut run);
        let mut report = run.report;
        report.waiting = self.backlog.len();
        report.list(&self.pending, &self.planner.desired().refusals);
        report.describe(&self.writer.programmed, now);
        report
    }

    /// The service ports of this run. One that is removed while another takes over a frontend of it comes with that one.
    fn choose(&mut self, changed: BTreeSet<PortKey>) -> BTreeSet<PortKey> {
        let (desired, programmed) = (self.planner.desired(), &self.writer.programmed);
        let mut chosen = self.backlog.choose(changed, self.settings.run_max, |key| work(key, desired, programmed));
        let removed = chosen.iter().filter(|key| !desired.services.contains_key(key));
        let takers: BTreeSet<PortKey> = removed.flat_map(|key| self.takers(key)).cloned().collect();
        chosen.extend(takers.into_iter().filter(|key| self.backlog.take_service(key)));
        chosen
    }

    /// Service ports that are to have a frontend which `key` holds; itself, if it keeps one.
    fn takers(&self, key: &PortKey) -> impl Iterator<Item = &PortKey> {
        let (desired, programmed) = (self.planner.desired(), &self.writer.programmed);
        let held = programmed.services().by_key(key);
        let frontends = held.into_iter().flat_map(|service| &service.frontends);
        frontends.filter_map(|frontend| desired.owners.get(frontend))
    }

    /// The addresses of this run: none whose frontends still wait, since an address refuses what no frontend serves. `handled`: the
    /// service ports of this run.
    fn choose_vips(&mut self, changed: BTreeSet<IpAddr>, handled: &BTreeSet<PortKey>) -> BTreeSet<IpAddr> {
        let desired = self.planner.desired();
        let is_ready = |backlog: &Backlog, address| {
            let first = Frontend { address, port: 0, protocol: Protocol::Tcp };
            let wanted = desired.owners.range(first..).take_while(|(frontend, _)| frontend.address == address);
            !wanted.into_iter().any(|(_, owner)| backlog.has_service(owner))
        };
        let wanted = handled.iter().filter_map(|key| desired.services.get(key));
        let freed = wanted.flat_map(|wanted| wanted.frontends.keys().map(|frontend| frontend.address));
        self.backlog.choose_vips(changed, freed, self.settings.run_max, is_ready)
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
        // One that is larger than a part takes over with its last part.
        let (later, removed): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|key| self.takers(key).any(|taker| self.backlog.has_service(taker)));
        for key in later {
            self.backlog.add_service(key);
        }
        self.change(removed.into_iter().map(Subject::Service), run);
        // A loser may take frontends over itself, and so may one whose write failed just now: the losers of each come after it.
        let (mut takers, mut done) = (others.clone(), BTreeSet::new());
        while let Some(key) = takers.pop_first() {
            let losers = self.losers(&key);
            if losers.is_empty() || !done.insert(key.clone()) {
                continue;
            }
            others.remove(&key);
            self.change([Subject::Service(key)], run);
            let losers = losers.into_iter().filter(|loser| self.desired().services.contains_key(loser));
            for loser in losers.collect::<Vec<_>>() {
                takers.insert(loser.clone());
                others.insert(loser);
            }
        }
        self.change(others.into_iter().map(Subject::Service), run);
        for key in planned {
            if let Some(wanted) = self.planner.desired().services.get(&key) {
                self.writer.programmed.put_drain_limits(&key, wanted.drain_limits);
            }
        }
    }

    /// Service ports that hold a frontend which `key` is to have.
    fn losers(&self, key: &PortKey) -> Vec<PortKey> {
        let programmed = &self.writer.programmed;
        let wanted = self.desired().services.get(key);
        let frontends = wanted.into_iter().flat_map(|wanted| wanted.frontends.keys());
        let holders =
            frontends.filter_map(|frontend| programmed.services().get(programmed.frontends().get(frontend)?.id));
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
        let mut changes = Vec::new();
        for subject in subjects {
            let before = self.pending.take(&subject);
            let (desired, programmed) = (self.planner.desired(), &self.writer.programmed);
            let (planned_ops, owner) = match &subject {
                Subject::Service(key) => (
                    diff_service(key, desired, programmed, &mut self.tables, &self.settings, run.now),
                    Some(key.clone()),
                ),
                Subject::Vip(address) => {
                    let planned = diff_vip(*address, desired, programmed);
                    (planned.map(|op| op.into_iter().collect()).map_err(Obstacle::from), None)
                }
                Subject::Release(_) | Subject::Note => continue,
            };
            let mut ops = planned_ops.unwrap_or_else(|obstacle| {
                let owner = owner.as_ref();
                match obstacle {
                    Obstacle::NoRoom(refusal) => {
                        self.pending.put(subject.clone(), Trouble::NoRoom(refusal), before, &self.settings, run.now);
                    }
                    Obstacle::Unfinished => owner.cloned().into_iter().for_each(|key| self.backlog.add_service(key)),
                }
                owner.map(|key| withdrawals(key, desired, programmed, &self.settings, run.now)).unwrap_or_default()
            });
            let part = part(&ops, self.settings.run_max);
            if let Some(key) = owner.as_ref().filter(|_| part < ops.len()) {
                ops.truncate(part);
                self.backlog.add_service(key.clone());
            }
            let change = OpSequence { subject, ops, owner, before };
            self.writer.reserve(&change);
            changes.push(change);
        }
        self.write(changes, run);
    }

    fn write(&mut self, changes: Vec<OpSequence>, run: &mut Run) {
        for (change, reason) in self.writer.write(changes, run.now, &mut run.report) {
            let failed = Trouble::Failed(reason);
            self.pending.put(change.subject, failed, change.before, &self.settings, run.now);
        }
    }

    fn sweep(&mut self, run: &mut Run) {
        let programmed = &self.writer.programmed;
        self.pending.retain(|subject| match subject {
            Subject::Release(Released::Slots(base)) => programmed.slots().is_unused(*base),
            Subject::Release(Released::Backend(id)) => programmed.backends().gone().contains(id),
            Subject::Release(Released::Service(id)) => programmed.services().empty().contains(id),
            Subject::Service(_) | Subject::Vip(_) | Subject::Note => true,
        });
        let (ops, is_more) = self.bounded(sweep(&self.writer.programmed, self.planner.desired(), run.now), run.now);
        self.releases_left = is_more;
        self.release(ops, run);
    }

    /// As many of these releases as one run carries out, and whether there are more. One that failed is found again by the next look
    /// after its pause; nothing else waits for it.
    fn bounded(&self, ops: impl Iterator<Item = (PortKey, Op)>, now: Monotonic) -> (Vec<(PortKey, Op)>, bool) {
        let (mut taken, mut left) = (Vec::new(), self.settings.run_max);
        for (key, op) in ops {
            if Released::by(&op).is_none_or(|released| self.pending.waits(&Subject::Release(released), now)) {
                continue;
            }
            if left == 0 {
                return (taken, true);
            }
            left = left.saturating_sub(if matches!(op, Op::ReleaseSlots { .. }) { 1 } else { WORK_OF_ID });
            taken.push((key, op));
        }
        (taken, false)
    }

    /// Frees the ids that no flow refers to any more, if it is time to look.
    fn reclaim(&mut self, run: &mut Run) {
        let gone = self.writer.programmed.backends().gone();
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
                let free = free_unreferred(&self.writer.programmed, self.planner.desired(), &referred);
                let (free, is_more) = self.bounded(free, run.now);
                if is_more {
                    self.reclaim_at = Some(run.now + RECLAIM_PAUSE);
                }
                self.release(free, run);
            }
            Err(error) => tracing::warn!("looking for flows of backends that are gone, which goes on: {error}"),
        }
        if self.writer.programmed.backends().gone().is_empty() {
            self.reclaim_at = None;
        }
    }

    fn release(&mut self, ops: Vec<(PortKey, Op)>, run: &mut Run) {
        let mut changes = Vec::new();
        for (key, op) in ops {
            let Some(subject) = Released::by(&op).map(Subject::Release) else { continue };
            let before = self.pending.take(&subject);
            changes.push(OpSequence { subject, ops: vec![op], owner: Some(key), before });
        }
        self.write(changes, run);
    }

    /// Notes the revision where all of it is in the tables, and nothing waits. Where a write failed, what is noted already is written once more: this
    /// distinguishes the failure of one subject from tables that cannot be written at all.
    fn note_programmed(&mut self, run: &mut Run) {
        let Some(revision) = self.revision else { return };
        run.report.revision = revision;
        let before = self.pending.take(&Subject::Note);
        let note = if self.pending.is_empty() && self.backlog.is_empty() {
            Op::WriteConfig { revision, programmed_ds: run.now.to_tenths() }
        } else if let (1.., Some(noted)) = (run.report.failed_writes, self.writer.programmed.config()) {
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
