//! What a change costs in system calls on the maps: the same, however many services and counters there are.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use lb_common::abi::{StatKey, map_name, stat_kind};
use lb_common::outcome::Outcome;
use lb_model::{
    Endpoint, Exposure, Family, Monotonic, ObjectName, Protocol, Service, ServicePort, Slice, SlicePort, Snapshot,
    TrafficPolicy,
};
use lb_plan::{
    apply::{KernelStore, Programmer, Store},
    plan::{BackendId, NodeFacts, Op, PlanSettings},
};
use lb_tables::Pinned;

use super::pin_maps;

/// `count` services with four endpoints each.
fn many(count: u32) -> Snapshot {
    let mut snapshot = Snapshot { revision: 1, ..Snapshot::default() };
    for index in 0..count {
        let address = |net: u8, low: u32| -> std::net::IpAddr {
            let [_, b, c, d] = low.to_be_bytes();
            [net, b, c, d].into()
        };
        let name = ObjectName::new("default", format!("s{index}"));
        let service = Service {
            name: name.clone(),
            exposure: Exposure::Addresses,
            proxy_name: None,
            cluster_ips: vec![address(172, index + 1)],
            ports: vec![ServicePort { name: String::new(), port: 80, protocol: Protocol::Tcp, node_port: None }],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            source_ranges: None,
            health_check_node_port: None,
            affinity_timeout_s: 0,
            options: None,
            created_s: None,
        };
        let own = |n: u32| address(11, index * 4 + n);
        let endpoint = |address| Endpoint {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            zone: None,
            hints: None,
            uid_hash: 0,
        };
        let slice = Slice {
            changed_at: None,
            created_s: None,
            refused: None,
            name: name.clone(),
            service: name.name.clone(),
            family: Family::V4,
            ports: vec![SlicePort { name: String::new(), port: 8080, protocol: Protocol::Tcp }],
            endpoints: [own(1), own(2), own(3), own(4)].map(endpoint).to_vec(),
        };
        snapshot.services.insert(name, Arc::new(service));
        snapshot.slices.insert(slice.key(), Arc::new(slice));
    }
    snapshot
}

/// One endpoint is another one; all else is shared with the snapshot before.
fn with_another_endpoint(snapshot: &Snapshot) -> Result<Snapshot> {
    let mut next = snapshot.clone();
    next.revision += 1;
    let (key, slice) = snapshot.slices.iter().next().context("no slice")?;
    let mut slice = slice.as_ref().clone();
    slice.endpoints[3].address = [10, 9, 9, 9].into();
    next.slices.insert(key.clone(), Arc::new(slice));
    Ok(next)
}

/// Map system calls of one endpoint that is replaced by another one, and of what time does about it, with `count` services.
fn calls_of_a_change(count: u32) -> Result<[u64; 3]> {
    let dir = tempfile::tempdir()?;
    pin_maps(dir.path(), &[])?;
    let at = |seconds| Monotonic::from_duration(Duration::from_secs(seconds));
    let facts = NodeFacts::default();
    let open = || Ok::<_, anyhow::Error>(KernelStore::new(Pinned::open(dir.path())?));
    let mut programmer = Programmer::restore(open()?, PlanSettings::default(), at(1))?;
    let first = many(count);
    let mut report = programmer.sync(&first, &facts, at(1));
    while report.waiting > 0 {
        report = programmer.tick(at(1));
    }
    assert_eq!((report.services, report.failures.len(), report.refusals.len()), (count as usize, 0, 0));
    assert!(programmer.store().calls() < u64::from(count) / 10 + 300, "bulk goes in batches");
    let mut calls = programmer.store().calls();
    let mut since = |programmer: &Programmer<KernelStore>| {
        let before = std::mem::replace(&mut calls, programmer.store().calls());
        calls - before
    };
    let next = with_another_endpoint(&first)?;
    programmer.sync(&next, &facts, at(10));
    let change = since(&programmer);
    // The old slots are free again, then the drain ends.
    programmer.tick(at(11));
    let release = since(&programmer);
    programmer.tick(at(41));
    let drained = since(&programmer);
    let audit = programmer.audit(false, at(42));
    assert_eq!((audit.findings, audit.failures), (vec![], vec![]));
    let mut restarted = Programmer::restore(open()?, PlanSettings::default(), at(50))?;
    assert_eq!(restarted.sync(&next, &facts, at(50)).writes, 0);
    Ok([change, release, drained])
}

#[test]
fn a_change_costs_the_same_calls_however_many_services_there_are() -> Result<()> {
    let few = calls_of_a_change(10)?;
    assert_eq!(calls_of_a_change(1_000)?, few);
    let many = std::env::var("BALLAST_TEST_SERVICES").ok().and_then(|count| count.parse().ok()).unwrap_or(5_000);
    assert_eq!(calls_of_a_change(many)?, few);
    assert!(few[0] <= 6, "calls of a change, of the release of its slots, of the end of the drain: {few:?}");
    Ok(())
}

/// Counters of ids that are given up, in a table that holds many of others: what it costs is bounded by their own.
#[test]
fn ids_that_are_given_up_cost_no_more_calls_than_they_have_counters() -> Result<()> {
    const OTHERS: u32 = 20_000;
    for (freed, outcomes) in [(1, 2), (5, 2), (5_000, 2)] {
        let dir = tempfile::tempdir()?;
        pin_maps(dir.path(), &[(map_name::STATS, 65_536)])?;
        let (mut store, mut maps) = (KernelStore::new(Pinned::open(dir.path())?), Pinned::open(dir.path())?);
        let key = |id, outcome| StatKey { id, kind: stat_kind::BACKEND4, outcome, pad: 0 };
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        for (id, outcome) in (1..=OTHERS + freed).flat_map(|id| (0..outcomes).map(move |outcome| (id, outcome))) {
            let one = aya::maps::PerCpuValues::try_from(vec![1_u64; cpus])?;
            maps.stats.insert(key(id, outcome), one, 0)?;
        }
        let free = |id| Op::FreeBackend { id: BackendId { family: Family::V4, id }, generation: 2 };
        let ops: Vec<Op> = (1..=freed).map(free).collect();
        let before = store.calls();
        assert!(store.apply_all(&ops.iter().collect::<Vec<_>>()).iter().all(Result::is_ok));
        let calls = store.calls() - before;
        let left = maps.stats.keys().flatten().filter(|key| key.id <= freed).count();
        assert_eq!((left, maps.stats.keys().count()), (0, (OTHERS * u32::from(outcomes)) as usize));
        // For few ids the table is not searched: each counter that there may be is one call. Two more are about the endpoint, and one
        // about connect times.
        let counters = if freed < 1_000 { Outcome::ALL.len() as u64 } else { outcomes.into() };
        assert!(calls <= u64::from(freed) * (counters + 3) + 100, "{freed} ids took {calls} calls");
    }
    Ok(())
}
