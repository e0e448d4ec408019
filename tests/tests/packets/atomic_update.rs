//! An update of a service is atomic for readers: no packet meets a mix of two generations, hammered while it changes.
//!
//! Two services take over each other's slot ranges as fast as the maps can be written. Each check is shown to be able to fail:
//! on programs without the re-check, and with the writes in the wrong order.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_model::{
    Endpoint, Exposure, Family, Monotonic, ObjectName, Protocol, Service, ServicePort, Slice, SlicePort, Snapshot,
    TrafficPolicy,
};
use lb_plan::apply::{KernelStore, MemoryStore, Programmer, Store as _};
use lb_plan::plan::{NodeFacts, Op, PlanSettings};
use lb_tests::programs;
use lb_tests::test_run::object;
use lb_tests::topology::Topology;
use lb_tests::update_race::{PORT, Progress, Subject, Tally, UpdateRace};
use rustix::time::{ClockId, clock_gettime};

/// Packets and updates where nothing may be found: of prepared updates, in the short form and in the long one.
const QUIET: [u64; 2] = [10_000, 200_000];
/// Packets and updates where nothing may be found, of updates that the agent plans, which rest in between.
const PLANNED: [u64; 2] = [200, 4_000];
/// How many updates are prepared; they are applied over and over.
const UPDATES: u32 = 2_000;

/// The two services; each has two of its three backends ready, which two depends on `round_robin`.
fn snapshot(turns: [u32; 2]) -> Snapshot {
    let mut snapshot = Snapshot { revision: u64::from(turns[0] + turns[1]) + 1, ..Snapshot::default() };
    for (subject, turn) in Subject::BOTH.into_iter().zip(turns) {
        let name = ObjectName::new("default", format!("service{}", subject.0));
        let ready = if turn % 2 == 0 { [1, 2] } else { [2, 3] };
        let endpoint = |number| Endpoint {
            address: subject.backend(number),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            uid_hash: 0,
            zone: None,
            hints: None,
        };
        let service = Service {
            name: name.clone(),
            exposure: Exposure::Addresses,
            proxy_name: None,
            cluster_ips: vec![subject.cluster_ip().into()],
            ports: vec![ServicePort { name: String::new(), port: PORT, protocol: Protocol::Tcp, node_port: None }],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            internal_policy: TrafficPolicy::default(),
            external_policy: TrafficPolicy::default(),
            source_ranges: None,
            health_check_node_port: None,
            affinity_timeout_s: 0,
            options: None,
            created_s: None,
        };
        let slice = Slice {
            changed_at: None,
            created_s: None,
            refused: None,
            name: name.clone(),
            service: name.name.clone(),
            family: Family::V4,
            ports: vec![SlicePort { name: String::new(), port: 8080, protocol: Protocol::Tcp }],
            endpoints: ready.map(endpoint).to_vec(),
        };
        snapshot.services.insert(name, Arc::new(service));
        snapshot.slices.insert(slice.key(), Arc::new(slice));
    }
    snapshot
}

/// The updates as the agent plans them, the first one filling empty tables; slot ranges are free again at once.
fn planned() -> Result<Vec<Vec<Op>>> {
    let settings = PlanSettings { slot_grace: Duration::ZERO, ..PlanSettings::default() };
    let now = now();
    let mut programmer = Programmer::restore(MemoryStore::roomy(), settings, now)?;
    let mut turns = [0, 0];
    let mut updates = Vec::new();
    for update in 0..UPDATES {
        let report = programmer.sync(&snapshot(turns), &NodeFacts::default(), now);
        ensure!(report.failures.is_empty() && report.refusals.is_empty(), "{report:?}");
        updates.push(std::mem::take(&mut programmer.store_mut().log));
        turns[update as usize % 2] += 1;
    }
    ensure!(takeovers(&updates) > UPDATES as usize / 2, "the services do not take over each other's ranges");
    Ok(updates)
}

/// How often a range is written for another service than the time before.
fn takeovers(updates: &[Vec<Op>]) -> usize {
    let mut owners = BTreeMap::new();
    let writes = updates.iter().flatten().filter_map(|op| match op {
        Op::WriteSlots { base, slots } => Some((*base, slots.first()?.service)),
        _ => None,
    });
    writes.filter(|(base, service)| owners.insert(*base, *service).is_some_and(|before| before != *service)).count()
}

/// The service's entry first, then the slots that it leads to.
fn in_wrong_order(mut updates: Vec<Vec<Op>>) -> Vec<Vec<Op>> {
    for ops in &mut updates[1..] {
        ops.sort_by_key(|op| !matches!(op, Op::WriteFrontend { .. }));
    }
    updates
}

