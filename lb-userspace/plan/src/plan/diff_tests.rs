//! The operations of one service port, compared as data.

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::*;
use crate::plan::{Capacities, Frontend, FrontendKind, NodeFacts, Part, Range, Use, plan, sweep};
use lb_model::{
    Endpoint, Exposure, ObjectName, Protocol, Scheduler, Service as ModelService, ServicePort, Slice, SlicePort,
    Snapshot, TrafficPolicy,
};
use lb_tables::from_chars;

fn capacities() -> Capacities {
    Family::ALL
        .into_iter()
        .fold(Capacities::all(2).with(Part::Slots, 4), |all, family| all.with(Part::Backends(family), 4))
}

fn snapshot(endpoints: &[&str]) -> Snapshot {
    let name = ObjectName::new("default", "web");
    let address: IpAddr = "10.96.0.1".parse().unwrap();
    let service = ModelService {
        name: name.clone(),
        exposure: Exposure::Addresses,
        proxy_name: None,
        cluster_ips: vec![address],
        ports: vec![ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp, node_port: None }],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        source_ranges: None,
        health_check_node_port: None,
        affinity_timeout_s: 30,
        options: None,
        created_s: None,
    };
    let endpoint = |text: &&str| Endpoint {
        address: text.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        zone: None,
        hints: None,
        uid_hash: 9,
    };
    let slice = Slice {
        changed_at: None,
        created_s: None,
        refused: None,
        name: name.clone(),
        service: "web".into(),
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), port: 8080, protocol: Protocol::Tcp }],
        endpoints: endpoints.iter().map(endpoint).collect(),
    };
    Snapshot {
        revision: 1,
        services: [(name.clone(), Arc::new(service))].into_iter().collect(),
        slices: [(slice.key(), Arc::new(slice))].into_iter().collect(),
        ..Snapshot::default()
    }
}

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_duration(Duration::from_secs(seconds))
}

fn refusal(obstacle: Obstacle) -> Refusal {
    match obstacle {
        Obstacle::NoRoom(refusal) => refusal,
        Obstacle::Unfinished => panic!("no table here is large"),
    }
}

fn diff(programmed: &ProgrammedState, endpoints: &[&str]) -> Result<Vec<Op>, Refusal> {
    let settings = PlanSettings::default();
    let desired = plan(&snapshot(endpoints), &NodeFacts::default(), &settings);
    let key = desired.services.keys().next().unwrap();
    diff_service(key, &desired, programmed, &mut MaglevTables::default(), &settings, Monotonic::default())
        .map_err(refusal)
}

fn record_all(programmed: &mut ProgrammedState, ops: &[Op]) {
    let desired = plan(&snapshot(&[]), &NodeFacts::default(), &PlanSettings::default());
    let key = desired.services.keys().next().unwrap();
    programmed.reserve(ops);
    for op in ops {
        programmed.record(key, op, Monotonic::default(), Duration::from_secs(1));
    }
}

