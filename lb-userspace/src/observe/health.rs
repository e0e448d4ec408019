//! Healthy or not, and why: pure judgement over what the runtime knows.
//!
//! `/healthz` is probed by load balancers, so it fails only for this node's own faults. A lost API reddens `/readyz`, or one API outage would take
//! every node out of every load balancer. `/livez` fails only for what a restart may heal: a runtime whose heartbeat stops, and tables that cannot be
//! written at all. A subject (a service, an address) whose writes fail for long makes the node not ready, whichever map refuses them. It fails no other
//! probe, since a restart would find the same. A change that the plan refuses for want of room is no failed write.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::report::{HealthReport, Report};

/// The longest interval of the runtime's heartbeat.
pub const BEAT: Duration = Duration::from_secs(5);

/// From when on something is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A runtime without a heartbeat for this long is stuck: it has one at least every [`BEAT`].
    pub stuck_after: Duration,
    /// Tables that could not be written at all for this long, or one subject that could not: several attempts have failed.
    pub behind_after: Duration,
    /// How long the first sync may take where the tables of the agent before serve meanwhile.
    pub first_sync_grace: Duration,
    /// How old the last proof of a stale source may be for `/healthz`; `None`: it is no matter of `/healthz`.
    pub fail_stale: Option<Duration>,
}

/// One of the questions that the health server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Healthz,
    Livez,
    Readyz,
}

/// One IP family in an answer, as kube-proxy has it. Both families are programmed together.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FamilyHealth {
    pub last_updated: Timestamp,
    pub healthy: bool,
}

/// Body of an answer: the fields of kube-proxy 1.36, and ours where something is wrong.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// When the tables were last in step; now, if healthy (as kube-proxy has it).
    pub last_updated: Timestamp,
    pub current_time: Timestamp,
    /// Not part of `/livez`, as with kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_eligible: Option<bool>,
    /// Nothing of what this path asks for is wrong; an ineligible node is no fault.
    pub healthy: bool,
    /// By IP family; empty until the tables were in step once.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub status: BTreeMap<&'static str, FamilyHealth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What everybody may know.
    pub general: &'static str,
    /// The fault with errors, paths and addresses, for the node's administrators.
    pub text: String,
}

impl Fault {
    fn new(general: &'static str, text: impl Into<String>) -> Self {
        Self { general, text: text.into() }
    }
}

/// What a restart may heal. `since_beat`: how long ago the runtime turned.
fn dead(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Vec<Fault> {
    let mut faults = Vec::new();
    if since_beat > thresholds.stuck_after {
        let text = format!("the agent's runtime has not turned for {} s", since_beat.as_secs());
        faults.push(Fault::new("the agent is stuck", text));
    }
    if let (Some(seconds), Some(error)) = (report.tables.unwritable_seconds, &report.tables.unwritable)
        && seconds >= thresholds.behind_after.as_secs_f64()
    {
        faults.push(Fault::new(UNWRITABLE, format!("{UNWRITABLE} for {seconds:.0} s: {error}")));
    }
    faults
}

const UNWRITABLE: &str = "the tables cannot be written";
const UNWRITTEN: &str = "a change cannot be written to the tables";
const UNSYNCED: &str = "the first sync is not finished";
const UNATTACHED: &str = "interfaces have not been looked at yet";
const STALE: &str = "the source is stale";

/// Faults of this node itself; that it is leaving is none.
fn own_faults(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Vec<Fault> {
    let mut faults = dead(report, since_beat, thresholds);
    // What the agent before left behind serves on: load balancers need not see a restart.
    let in_grace = report.tables.inherited && report.uptime_seconds < thresholds.first_sync_grace.as_secs_f64();
    // What keeps this node from listing (an API that is away, revoked rights, an error of the server) keeps all nodes from it.
    let excused = in_grace || (report.tables.inherited && has_source_error(report));
    if !report.tables.synced && !excused {
        faults.push(Fault::new(UNSYNCED, format!("{UNSYNCED}: services and endpoints have not both been listed")));
    }
    if !report.datapath.synced && !in_grace {
        faults.push(Fault::new(UNATTACHED, UNATTACHED));
    }
    let problems = report.datapath.node_problems.iter();
    faults.extend(problems.map(|problem| Fault::new("a program is not attached", format!("not attached: {problem}"))));
    if let Some(seconds) = report.source.wedged_seconds {
        let text = format!(
            "a watch is dead for {seconds:.0} s, though the API answers other requests: endpoints may be out of date here alone"
        );
        faults.push(Fault::new("a watch is dead, though the API answers other requests", text));
    }
    if let (Some(limit), Some(reason)) = (thresholds.fail_stale, &report.source.stale)
        && report.source.oldest_age_seconds() >= limit.as_secs_f64()
    {
        let text = format!("{STALE} for longer than --healthz-fail-stale allows: {reason}");
        faults.push(Fault::new("the source is stale for longer than --healthz-fail-stale allows", text));
    }
    faults
}

/// Nothing can be listed, and it is known why.
fn has_source_error(report: &Report) -> bool {
    report.source.api_reachable == Some(false) || report.source.last_error.is_some()
}

/// What makes this node not ready beside its own faults: tables or subjects that cannot be written, and a stale source.
fn not_ready(report: &Report, own: &[Fault], thresholds: &Thresholds) -> Vec<Fault> {
    let mut faults = Vec::new();
    let limit = thresholds.behind_after.as_secs_f64();
    let lately = report.tables.unwritable_seconds.is_some_and(|seconds| seconds < limit);
    if let (true, Some(error)) = (lately, &report.tables.unwritable) {
        faults.push(Fault::new(UNWRITABLE, format!("{UNWRITABLE}: {error}")));
    }
    if let (None, Some(seconds)) = (&report.tables.unwritable, report.tables.behind_seconds)
        && seconds > limit
    {
        let error = report.tables.last_error.as_deref().unwrap_or_default();
        faults.push(Fault::new(UNWRITTEN, format!("{UNWRITTEN} for {seconds:.0} s: {error}")));
    }
    let is_known = |general| own.iter().any(|fault| fault.general == general);
    // Not ready from the first moment on, though load balancers need not see it yet.
    if !report.tables.synced && !is_known(UNSYNCED) {
        faults.push(Fault::new(UNSYNCED, format!("{UNSYNCED}; what the agent before left in the tables is served")));
    }
    if !report.datapath.synced && !is_known(UNATTACHED) {
        faults.push(Fault::new(UNATTACHED, format!("{UNATTACHED}; what the agent before attached is at work")));
    }
    if report.source.wedged_seconds.is_none() {
        faults.extend(report.source.stale.iter().map(|reason| Fault::new(STALE, format!("{STALE}: {reason}"))));
    }
    faults
}

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A process of this node: errors, paths and addresses are shown.
    Node,
    /// Everybody who reaches the node: faults are named in general terms.
    Everybody,
}

/// So many faults are named in one answer.
const FAULTS_MAX: usize = 20;

/// What is wrong at one moment, for all answers about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Faults that a restart may heal; faults of this node, which begin with those; all that keep it from being ready.
    dead: usize,
    own: usize,
    all: Vec<Fault>,
    node_leaving: bool,
}

