//! Healthy or not, and why: pure judgement over what the runtime knows.
//!
//! `/healthz` is probed by load balancers, so it fails only for this node's own faults: a lost API reddens `/readyz`, or one API
//! outage would take every node out of every load balancer. `/livez` fails only for what a restart may heal: a runtime that no
//! longer turns, and tables that cannot be written at all. A subject (a service, an address) whose write fails is that subject's
//! matter: it is tried again by name, and fails no probe, since a restart would find the same.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::report::{HealthReport, Report};

/// How often the runtime turns at least.
pub const BEAT: Duration = Duration::from_secs(5);

/// From when on something is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A runtime that has not turned for this long is stuck: it turns at least every [`BEAT`].
    pub stuck_after: Duration,
    /// Tables that could not be written at all for this long: several attempts have failed.
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
#[serde(rename_all = "camelCase")]
pub struct FamilyHealth {
    pub last_updated: Timestamp,
    pub healthy: bool,
}

/// Body of an answer: the fields of kube-proxy 1.36, and ours where something is wrong.
#[derive(Debug, Serialize, PartialEq, Eq)]
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

/// What a restart may heal. `since_beat`: how long ago the runtime turned.
pub fn dead(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Vec<String> {
    let mut faults = Vec::new();
    if since_beat > thresholds.stuck_after {
        faults.push(format!("the agent's runtime has not turned for {} s", since_beat.as_secs()));
    }
    if let (Some(seconds), Some(error)) = (report.tables.unwritable_seconds, &report.tables.unwritable)
        && seconds >= thresholds.behind_after.as_secs_f64()
    {
        faults.push(format!("the tables cannot be written for {seconds:.0} s: {error}"));
    }
    faults
}

/// Faults of this node itself; that it is leaving is none.
pub fn own_faults(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Vec<String> {
    let mut faults = dead(report, since_beat, thresholds);
    // What the agent before left behind serves on: load balancers need not hear of a restart.
    let in_grace = report.tables.inherited && report.uptime_seconds < thresholds.first_sync_grace.as_secs_f64();
    // What keeps this node from listing (an API that is away, revoked rights, an error of the server) keeps all nodes from it.
    let excused = in_grace || (report.tables.inherited && has_source_error(report));
    if !report.tables.synced && !excused {
        faults.push("the first sync is not finished: services and endpoints have not both been listed".to_owned());
    }
    if !report.datapath.synced && !in_grace {
        faults.push("interfaces have not been looked at yet".to_owned());
    }
    faults.extend(report.datapath.node_problems.iter().map(|problem| format!("not attached: {problem}")));
    if let Some(seconds) = report.source.wedged_seconds {
        faults.push(format!(
            "a watch is dead for {seconds:.0} s, though the API answers other requests: endpoints may be out of date here alone"
        ));
    }
    if let (Some(limit), Some(reason)) = (thresholds.fail_stale, &report.source.stale)
        && report.source.oldest_age_seconds() >= limit.as_secs_f64()
    {
        faults.push(format!("the source is stale for longer than --healthz-fail-stale allows: {reason}"));
    }
    faults
}

/// Nothing can be listed, and it is known why.
fn has_source_error(report: &Report) -> bool {
    report.source.api_reachable == Some(false) || report.source.last_error.is_some()
}

/// What makes this node not ready: its own faults, tables that cannot be written, and a stale source.
pub fn unready(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> Vec<String> {
    let mut faults = own_faults(report, since_beat, thresholds);
    let limit = thresholds.behind_after.as_secs_f64();
    let lately = report.tables.unwritable_seconds.is_some_and(|seconds| seconds < limit);
    if let (true, Some(error)) = (lately, &report.tables.unwritable) {
        faults.push(format!("the tables cannot be written: {error}"));
    }
    // Not ready from the first moment on, though load balancers need not hear of it yet.
    if !report.tables.synced && !faults.iter().any(|fault| fault.contains("first sync")) {
        faults.push("the first sync is not finished; what the agent before left in the tables is served".to_owned());
    }
    if !report.datapath.synced && !faults.iter().any(|fault| fault.contains("interfaces have not")) {
        faults.push("interfaces have not been looked at yet; what the agent before attached is at work".to_owned());
    }
    if report.source.wedged_seconds.is_none() {
        faults.extend(report.source.stale.iter().map(|reason| format!("the source is stale: {reason}")));
    }
    faults
}

/// All answers, for the report.
pub fn judge(report: &Report, since_beat: Duration, thresholds: &Thresholds) -> HealthReport {
    let faults = unready(report, since_beat, thresholds);
    let own = own_faults(report, since_beat, thresholds);
    HealthReport {
        healthz: own.is_empty() && !report.node_leaving,
        livez: dead(report, since_beat, thresholds).is_empty(),
        readyz: faults.is_empty(),
        faults,
    }
}

/// The answer to a probe and whether it is a good one.
pub fn answer(
    probe: Probe,
    report: &Report,
    since_beat: Duration,
    thresholds: &Thresholds,
    now: Timestamp,
    last_in_step: Option<Timestamp>,
) -> (bool, Answer) {
    let faults = match probe {
        Probe::Healthz => own_faults(report, since_beat, thresholds),
        Probe::Readyz => unready(report, since_beat, thresholds),
        Probe::Livez => dead(report, since_beat, thresholds),
    };
    let eligible = !report.node_leaving;
    let healthy = faults.is_empty();
    let good = healthy && (eligible || probe != Probe::Healthz);
    let last_updated = if good { now } else { last_in_step.unwrap_or(Timestamp::UNIX_EPOCH) };
    let node_eligible = (probe != Probe::Livez).then_some(eligible);
    let family = last_in_step.map(|last_updated| FamilyHealth { last_updated, healthy });
    let status = ["IPv4", "IPv6"].into_iter().filter_map(|name| Some((name, family?))).collect();
    (good, Answer { last_updated, current_time: now, node_eligible, healthy, status, faults })
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