#[test]
fn a_new_service_is_written_from_its_name_to_its_entry() {
    let ops = diff(&ProgrammedState::new(capacities()), &["10.0.0.1", "10.0.0.2"]).unwrap();
    let [Op::WriteName { id: 1, name }, backends @ .., Op::WriteSlots { base: 0, slots }, last] = ops.as_slice() else {
        panic!("{ops:?}");
    };
    assert_eq!([from_chars(&name.namespace), from_chars(&name.name)], ["default", "web"]);
    assert_eq!((from_chars(&name.port_name), name.port, name.protocol), ("http".into(), 80, abi::TCP));
    let record = BackendRecord {
        address: "10.0.0.1:8080".parse().unwrap(),
        state: backend_state::ACTIVE,
        flags: abi::backend_flags::SERVING | abi::backend_flags::IN_CLUSTER_SET,
        generation: 1,
        service: 1,
        deadline_ds: 0,
        drain_ds: 0,
        uid_hash: 9,
        weight: 1,
    };
    let second = BackendRecord { address: "10.0.0.2:8080".parse().unwrap(), ..record };
    let id = |id| BackendId { family: Family::V4, id };
    assert_eq!(
        backends,
        [Op::WriteBackend { id: id(1), record }, Op::WriteBackend { id: id(2), record: second }].as_slice()
    );
    let slot = |backend| abi::Slot { backend, backend_generation: 1, service: 1, generation: 1 };
    assert_eq!(slots, &[slot(1), slot(2)]);
    let key = abi::ServiceKey { address: [10, 96, 0, 1], port: 80, protocol: abi::TCP, pad: 0 };
    let entry = abi::Service {
        id: 1,
        generation: 1,
        slot_base: 0,
        slot_count: 2,
        external_base: 0,
        external_count: 2,
        seal: 0,
        affinity_timeout_s: 30,
        scheduler: abi::scheduler::RANDOM,
        flags: 0,
        kind: abi::frontend_kind::CLUSTER_IP,
        pad: 0,
        rate: 0,
        burst: 0,
    };
    let entry = abi::Service { seal: abi::seal(&key, &entry), ..entry };
    let frontend = Frontend { address: "10.96.0.1".parse().unwrap(), port: 80, protocol: Protocol::Tcp };
    let uses = Use { kind: FrontendKind::ClusterIp, inside: Set::Cluster, outside: Set::Cluster, flags: 0 };
    assert_eq!(last, &Op::WriteFrontend { frontend, entry, uses });
}

#[test]
fn what_is_written_is_not_written_again() {
    let mut programmed = ProgrammedState::new(capacities());
    let ops = diff(&programmed, &["10.0.0.1"]).unwrap();
    record_all(&mut programmed, &ops);
    assert_eq!(diff(&programmed, &["10.0.0.1"]).unwrap(), []);
}

#[test]
fn a_change_writes_beside_the_old_range_and_retires_last() {
    let mut programmed = ProgrammedState::new(capacities());
    let ops = diff(&programmed, &["10.0.0.1"]).unwrap();
    record_all(&mut programmed, &ops);
    let ops = diff(&programmed, &["10.0.0.2"]).unwrap();
    let texts: Vec<String> = ops.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "write backend 10.0.0.2:8080",
            "write 1 slots from 1",
            "write frontend 10.96.0.1:80/TCP",
            "retire backend 10.0.0.1:8080"
        ]
    );
}

#[test]
fn an_id_that_comes_back_has_another_generation_also_after_a_restart() {
    let mut programmed = ProgrammedState::new(capacities());
    let id = BackendId { family: Family::V4, id: 1 };
    assert_eq!(programmed.backends().free(Family::V4).next(), Some((id, 1)));
    let ops = diff(&programmed, &["10.0.0.1"]).unwrap();
    record_all(&mut programmed, &ops);
    let gone = programmed.backends().records()[&id].gone();
    record_all(
        &mut programmed,
        &[Op::RetireBackend { id, record: gone }, Op::FreeBackend { id, generation: gone.generation }],
    );
    assert_eq!(programmed.backends().free(Family::V4).next(), Some((id, 3)));
    let free = BackendRecord { state: backend_state::FREE, ..gone };
    let loaded = crate::plan::Loaded { backends: vec![(id, free)], ..Default::default() };
    assert_eq!(crate::plan::restore(capacities(), loaded).backends().free(Family::V4).next(), Some((id, 3)));
}

#[test]
fn each_full_table_is_named_and_nothing_is_half_done() {
    let refusal =
        |capacities, endpoints: &[&str]| diff(&ProgrammedState::new(capacities), endpoints).unwrap_err().reason;
    let two = ["10.0.0.1", "10.0.0.2"];
    assert!(refusal(capacities().with(Part::Names, 0), &two).contains("map names is full (0 elements)"));
    assert!(refusal(capacities().with(Part::Services(Family::V4), 0), &two).contains("map services4 is full"));
    assert!(refusal(capacities().with(Part::Slots, 1), &two).contains("map slots is full"));
    // Id 0 is never used, so two elements hold one backend.
    assert!(refusal(capacities().with(Part::Backends(Family::V4), 2), &two).contains("map backends4 is full"));
}

