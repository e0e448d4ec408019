//! The life of a backend: what becomes of its record, from what the API says now and what was written before.

use std::time::Duration;

use lb_common::abi::{backend_flags, backend_state};

use super::{BackendRecord, DesiredEndpoint, EndpointState, Mark, PlanSettings, Set};
use crate::model::Monotonic;

/// What to do with the record of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no record that could take flows, and none is wanted.
    Nothing,
    /// The record stands as it is.
    Keep,
    /// The same backend in another state.
    Write(BackendRecord),
    /// A new backend.
    New,
    /// The record's backend has come to its end.
    Evict(BackendRecord),
    /// It has come to its end, and another one is there at the same address.
    Replace(BackendRecord),
}

/// The next step of the backend at one address. `drain_period`: how long its flows may go on once it is gone from the API.
pub fn step(
    current: Option<&BackendRecord>,
    wanted: Option<DesiredEndpoint>,
    drain_period: Duration,
    now: Monotonic,
    settings: &PlanSettings,
) -> Step {
    match (current, wanted) {
        (None, None) => Step::Nothing,
        (None, Some(_)) => Step::New,
        (Some(record), None) => leave(record, drain_period, now),
        (Some(record), Some(wanted)) => stay(record, wanted, now, settings),
    }
}

fn leave(record: &BackendRecord, drain_period: Duration, now: Monotonic) -> Step {
    if record.state == backend_state::GONE {
        return Step::Nothing;
    }
    if record.is_struck(now) {
        return Step::Evict(record.gone());
    }
    if record.state == backend_state::DRAINING {
        return Step::Keep;
    }
    let mut deadline_ds = (now + drain_period).to_tenths();
    if record.deadline_ds != 0 {
        deadline_ds = deadline_ds.min(record.deadline_ds);
    }
    Step::Write(record.draining(deadline_ds))
}

fn stay(record: &BackendRecord, wanted: DesiredEndpoint, now: Monotonic, settings: &PlanSettings) -> Step {
    let terminating = wanted.state == EndpointState::Terminating;
    let other_pod = record.uid_hash != 0 && wanted.uid_hash != 0 && record.uid_hash != wanted.uid_hash;
    if record.state == backend_state::GONE {
        let had_its_time = record.deadline_ds != 0;
        return if terminating && had_its_time && !other_pod { Step::Nothing } else { Step::New };
    }
    if other_pod {
        return Step::Replace(record.gone());
    }
    if record.is_struck(now) {
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
        (EndpointState::NotReady, _) => backend_state::RESTING,
        (EndpointState::Terminating, _) => backend_state::TERMINATING,
    };
    let deadline_ds = match (state, record.state) {
        (backend_state::TERMINATING, backend_state::TERMINATING) if record.deadline_ds != 0 => record.deadline_ds,
        (backend_state::TERMINATING, _) => (now + settings.terminating_max).to_tenths(),
        _ => 0,
    };
    let local = if wanted.local || wanted.own_address { backend_flags::LOCAL } else { 0 };
    let serving = if wanted.serving { backend_flags::SERVING } else { 0 };
    // One that takes new flows all the same, as all of its set are quarantined, is not to be avoided by the programs either.
    let is_kept_out = wanted.mark == Mark::Quarantined && !wanted.is_in(Set::Cluster) && !wanted.is_in(Set::Local);
    let quarantined = if is_kept_out { backend_flags::QUARANTINED } else { 0 };
    let in_cluster_set = if wanted.is_in(Set::Cluster) { backend_flags::IN_CLUSTER_SET } else { 0 };
    let in_local_set = if wanted.is_in(Set::Local) { backend_flags::IN_LOCAL_SET } else { 0 };
    BackendRecord {
        state,
        flags: local | serving | quarantined | in_cluster_set | in_local_set,
        deadline_ds,
        uid_hash: if wanted.uid_hash == 0 { record.uid_hash } else { wanted.uid_hash },
        weight: wanted.weight,
        ..*record
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
