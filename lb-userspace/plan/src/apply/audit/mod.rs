//! Compares the tables with the programmed state, and repairs the drift.
//!
//! A bounded part of the tables at a time. The agent is their only writer and does not write meanwhile, so each comparison is exact, and none holds a
//! change up for long.

mod compare;
mod endpoints;
mod fields;
mod found;
mod inspect;
mod report;

use std::{
    collections::BTreeSet,
    ops::{Bound, Range as StdRange},
};

use lb_common::abi::backend_state;

use super::{Programmer, Store};
use crate::plan::{Changes, Loaded, Obstacle, Op, Part, Range, diff_service, diff_vip, work};
use found::{Found, Repair};
use lb_model::{Monotonic, PortKey};
use lb_tables::vip_filter;

pub use inspect::{inspect, read_all};
pub use report::{AuditReport, Finding, FindingKind};

/// So many service ports are compared in the time that it takes to write one.
const LOOKS_PER_WRITE: usize = 4;

/// Ids of backends that are read in one step, at most; many are not in use.
const IDS: u32 = 65_536;
/// Backends in use that are compared in one step, about.
const BACKENDS: usize = 4_096;
/// Ids of backends that are read together.
const IDS_TOGETHER: u32 = 2_048;
/// Slots that are compared in one step, but for those of one range, which are compared together.
const SLOTS: usize = 32_768;

/// One look at everything that the plan owns, part by part.
#[derive(Debug)]
pub struct Audit {
    dry_run: bool,
    left: Vec<Part>,
    /// The first id or slot of the part that was not looked at yet.
    from: u32,
    /// The last service port whose plan was compared, if there are more.
    planned_to: Option<PortKey>,
    report: AuditReport,
}

impl Audit {
    /// `dry_run`: what differs is named, and left as it is.
    pub fn new(dry_run: bool) -> Self {
        let mut left = Part::ALL.to_vec();
        left.reverse();
        Self { dry_run, left, from: 0, planned_to: None, report: AuditReport { dry_run, ..AuditReport::default() } }
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Goes on with the next part; the report, if it was the last step. A part is compared in as many steps as it takes.
    pub fn step<S: Store>(&mut self, programmer: &mut Programmer<S>, now: Monotonic) -> Option<AuditReport> {
        match self.left.last() {
            Some(Part::Plan) if programmer.has_snapshot() => {
                self.planned_to = programmer.audit_plan(self.planned_to.as_ref(), self.dry_run, now, &mut self.report);
                if self.planned_to.is_none() {
                    self.left.pop();
                }
            }
            Some(part) => {
                let next = programmer.audit_part(*part, self.from, self.dry_run, now, &mut self.report);
                self.from = next.unwrap_or_default();
                if next.is_none() {
                    self.left.pop();
                }
            }
            None => {}
        }
        self.left.is_empty().then(|| std::mem::take(&mut self.report))
    }
}

impl<S: Store> Programmer<S> {
    /// Looks at everything at once.
    pub fn audit(&mut self, dry_run: bool, now: Monotonic) -> AuditReport {
        let mut audit = Audit::new(dry_run);
        loop {
            if let Some(report) = audit.step(self, now) {
                return report;
            }
        }
    }

    /// Looks at one part, or at a bounded number of its entries `from` this id or slot on; returns where it goes on. Before the first
    /// snapshot there is nothing to compare with: what an agent before this one left is the truth until then.
    fn audit_part(
        &mut self,
        part: Part,
        from: u32,
        dry_run: bool,
        now: Monotonic,
        report: &mut AuditReport,
    ) -> Option<u32> {
        if !self.has_snapshot() {
            return None;
        }
        let (loaded, read) = match self.read_part(part, from) {
            Ok(read) => read,
            Err(error) => {
                report.failures.push(error.to_string());
                return None;
            }
        };
        let programmed = &self.writer.programmed;
        report.checked += compare::size(part, programmed, &read);
        let mut found = compare::compare(part, programmed, &loaded, &read);
        found.retain(|found| !self.waits_for_a_name(part, found));
        let next = Some(read.end).filter(|end| *end < u32::MAX);
        if dry_run {
            report.findings.extend(found.into_iter().map(|found| found.finding));
            return next;
        }
        for Found { mut finding, repair } in found {
            match self.repair(&repair, now) {
                Ok(()) => finding.repaired = true,
                Err(error) => report.failures.push(format!("{finding}: {error}")),
            }
            report.findings.push(finding);
        }
        if part == Part::VipFilter {
            // Addresses of services that are gone are ruled out again.
            self.writer.store.write_vip_filter(&vip_filter::all_but(self.writer.programmed.addresses()));
        }
        next
    }

    /// Whether a name leads elsewhere because a write of its service port waits: that write decides whose name it is.
    fn waits_for_a_name(&self, part: Part, found: &Found) -> bool {
        let (Part::Endpoints(_), Repair::Write(Op::WriteBackend { record, .. })) = (part, &found.repair) else {
            return false;
        };
        let service = self.writer.programmed.services().get(record.service);
        service.is_some_and(|it| self.pending.has_service(&it.key) || self.backlog.has_service(&it.key))
    }