/// The map that other nodes find backends of this node by holds a backend for each address and service port.
#[test]
fn backends_of_this_node_without_room_among_the_endpoints_are_refused_by_name() {
    let small = Capacities::all(9).with(Part::Endpoints(Family::V4), 1);
    let mut programmed = ProgrammedState::new(small);
    let local = |endpoints: &[&str]| {
        let mut snapshot = snapshot(endpoints);
        let mut slice = snapshot.slices.values().next().unwrap().as_ref().clone();
        slice.endpoints.iter_mut().for_each(|endpoint| endpoint.node = Some("n1".into()));
        snapshot.slices.insert(slice.key(), Arc::new(slice));
        let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::default() };
        plan(&snapshot, &NodeFacts::default(), &settings)
    };
    let refusal = ops_for(&local(&["10.0.0.1", "10.0.0.2"]), &programmed).unwrap_err();
    assert!(refusal.reason.contains("map endpoints4 is full (1 elements)"), "{refusal}");
    let ops = ops_for(&local(&["10.0.0.1"]), &programmed).unwrap();
    programmed.reserve(&ops);
    assert_eq!(programmed.count(Part::Endpoints(Family::V4)), Some(1), "planned");
    record_all(&mut programmed, &ops);
    assert_eq!(programmed.count(Part::Endpoints(Family::V4)), Some(1), "written");
    assert!(ops_for(&local(&["10.0.0.1", "10.0.0.2"]), &programmed).is_err(), "the second has no room");
    // Backends of other nodes need none.
    assert!(diff(&programmed, &["10.0.0.1", "10.0.0.2"]).is_ok());
    let id = BackendId { family: Family::V4, id: 1 };
    let gone = programmed.backends().records()[&id].gone();
    record_all(
        &mut programmed,
        &[Op::RetireBackend { id, record: gone }, Op::FreeBackend { id, generation: gone.generation }],
    );
    assert_eq!(programmed.count(Part::Endpoints(Family::V4)), Some(0));
}

#[test]
fn slots_rest_before_they_are_released() {
    let mut programmed = ProgrammedState::new(capacities());
    for endpoints in [["10.0.0.1"], ["10.0.0.2"]] {
        let ops = diff(&programmed, &endpoints).unwrap();
        record_all(&mut programmed, &ops);
    }
    let desired = plan(&snapshot(&["10.0.0.2"]), &NodeFacts::default(), &PlanSettings::default());
    let just_before = Monotonic::from_duration(Duration::from_millis(999));
    assert_eq!(sweep(&programmed, &desired, just_before).count(), 0);
    let released: Vec<Op> = sweep(&programmed, &desired, at(1)).map(|(_, op)| op).collect();
    assert_eq!(released, [Op::ReleaseSlots { range: Range { base: 0, count: 1 } }]);
}

/// A load balancer for this node's endpoints alone, for two networks.
fn balanced() -> Desired {
    let mut snapshot = snapshot(&["10.0.0.1", "10.0.0.2"]);
    let mut service = snapshot.services.values().next().unwrap().as_ref().clone();
    service.load_balancer_ips = vec!["198.51.100.1".parse().unwrap()];
    service.external_policy = TrafficPolicy::Local;
    service.source_ranges = Some(vec!["192.0.2.0/24".parse().unwrap(), "203.0.113.0/24".parse().unwrap()]);
    snapshot.services.insert(service.name.clone(), Arc::new(service));
    let mut slice = snapshot.slices.values().next().unwrap().as_ref().clone();
    slice.endpoints[0].node = Some("n1".into());
    snapshot.slices.insert(slice.key(), Arc::new(slice));
    let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::default() };
    plan(&snapshot, &NodeFacts::default(), &settings)
}

