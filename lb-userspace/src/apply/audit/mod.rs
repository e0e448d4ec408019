//! Compares what the tables hold with the book of what was written, and puts right what differs.
//!
//! One part of the tables at a time: the agent is their only writer and does not write meanwhile, so each comparison is exact,
//! and none holds a change up for long.

mod compare;
mod endpoints;
mod fields;
mod inspect;
mod report;

use super::{Programmer, Store};
use crate::{
    maps::strangers,
    model::{Family, Monotonic},
    plan::{Changes, Loaded, Part, Range, diff_service, diff_vip},
};
use compare::{Found, Repair};

pub use inspect::{inspect, read_all};
pub use report::{AuditReport, Finding, FindingKind};

/// One look at everything that the plan owns, part by part.
#[derive(Debug)]
pub struct Audit {
    dry_run: bool,
    left: Vec<Part>,
    report: AuditReport,
}

impl Audit {
    /// `dry_run`: what differs is named, and left as it is.
    pub fn new(dry_run: bool) -> Self {
        let mut left = Part::ALL.to_vec();
        left.reverse();
        Self { dry_run, left, report: AuditReport { dry_run, ..AuditReport::default() } }
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Looks at the next part; the report, if it was the last one.
    pub fn step<S: Store>(&mut self, programmer: &mut Programmer<S>, now: Monotonic) -> Option<AuditReport> {
        if let Some(part) = self.left.pop() {
            programmer.audit_part(part, self.dry_run, now, &mut self.report);
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

    /// Looks at one part. Before the first snapshot there is nothing to compare with: what an agent before this one left is
    /// the truth until then.
    fn audit_part(&mut self, part: Part, dry_run: bool, now: Monotonic, report: &mut AuditReport) {
        if !self.has_snapshot() {
            return;
        }
        if part == Part::Plan {
            self.audit_plan(dry_run, now, report);
            return;
        }
        let loaded = match self.read_part(part) {
            Ok(loaded) => loaded,
            Err(error) => {
                report.failures.push(error.to_string());
                return;
            }
        };
        let book = &self.writer.book;
        report.checked += compare::size(part, book);
        let found = compare::compare(part, book, &loaded);
        if dry_run {
            report.findings.extend(found.into_iter().map(|found| found.finding));
            return;
        }
        for Found { mut finding, repair } in found {
            match self.repair(&repair, now) {
                Ok(()) => finding.repaired = true,
                Err(error) => report.failures.push(format!("{finding}: {error}")),
            }
            report.findings.push(finding);
        }
        if part == Part::Strangers {
            // Addresses of services that are gone are strangers again.
            self.writer.store.write_strangers(&strangers::all_but(self.writer.book.addresses()));
        }
    }

    fn read_part(&self, part: Part) -> Result<Loaded, super::StoreError> {
        let mut loaded = Loaded::default();
        if part == Part::Slots {
            let live = self.writer.book.live_ranges();
            let count = |slots: &Vec<_>| u32::try_from(slots.len()).unwrap_or(u32::MAX);
            let ranges: Vec<Range> = live.map(|(base, slots)| Range { base, count: count(slots) }).collect();
            let slots = self.writer.store.slots(&ranges)?;
            loaded.slots = ranges.into_iter().zip(slots).collect();
        } else {
            self.writer.store.load_part(part, &mut loaded)?;
        }
        Ok(loaded)
    }

    /// Writes what the book holds once more. The book itself stays as it is, but for the generation of an id that somebody else
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

    /// Whether what is written is what is wanted, for all that is not pending or due.
    fn audit_plan(&mut self, dry_run: bool, now: Monotonic, report: &mut AuditReport) {
        let (desired, book) = (self.planner.desired(), &self.writer.book);
        let due = self.struck(now);
        let mut behind = Changes::default();
        let removed = book.service_ids.keys().filter(|key| !desired.services.contains_key(key));
        for key in desired.services.keys().chain(removed) {
            let waits = due.contains(key) || self.pending.has_service(key);
            if !waits && !diff_service(key, desired, book, &self.settings, now).is_ok_and(|ops| ops.is_empty()) {
                behind.services.insert(key.clone());
            }
        }
        let removed = book.vips.keys().filter(|address| !desired.vips.contains_key(address));
        for address in desired.vips.keys().chain(removed) {
            if !self.pending.has_vip(*address) && !matches!(diff_vip(*address, desired, book), Ok(None)) {
                behind.vips.insert(*address);
            }
        }
        report.checked += desired.services.len();
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

/// Families by their tables' names.
fn by_family<'a>(family: Family, v4: &'a str, v6: &'a str) -> &'a str {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

#[cfg(test)]
mod tests;