    /// Reads a bounded number of backends or slots, or all of another part, and says which ids or slots these are. Their end is the
    /// largest number if there are no more.
    fn read_part(&self, part: Part, from: u32) -> Result<(Loaded, StdRange<u32>), super::StoreError> {
        let (mut loaded, mut read) = (Loaded::default(), from..u32::MAX);
        let (store, programmed) = (&self.writer.store, &self.writer.programmed);
        match part {
            Part::Backends(family) => {
                let (capacity, mut end) = (store.capacities().of(part), from);
                while end < capacity && end - from < IDS && loaded.backends.len() < BACKENDS {
                    let ids = end..capacity.min(end + IDS_TOGETHER);
                    end = ids.end;
                    store.load_backends(family, ids, &mut loaded)?;
                }
                if end < capacity {
                    read.end = end;
                }
            }
            Part::Slots => {
                let (mut ranges, mut taken): (Vec<Range>, usize) = (Vec::new(), 0);
                for (base, slots) in programmed.slots().live(from) {
                    if taken >= SLOTS {
                        read.end = base;
                        break;
                    }
                    taken += slots.len();
                    ranges.push(Range { base, count: u32::try_from(slots.len()).unwrap_or(u32::MAX) });
                }
                let slots = store.slots(&ranges)?;
                loaded.slots = ranges.into_iter().zip(slots).collect();
            }
            Part::Names
            | Part::Endpoints(_)
            | Part::Sources(_)
            | Part::Services(_)
            | Part::Vips(_)
            | Part::VipFilter
            | Part::Config
            | Part::Plan => store.load_part(part, &mut loaded)?,
        }
        Ok((loaded, read))
    }

    /// Writes the programmed state once more. That state itself stays as it is, but for the generation of an id that somebody else
    /// used: its next use must have another one.
    fn repair(&mut self, repair: &Repair, now: Monotonic) -> Result<(), super::StoreError> {
        match repair {
            Repair::Write(op) => self.writer.store.apply(op),
            Repair::Free(op) => {
                self.writer.store.apply(op)?;
                self.writer.note_free(op, now);
                Ok(())
            }
            Repair::Stray(stray) => self.writer.store.remove_stray(stray),
        }
    }

    /// Whether what is written is what is wanted, for all that is not pending or due: a part of the service ports, behind `from`. Returns
    /// the last one of the part; `None`: it was the last part, and the addresses are compared as well.
    fn audit_plan(
        &mut self,
        from: Option<&PortKey>,
        dry_run: bool,
        now: Monotonic,
        report: &mut AuditReport,
    ) -> Option<PortKey> {
        let part = self.audited_ports(from);
        let (desired, programmed) = (self.planner.desired(), &self.writer.programmed);
        let mut behind = Changes::default();
        self.tables.begin_run();
        for key in &part {
            let waits = self.is_due(key, now) || self.pending.has_service(key) || self.backlog.has_service(key);
            if waits {
                continue;
            }
            match diff_service(key, desired, programmed, &mut self.tables, &self.settings, now) {
                // One audit later it is finished.
                Err(Obstacle::Unfinished) => {}
                Ok(ops) if ops.is_empty() => {}
                Ok(_) | Err(Obstacle::NoRoom(_)) => drop(behind.services.insert(key.clone())),
            }
        }
        report.checked += part.iter().filter(|key| desired.services.contains_key(key)).count();
        let last = part.last().cloned();
        if last.is_none() {
            let removed = programmed.vips().addresses().filter(|address| !desired.vips.contains_key(address));
            for address in desired.vips.keys().copied().chain(removed) {
                let waits = self.pending.has_vip(address) || self.backlog.has_vip(address);
                if !waits && !matches!(diff_vip(address, desired, programmed), Ok(None)) {
                    behind.vips.insert(address);
                }
            }
        }
        self.catch_up(behind, dry_run, now, report);
        last
    }

    /// Whether the deadline of one of its backends has passed.
    fn is_due(&self, key: &PortKey, now: Monotonic) -> bool {
        let programmed = &self.writer.programmed;
        let service = programmed.services().by_key(key);
        let records =
            service.into_iter().flat_map(|service| &service.backends).filter_map(|id| programmed.backends().get(*id));
        records.into_iter().any(|record| record.state != backend_state::GONE && record.is_evictable(now))
    }

    /// Service ports that are wanted or written, the next ones behind `from`: a part that is soon looked at.
    fn audited_ports(&self, from: Option<&PortKey>) -> Vec<PortKey> {
        let (desired, programmed) = (self.planner.desired(), &self.writer.programmed);
        let max = self.settings.run_max.saturating_mul(LOOKS_PER_WRITE);
        let range = (from.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let wanted = desired.services.range(range).map(|(key, _)| key).take(max);
        let written = programmed.services().ids().range(range).map(|(key, _)| key).take(max);
        let keys: BTreeSet<&PortKey> = wanted.chain(written).collect();
        let mut done = 0;
        let part = keys.into_iter().take_while(|key| {
            let goes_on = done < max;
            done += work(key, desired, programmed);
            goes_on
        });
        part.cloned().collect()
    }

    /// Names what is behind, and writes it unless this is a dry run.
    fn catch_up(&mut self, behind: Changes, dry_run: bool, now: Monotonic, report: &mut AuditReport) {
        let of = |entry: String| Finding {
            kind: FindingKind::Behind,
            table: "plan".to_owned(),
            entry,
            service: None,
            difference: "what is written is not what is wanted".to_owned(),
            repaired: false,
        };
        let services = behind.services.iter().map(|key| of(format!("Service {key}")));
        let mut findings: Vec<Finding> =
            services.chain(behind.vips.iter().map(|address| of(format!("address {address}")))).collect();
        if !dry_run && !findings.is_empty() {
            let run = self.run(behind, now);
            for finding in &mut findings {
                finding.repaired = run.failed_writes == 0;
            }
            if run.failed_writes > 0 {
                report.failures.extend(run.failures);
            }
        }
        report.findings.extend(findings);
    }
}

#[cfg(test)]
mod damage;
#[cfg(test)]
mod tests;