fn ops_for(desired: &Desired, programmed: &ProgrammedState) -> Result<Vec<Op>, Refusal> {
    let key = desired.services.keys().next().unwrap();
    diff_service(key, desired, programmed, &mut MaglevTables::default(), &PlanSettings::default(), Monotonic::default())
        .map_err(refusal)
}

#[test]
fn both_sets_are_written_where_they_differ_and_networks_before_who_asks_for_them() {
    let mut programmed = ProgrammedState::new(Capacities::all(9));
    let desired = balanced();
    let ops = ops_for(&desired, &programmed).unwrap();
    let ranges = ops.iter().filter_map(|op| match op {
        Op::WriteSlots { base, slots } => Some((*base, slots.len())),
        _ => None,
    });
    assert_eq!(ranges.collect::<Vec<_>>(), [(0, 2), (2, 1)]);
    let context = |wanted: fn(&Op) -> bool| ops.iter().position(wanted).unwrap();
    assert!(context(|op| matches!(op, Op::WriteSource { .. })) < context(|op| matches!(op, Op::WriteFrontend { .. })));
    record_all(&mut programmed, &ops);
    assert_eq!(ops_for(&desired, &programmed).unwrap(), []);
    // Open to everybody again: the networks go after the frontend has stopped to ask for them.
    let mut open = desired;
    let service = open.services.values_mut().next().unwrap();
    service.sources.clear();
    service.frontends.iter_mut().for_each(|(_, uses)| uses.flags &= !abi::service_flags::SOURCE_RANGES);
    let ops = ops_for(&open, &programmed).unwrap();
    assert!(
        matches!(ops.as_slice(), [Op::WriteFrontend { .. }, Op::RemoveSource { .. }, Op::RemoveSource { .. }]),
        "{ops:?}"
    );
}

#[test]
fn networks_and_addresses_without_room_are_refused_by_name() {
    let desired = balanced();
    let refusal =
        ops_for(&desired, &ProgrammedState::new(Capacities::all(9).with(Part::Sources(Family::V4), 1))).unwrap_err();
    assert!(refusal.reason.contains("map sources4 is full (1 elements)"), "{refusal}");
    let address = *desired.vips.keys().next().unwrap();
    let refusal =
        diff_vip(address, &desired, &ProgrammedState::new(Capacities::all(9).with(Part::Vips(Family::V4), 0)))
            .unwrap_err();
    assert!(refusal.object.contains(&address.to_string()) && refusal.reason.contains("map vips4 is full"), "{refusal}");
}

/// The plan of these endpoints under a scheduler.
fn scheduled(endpoints: &[&str], scheduler: Scheduler) -> Desired {
    plan(&snapshot(endpoints), &NodeFacts::default(), &PlanSettings { scheduler, ..PlanSettings::default() })
}

fn write(desired: &Desired, programmed: &mut ProgrammedState) {
    let ops = ops_for(desired, programmed).unwrap();
    record_all(programmed, &ops);
}

#[test]
fn another_scheduler_over_the_same_slots_rewrites_the_entry_alone() {
    let mut programmed = ProgrammedState::new(Capacities::all(2_000));
    write(&scheduled(&["10.0.0.1", "10.0.0.2"], Scheduler::Random), &mut programmed);
    for scheduler in [Scheduler::RoundRobin, Scheduler::LeastConnections, Scheduler::SourceHash, Scheduler::Weighted] {
        let desired = scheduled(&["10.0.0.1", "10.0.0.2"], scheduler);
        let ops = ops_for(&desired, &programmed).unwrap();
        let [Op::WriteFrontend { entry, .. }] = ops.as_slice() else { panic!("{scheduler}: {ops:?}") };
        assert_eq!(entry.scheduler, scheduler.number());
        record_all(&mut programmed, &ops);
    }
}

