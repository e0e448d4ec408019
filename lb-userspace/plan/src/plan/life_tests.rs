//! The table of a backend's life, line by line.

use super::*;
use crate::plan::Mark;

const NOW: Monotonic = Monotonic::from_duration(Duration::from_secs(100));

fn record(state: u8, deadline_s: u32) -> BackendRecord {
    BackendRecord {
        address: "10.0.0.1:80".parse().unwrap(),
        state,
        flags: if state == backend_state::ACTIVE { backend_flags::IN_CLUSTER_SET } else { 0 },
        generation: 7,
        service: 3,
        deadline_ds: deadline_s * 10,
        drain_ds: 0,
        uid_hash: 1,
        weight: 1,
    }
}

fn wanted(state: EndpointState) -> DesiredEndpoint {
    DesiredEndpoint {
        state,
        in_cluster_set: state == EndpointState::Ready,
        in_local_set: false,
        local: false,
        own_address: false,
        serving: false,
        uid_hash: 1,
        weight: 1,
        mark: Mark::None,
    }
}

/// One that drains: when its period ends, and its eviction deadline.
fn draining(drain_s: u32, deadline_s: u32) -> BackendRecord {
    BackendRecord { drain_ds: drain_s * 10, ..record(backend_state::DRAINING, deadline_s) }
}

fn next(current: &BackendRecord, wanted: Option<DesiredEndpoint>) -> Step {
    let settings = PlanSettings::default();
    step(Some(current), false, wanted, settings.drain_limits, NOW, &settings)
}

#[test]
fn each_condition_has_its_state_and_deadline() {
    let active = record(backend_state::ACTIVE, 0);
    assert_eq!(next(&active, Some(wanted(EndpointState::Ready))), Step::Keep);
    assert_eq!(next(&active, Some(wanted(EndpointState::NotReady))), Step::Write(record(backend_state::UNREADY, 0)));
    let terminating = record(backend_state::TERMINATING, 3700);
    assert_eq!(next(&active, Some(wanted(EndpointState::Terminating))), Step::Write(terminating));
    assert_eq!(next(&active, None), Step::Write(draining(130, 3700)));
}

#[test]
fn a_deadline_is_never_put_off() {
    assert_eq!(next(&draining(110, 110), None), Step::Keep);
    assert_eq!(next(&draining(90, 110), None), Step::Keep, "its period is over, and it may have connections");
    let terminating = record(backend_state::TERMINATING, 110);
    assert_eq!(next(&terminating, Some(wanted(EndpointState::Terminating))), Step::Keep);
    assert_eq!(next(&terminating, None), Step::Write(draining(110, 110)));
    let later = record(backend_state::TERMINATING, 140);
    assert_eq!(next(&later, None), Step::Write(draining(130, 140)));
}

#[test]
fn a_service_may_have_limits_of_its_own() {
    let (settings, active) = (PlanSettings::default(), record(backend_state::ACTIVE, 0));
    let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
    for (period, max, ends) in [
        (None, None, (130, 3700)),
        (Some(7), None, (107, 3700)),
        (Some(0), Some(0), (100, 100)),
        (Some(300), Some(0), (400, 400)),
        (Some(300), Some(60), (400, 400)),
        (None, Some(60), (130, 160)),
    ] {
        let limits = OwnDrainLimits { period: seconds(period), max: seconds(max) }.or(settings.drain_limits);
        let next = step(Some(&active), false, None, limits, NOW, &settings);
        assert_eq!(next, Step::Write(draining(ends.0, ends.1)), "{period:?}, {max:?}");
    }
}

#[test]
fn one_without_connections_ends_with_its_period() {
    let settings = PlanSettings::default();
    let idle = |record| step(Some(&record), true, None, settings.drain_limits, NOW, &settings);
    assert_eq!(idle(draining(101, 3700)), Step::Keep);
    let over = BackendRecord { generation: 8, ..record(backend_state::GONE, 0) };
    assert_eq!(idle(draining(100, 3700)), Step::Evict(over));
}