fn now() -> Monotonic {
    let time = clock_gettime(ClockId::Monotonic);
    Monotonic::from_duration(Duration::new(
        time.tv_sec.cast_unsigned(),
        u32::try_from(time.tv_nsec).expect("below a second"),
    ))
}

/// Applies the updates one after the other, over and over.
fn apply(store: &mut KernelStore, updates: &[Vec<Op>], progress: &Progress) -> Result<()> {
    for ops in updates[1..].iter().cycle() {
        for op in ops {
            store.apply(op)?;
        }
        if !progress.updated() {
            break;
        }
    }
    Ok(())
}

/// Hammers the programs of `object` with prepared updates.
fn race(object: &Path, updates: &[Vec<Op>], enough: impl Fn(&Tally) -> bool + Send) -> Result<Tally> {
    let topology = Topology::new("race")?;
    let node = topology.node()?;
    let (race, mut store) = UpdateRace::load(object, &node.bpffs().join("race"))?;
    for op in updates.first().context("the first update")? {
        store.apply(op)?;
    }
    let tally = race.run(enough, |progress| apply(&mut store, updates, progress))?;
    println!("{tally:?}");
    Ok(tally)
}

/// So many packets and so many updates.
fn many([short, long]: [u64; 2]) -> impl Fn(&Tally) -> bool {
    let least = lb_seed::short_or_long(short, long);
    move |tally| tally.packets >= least && tally.updates >= least
}

fn edited(name: &str) -> Result<std::path::PathBuf> {
    programs::edited("race", name)
}

#[test]
fn no_packet_meets_a_mix_of_two_generations() -> Result<()> {
    let tally = race(&object()?, &planned()?, many(QUIET))?;
    assert!(many(QUIET)(&tally), "too little to show anything: {tally:?}");
    assert_eq!(tally.misdelivered, 0, "{tally:?}");
    Ok(())
}

/// That updates fall between these look-ups is shown by the test below, on the same programs without the re-check. Here a packet
/// that meets one looks again, and is only counted as torn when it meets a second one at once.
#[test]
fn nor_does_one_whose_look_ups_lie_far_apart() -> Result<()> {
    let tally = race(&edited("widened")?, &planned()?, many(QUIET))?;
    assert!(many(QUIET)(&tally), "too little to show anything: {tally:?}");
    assert_eq!(tally.misdelivered, 0, "{tally:?}");
    Ok(())
}

#[test]
fn without_the_re_check_packets_go_astray() -> Result<()> {
    let object = edited("widened, re-check taken out")?;
    let calm = race(&object, &planned()?[..1], |tally| tally.packets >= 1_000)?;
    assert_eq!((calm.updates, calm.packets), (0, calm.delivered), "without updates all is well: {calm:?}");
    let tally = race(&object, &planned()?, |tally| tally.misdelivered > 0)?;
    assert!(tally.misdelivered > 0, "the race misses the mix that it is to find: {tally:?}");
    Ok(())
}

#[test]
fn with_the_writes_in_the_wrong_order_packets_are_lost() -> Result<()> {
    let tally = race(&object()?, &in_wrong_order(planned()?), |tally| tally.torn > 0)?;
    assert!(tally.torn > 0, "the race misses the half-written update: {tally:?}");
    Ok(())
}

/// As the agent does it: ranges rest before they are written again, so a packet's second look-up finds what the first one
/// promised.
#[test]
fn no_packet_is_lost_while_the_agent_updates() -> Result<()> {
    let topology = Topology::new("race")?;
    let node = topology.node()?;
    let (race, store) = UpdateRace::load(&edited("widened")?, &node.bpffs().join("race"))?;
    let mut programmer = Programmer::restore(store, PlanSettings::default(), now())?;
    let mut turns = [0, 0];
    programmer.sync(&snapshot(turns), &NodeFacts::default(), now());
    let tally = race.run(many(PLANNED), |progress| {
        for subject in [0, 1].into_iter().cycle() {
            turns[subject] += 1;
            let report = programmer.sync(&snapshot(turns), &NodeFacts::default(), now());
            ensure!(report.failures.is_empty() && report.refusals.is_empty(), "{report:?}");
            if !progress.updated() {
                break;
            }
        }
        Ok(())
    })?;
    println!("{tally:?}");
    assert!(many(PLANNED)(&tally), "too little to show anything: {tally:?}");
    assert_eq!((tally.misdelivered, tally.torn, tally.missed), (0, 0, 0), "{tally:?}");
    Ok(())
}