#[test]
fn an_endpoint_of_a_maglev_service_costs_one_table_and_nothing_else_does() {
    let mut programmed = ProgrammedState::new(Capacities::all(2_000));
    let two = scheduled(&["10.0.0.1", "10.0.0.2"], Scheduler::Maglev);
    write(&two, &mut programmed);
    assert_eq!(ops_for(&two, &programmed).unwrap(), []);
    let mut drained = two.clone();
    drained.services.values_mut().for_each(|service| service.affinity_timeout_s = 99);
    assert!(matches!(ops_for(&drained, &programmed).unwrap().as_slice(), [Op::WriteFrontend { .. }]));
    let ops = ops_for(&scheduled(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], Scheduler::Maglev), &programmed).unwrap();
    let [Op::WriteBackend { .. }, Op::WriteSlots { slots, .. }, Op::WriteFrontend { entry, .. }] = ops.as_slice()
    else {
        panic!("{ops:?}");
    };
    assert_eq!((slots.len(), entry.slot_count), (251, 251));
}

#[test]
fn room_for_the_largest_table_is_kept_for_services_that_are_there() {
    let maglev = |endpoints: &[&str]| scheduled(endpoints, Scheduler::Maglev);
    let refused = |desired: &Desired, programmed: &ProgrammedState| {
        let refusal = ops_for(desired, programmed).unwrap_err();
        assert!(refusal.reason.contains("map slots is full"), "{refusal}");
    };
    // A table of 251 slots must leave as many.
    refused(&maglev(&["10.0.0.1"]), &ProgrammedState::new(Capacities::all(20).with(Part::Slots, 501)));
    let mut programmed = ProgrammedState::new(Capacities::all(20).with(Part::Slots, 502));
    write(&maglev(&["10.0.0.1", "10.0.0.2"]), &mut programmed);
    // What grows does not get what is kept; what takes no more than it had does, until what it had is given back.
    write(&maglev(&["10.0.0.1"]), &mut programmed);
    refused(&maglev(&["10.0.0.2"]), &programmed);
    for (_, op) in sweep(&programmed, &maglev(&["10.0.0.1"]), at(60)).collect::<Vec<_>>() {
        record_all(&mut programmed, &[op]);
    }
    write(&maglev(&["10.0.0.2"]), &mut programmed);
}

#[test]
fn a_backend_that_left_takes_no_new_flow_though_its_service_finds_no_room() {
    let mut programmed = ProgrammedState::new(Capacities::all(20).with(Part::Slots, 502));
    write(&scheduled(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], Scheduler::Maglev), &mut programmed);
    write(&scheduled(&["10.0.0.1", "10.0.0.2"], Scheduler::Maglev), &mut programmed);
    let alone = scheduled(&["10.0.0.1"], Scheduler::Maglev);
    ops_for(&alone, &programmed).unwrap_err();
    let key = alone.services.keys().next().unwrap();
    let settings = PlanSettings::default();
    let ops = withdrawals(key, &alone, &programmed, &settings, at(1));
    let [Op::RetireBackend { record, .. }] = ops.as_slice() else { panic!("{ops:?}") };
    assert_eq!((record.address, record.state), ("10.0.0.2:8080".parse().unwrap(), backend_state::DRAINING));
    assert_eq!(record.drain_ds, (at(1) + settings.drain_limits.period).to_tenths());
    assert_eq!(record.deadline_ds, (at(1) + settings.drain_limits.max).to_tenths());
    assert_eq!(record.flags & (abi::backend_flags::IN_CLUSTER_SET | abi::backend_flags::IN_LOCAL_SET), 0);
    record_all(&mut programmed, &ops);
    assert_eq!(withdrawals(key, &alone, &programmed, &settings, at(2)), []);
}
