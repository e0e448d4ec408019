//! The life of a backend: what becomes of its record, from what the API says now and what was written before.

use std::time::Duration;

use lb_common::abi::{backend_flags, backend_state};

use super::{BackendRecord, DesiredEndpoint, EndpointState, Mark, PlanSettings, Set};
use lb_model::Monotonic;

/// What to do with the record of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no record that could take flows, and none is wanted.
    Nothing,
    /// The record stands as it is.
    Keep,
    /// The backend in another state.
    Write(BackendRecord),
    /// A new backend.
    New,
    /// The record's backend has come to its end.
    Evict(BackendRecord),
    /// It has come to its end, and another one is there at the same address.
    Replace(BackendRecord),
}

/// How long connections of a backend may go on once it is gone from the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// Of those that it does not answer.
    pub period: Duration,
    /// Of all, if longer than the period.
    pub max: Duration,
}

/// What a Service says of these; `None`: the agent's own setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnDrainLimits {
    pub period: Option<Duration>,
    pub max: Option<Duration>,
}

impl OwnDrainLimits {
    pub fn or(self, others: DrainLimits) -> DrainLimits {
        DrainLimits { period: self.period.unwrap_or(others.period), max: self.max.unwrap_or(others.max) }
    }
}

/// The next step of the backend at one address. `is_idle`: it drains, and no connection of it is left.
pub fn step(
    current: Option<&BackendRecord>,
    is_idle: bool,
    wanted: Option<DesiredEndpoint>,
    limits: DrainLimits,
    now: Monotonic,
    settings: &PlanSettings,
) -> Step {
    match (current, wanted) {
        (None, None) => Step::Nothing,
        (None, Some(_)) => Step::New,
        (Some(record), None) => leave(record, is_idle, limits, now),
        (Some(record), Some(wanted)) => stay(record, wanted, now, settings),
    }
}

fn leave(record: &BackendRecord, is_idle: bool, limits: DrainLimits, now: Monotonic) -> Step {
    if record.state == backend_state::GONE {
        return Step::Nothing;
    }
    if record.is_evictable(now) || (is_idle && record.is_drained(now)) {
        return Step::Evict(record.gone());
    }
    if record.state == backend_state::DRAINING {
        return Step::Keep;
    }
    let no_later = |at: Monotonic| {
        if record.deadline_ds == 0 { at.to_tenths() } else { at.to_tenths().min(record.deadline_ds) }
    };
    let DrainLimits { period, max } = limits;
    Step::Write(record.draining(no_later(now + period), no_later(now + period.max(max))))
}

fn stay(record: &BackendRecord, wanted: DesiredEndpoint, now: Monotonic, settings: &PlanSettings) -> Step {
    let terminating = wanted.state == EndpointState::Terminating;
    let other_pod = record.uid_hash != 0 && wanted.uid_hash != 0 && record.uid_hash != wanted.uid_hash;
    if record.state == backend_state::GONE {
        return if terminating && record.is_evictable(now) && !other_pod { Step::Nothing } else { Step::New };
    }
    if other_pod {
        return Step::Replace(record.gone());
    }
    if record.is_evictable(now) {
        let ends = terminating && record.state == backend_state::TERMINATING;
        return if ends { Step::Evict(record.gone()) } else { Step::Replace(record.gone()) };
    }
    let written = describe(record, wanted, now, settings);
    if written == *record { Step::Keep } else { Step::Write(written) }
}

/// The record of a backend that the API lists; address, service and generation are those of `record`.
pub fn describe(
    record: &BackendRecord,
    wanted: DesiredEndpoint,
    now: Monotonic,
    settings: &PlanSettings,
) -> BackendRecord {
    // One that is not ready, or terminates, goes its own way also in maintenance: its UDP flows, or its deadline, depend on it.
    let state = match (wanted.state, wanted.mark) {
        (EndpointState::Ready, Mark::Maintenance) => backend_state::MAINTENANCE,
        (EndpointState::Ready, _) => backend_state::ACTIVE,
        (EndpointState::NotReady, _) => backend_state::UNREADY,
        (EndpointState::Terminating, _) => backend_state::TERMINATING,
    };
    let deadline_ds = match (state, record.state) {
        (backend_state::TERMINATING, backend_state::TERMINATING) if record.deadline_ds != 0 => record.deadline_ds,
        (backend_state::TERMINATING, _) => (now + settings.terminating_max).to_tenths(),
        _ => 0,
    };
    let local = if wanted.local || wanted.own_address { backend_flags::LOCAL } else { 0 };
    let serving = if wanted.serving { backend_flags::SERVING } else { 0 };
    // One that takes new flows all the same, as all of its set are unhealthy, is not to be avoided by the programs either.
    let is_kept_out = wanted.mark == Mark::Unhealthy && !wanted.is_in(Set::Cluster) && !wanted.is_in(Set::Local);
    let unhealthy = if is_kept_out { backend_flags::UNHEALTHY } else { 0 };
    let in_cluster_set = if wanted.is_in(Set::Cluster) { backend_flags::IN_CLUSTER_SET } else { 0 };
    let in_local_set = if wanted.is_in(Set::Local) { backend_flags::IN_LOCAL_SET } else { 0 };
    BackendRecord {
        state,
        flags: local | serving | unhealthy | in_cluster_set | in_local_set,
        deadline_ds,
        drain_ds: 0,
        uid_hash: if wanted.uid_hash == 0 { record.uid_hash } else { wanted.uid_hash },
        weight: wanted.weight,
        ..*record
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
