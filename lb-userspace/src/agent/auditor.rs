//! When the tables are audited, and what is kept of it: on a timer and on demand, one part at a time between other work.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::clock;
use crate::observe::report;
use lb_datapath::Fault;
use lb_plan::apply::{Audit, AuditReport, Finding, FindingKind, Programmer, Store};

/// How many may wait for an audit of their own.
pub const REQUESTS: usize = 4;

/// Somebody wants an audit now.
#[derive(Debug)]
pub struct Request {
    /// Only say what differs.
    pub dry_run: bool,
    pub reply: oneshot::Sender<AuditReport>,
}

/// A way to ask for audits.
pub type Requests = mpsc::Sender<Request>;

/// The audits of the running agent.
#[derive(Debug)]
pub(super) struct Auditor {
    /// `None`: only on demand.
    interval: Option<Duration>,
    next: Option<Instant>,
    waiting: VecDeque<Request>,
    running: Option<Running>,
    /// Who looks at the attachments; `None`: nobody.
    attachments: Option<lb_datapath::Auditor>,
    seen: report::AuditReport,
}

#[derive(Debug)]
struct Running {
    audit: Audit,
    started: Instant,
    reply: Option<oneshot::Sender<AuditReport>>,
    /// The findings in the tables, once all of them were compared.
    tables: Option<AuditReport>,
    /// The answer of who looks at the attachments.
    attachments: Option<oneshot::Receiver<Vec<Fault>>>,
}

impl Running {
    fn new(request: Option<Request>, attachments: Option<&lb_datapath::Auditor>, now: Instant) -> Self {
        let dry_run = request.as_ref().is_some_and(|request| request.dry_run);
        Self {
            audit: Audit::new(dry_run),
            started: now,
            reply: request.map(|request| request.reply),
            tables: None,
            attachments: attachments.map(|attachments| attachments.ask(dry_run)),
        }
    }

    /// One part of the tables; then the attachments, when their answer is there.
    fn step<S: Store>(&mut self, programmer: &mut Programmer<S>) -> Option<AuditReport> {
        if self.tables.is_none() {
            self.tables = self.audit.step(programmer, clock::monotonic());
        }
        let mut found = self.tables.take()?;
        match self.attachments.as_mut().map(oneshot::Receiver::try_recv) {
            None => {}
            Some(Ok(faults)) => found.findings.extend(faults.iter().map(finding)),
            Some(Err(TryRecvError::Empty)) => {
                self.tables = Some(found);
                return None;
            }
            Some(Err(TryRecvError::Closed)) => {
                found
                    .failures
                    .push("the attachments could not be looked at: the interfaces are not followed".to_owned());
            }
        }
        Some(found)
    }
}

fn finding(fault: &Fault) -> Finding {
    Finding {
        kind: if fault.is_replaced { FindingKind::Edited } else { FindingKind::Missing },
        table: fault.table.to_owned(),
        entry: fault.entry.clone(),
        service: None,
        difference: match fault.table {
            _ if !fault.is_replaced => String::new(),
            Fault::ATTACHMENTS => "another program hangs there".to_owned(),
            _ => "it is not as it was written".to_owned(),
        },
        repaired: fault.is_repaired,
    }
}

impl Auditor {
    pub fn new(interval: Option<Duration>, attachments: Option<lb_datapath::Auditor>, now: Instant) -> Self {
        let next = interval.map(|interval| now + interval);
        Self {
            interval,
            next,
            waiting: VecDeque::new(),
            running: None,
            attachments,
            seen: report::AuditReport::default(),
        }
    }

    pub fn request(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// When the next step is due; `None`: not before somebody asks.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if self.running.is_some() || !self.waiting.is_empty() { Some(now) } else { self.next }
    }

    /// Does one step, if one is due. What an audit on the timer, or one that repairs, found is in the result when it ends.
    pub fn step<S: Store>(&mut self, programmer: &mut Programmer<S>, now: Instant) -> Option<report::AuditReport> {
        let mut running = self.running.take().or_else(|| self.start(now))?;
        let Some(found) = running.step(programmer) else {
            self.running = Some(running);
            return None;
        };
        let took = now.saturating_duration_since(running.started);
        let counts = !running.audit.is_dry_run();
        if let Some(reply) = running.reply {
            // Who asked may have gone away.
            let _ = reply.send(found.clone());
        }
        counts.then(|| {
            self.note(&found, took);
            self.seen.clone()
        })
    }

    fn start(&mut self, now: Instant) -> Option<Running> {
        if let Some(request) = self.waiting.pop_front() {
            return Some(Running::new(Some(request), self.attachments.as_ref(), now));
        }
        if self.next.is_none_or(|at| at > now) {
            return None;
        }
        self.next = self.interval.map(|interval| now + interval);
        Some(Running::new(None, self.attachments.as_ref(), now))
    }

    fn note(&mut self, found: &AuditReport, took: Duration) {
        let seen = &mut self.seen;
        seen.runs += 1;
        seen.took_seconds = took.as_secs_f64();
        seen.checked = found.checked as u64;
        seen.found = found.findings.len() as u64;
        let findings = found.findings.iter().take(report::AuditReport::FINDINGS);
        seen.findings = findings.map(ToString::to_string).collect();
        seen.last_error = found.failures.first().cloned();
        add(&mut seen.drift, found.counts());
        add(&mut seen.repaired, found.repairs());
    }
}

fn add(totals: &mut BTreeMap<String, BTreeMap<String, u64>>, counts: BTreeMap<(&str, FindingKind), u64>) {
    for ((table, kind), count) in counts {
        *totals.entry(table.to_owned()).or_default().entry(kind.name().to_owned()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_plan::apply::MemoryStore;
    use lb_plan::plan::{Capacities, PlanSettings};

    fn programmer() -> Programmer<MemoryStore> {
        let store = MemoryStore::new(Capacities::all(16));
        Programmer::restore(store, PlanSettings::default(), clock::monotonic()).expect("readable")
    }

    /// Steps until an audit ends; how many it took.
    fn finish(auditor: &mut Auditor, programmer: &mut Programmer<MemoryStore>, now: Instant) -> (usize, u64) {
        for steps in 1..100 {
            if let Some(report) = auditor.step(programmer, now) {
                return (steps, report.runs);
            }
        }
        panic!("it never ends");
    }

    #[tokio::test(start_paused = true)]
    async fn an_audit_comes_with_its_period_and_in_slices() {
        let (mut programmer, start) = (programmer(), Instant::now());
        let mut auditor = Auditor::new(Some(Duration::from_secs(30)), None, start);
        assert_eq!(auditor.due(start), Some(start + Duration::from_secs(30)));
        assert!(auditor.step(&mut programmer, start).is_none());
        let later = start + Duration::from_secs(31);
        let (steps, runs) = finish(&mut auditor, &mut programmer, later);
        assert!(steps > 3 && runs == 1, "{steps} {runs}");
        assert_eq!(auditor.due(later), Some(later + Duration::from_secs(30)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_answered_also_when_the_timer_is_off() {
        let (mut programmer, now) = (programmer(), Instant::now());
        let mut auditor = Auditor::new(None, None, now);
        assert_eq!(auditor.due(now), None);
        let (reply, mut answer) = oneshot::channel();
        auditor.request(Request { dry_run: true, reply });
        assert_eq!(auditor.due(now), Some(now));
        for _ in 0..100 {
            assert!(auditor.step(&mut programmer, now).is_none(), "a dry run is not noted");
        }
        assert!(answer.try_recv().expect("answered").dry_run);
        assert_eq!(auditor.due(now), None);
    }
}