#[test]
fn what_is_in_maintenance_drains_and_returns_like_any_other() {
    let by_hand = DesiredEndpoint { in_cluster_set: false, mark: Mark::Maintenance, ..wanted(EndpointState::Ready) };
    let maintained = record(backend_state::MAINTENANCE, 0);
    assert_eq!(next(&record(backend_state::ACTIVE, 0), Some(by_hand)), Step::Write(maintained));
    assert_eq!(next(&maintained, None), Step::Write(draining(130, 3700)));
    assert_eq!(next(&maintained, Some(wanted(EndpointState::Ready))), Step::Write(record(backend_state::ACTIVE, 0)));
    // Its end comes as if no hand had touched it.
    let terminating = DesiredEndpoint { state: EndpointState::Terminating, ..by_hand };
    assert_eq!(next(&maintained, Some(terminating)), Step::Write(record(backend_state::TERMINATING, 3700)));
}

#[test]
fn the_flag_of_a_unhealthy_one_says_whether_it_is_kept_out() {
    let failing = DesiredEndpoint { mark: Mark::Unhealthy, ..wanted(EndpointState::Ready) };
    assert_eq!(next(&record(backend_state::ACTIVE, 0), Some(failing)), Step::Keep, "it serves, as all fail");
    let kept_out = DesiredEndpoint { in_cluster_set: false, ..failing };
    let flagged = BackendRecord { flags: backend_flags::UNHEALTHY, ..record(backend_state::ACTIVE, 0) };
    assert_eq!(next(&record(backend_state::ACTIVE, 0), Some(kept_out)), Step::Write(flagged));
}

#[test]
fn the_programs_take_one_at_an_address_of_this_node_for_one_that_is_here() {
    let flagged = BackendRecord { flags: backend_flags::LOCAL, ..record(backend_state::ACTIVE, 0) };
    let elsewhere = DesiredEndpoint { in_cluster_set: false, ..wanted(EndpointState::Ready) };
    let own = DesiredEndpoint { own_address: true, ..elsewhere };
    let named = DesiredEndpoint { local: true, ..elsewhere };
    for here in [own, named] {
        assert_eq!(next(&record(backend_state::ACTIVE, 0), Some(here)), Step::Write(flagged));
    }
}

#[test]
fn at_the_deadline_the_generation_changes() {
    let over = BackendRecord { generation: 8, ..record(backend_state::GONE, 0) };
    assert_eq!(next(&draining(30, 100), None), Step::Evict(over));
    let returned = Some(wanted(EndpointState::Ready));
    assert_eq!(next(&draining(30, 100), returned), Step::Replace(over));
    // A tenth of a second earlier it is the same backend still.
    let early = BackendRecord { deadline_ds: 1001, ..draining(30, 0) };
    assert_eq!(next(&early, returned), Step::Write(record(backend_state::ACTIVE, 0)));
}

#[test]
fn one_that_had_its_time_stays_out_while_the_api_lists_it_as_terminating() {
    let terminating = Some(wanted(EndpointState::Terminating));
    let Step::Evict(over) = next(&record(backend_state::TERMINATING, 100), terminating) else { panic!("not evicted") };
    assert_eq!((over.state, over.generation), (backend_state::GONE, 8));
    assert_eq!(next(&over, terminating), Step::Nothing);
    assert_eq!(next(&over, Some(wanted(EndpointState::Ready))), Step::New);
    assert_eq!(next(&over, Some(DesiredEndpoint { uid_hash: 2, ..wanted(EndpointState::Terminating) })), Step::New);
}

#[test]
fn another_pod_at_the_address_is_another_backend() {
    let active = record(backend_state::ACTIVE, 0);
    let other = DesiredEndpoint { uid_hash: 2, ..wanted(EndpointState::Ready) };
    let over = BackendRecord { generation: 8, ..record(backend_state::GONE, 0) };
    assert_eq!(next(&active, Some(other)), Step::Replace(over));
    // Not knowing the pod is no proof that it is another one.
    let unknown = DesiredEndpoint { uid_hash: 0, ..wanted(EndpointState::Ready) };
    assert_eq!(next(&active, Some(unknown)), Step::Keep);
}

#[test]
fn generations_skip_zero() {
    assert_eq!(BackendRecord { generation: u32::MAX, ..record(backend_state::ACTIVE, 0) }.gone().generation, 1);
}