impl Judgement {
    /// `since_beat`: how long ago the runtime turned.
    pub fn of(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Self {
        let mut all = own_faults(report, since_beat, thresholds);
        let (dead, own) = (dead(report, since_beat, thresholds).len(), all.len());
        all.extend(not_ready(report, &all, thresholds));
        Self { dead, own, all, node_leaving: report.node_leaving }
    }

    fn faults(&self, probe: Probe) -> &[Fault] {
        match probe {
            Probe::Livez => &self.all[..self.dead],
            Probe::Healthz => &self.all[..self.own],
            Probe::Readyz => &self.all,
        }
    }

    /// Whether the answer to a probe is a good one.
    pub fn is_good(&self, probe: Probe) -> bool {
        self.faults(probe).is_empty() && (probe != Probe::Healthz || !self.node_leaving)
    }

    /// Whether this node has no fault of its own: what health-check node ports say of it.
    pub fn is_well(&self) -> bool {
        self.own == 0
    }

    /// All answers, for the report.
    pub fn report(&self) -> HealthReport {
        HealthReport {
            healthz: self.is_good(Probe::Healthz),
            livez: self.is_good(Probe::Livez),
            readyz: self.is_good(Probe::Readyz),
            faults: self.all.iter().map(|fault| fault.text.clone()).collect(),
        }
    }

    /// The answer to a probe. `last_in_step`: when the tables were last in step with the source.
    pub fn answer(
        &self,
        probe: Probe,
        audience: Audience,
        now: Timestamp,
        last_in_step: Option<Timestamp>,
    ) -> (bool, Answer) {
        let (good, healthy) = (self.is_good(probe), self.faults(probe).is_empty());
        let last_updated = if good { now } else { last_in_step.unwrap_or(Timestamp::UNIX_EPOCH) };
        let node_eligible = (probe != Probe::Livez).then_some(!self.node_leaving);
        let family = last_in_step.map(|last_updated| FamilyHealth { last_updated, healthy });
        let status = ["IPv4", "IPv6"].into_iter().filter_map(|name| Some((name, family?))).collect();
        let faults = named(self.faults(probe), audience);
        (good, Answer { last_updated, current_time: now, node_eligible, healthy, status, faults })
    }
}

/// In the words of an audience, each once; at most [`FAULTS_MAX`] of them.
fn named(faults: &[Fault], audience: Audience) -> Vec<String> {
    let mut named: Vec<String> = Vec::new();
    for fault in faults {
        let text = if audience == Audience::Node { &fault.text } else { fault.general };
        if named.len() == FAULTS_MAX {
            break;
        }
        if !named.iter().any(|known| known == text) {
            named.push(text.to_owned());
        }
    }
    named
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
