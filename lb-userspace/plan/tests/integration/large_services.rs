//! A service of any size is written in parts. Other changes are written between them, no reader sees half of it, and a restart between two parts goes
//! on.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use lb_model::{Monotonic, ObjectName, SlotShares, Snapshot};
use lb_objects::convert;
use lb_plan::{
    apply::{MemoryStore, Programmer, Report},
    plan::{Capacities, NodeFacts, Part, PlanSettings},
};
use serde_json::{Value, json};

const RUN_MAX: usize = 64;
const NOW: u64 = 10;

/// A service with this cluster IP, `ports` ports and `endpoints` endpoints.
fn put(snapshot: &mut Snapshot, name: &str, cluster_ip: &str, ports: usize, endpoints: usize) {
    put_annotated(snapshot, name, cluster_ip, (ports, endpoints), &json!({}));
}

fn put_annotated(
    snapshot: &mut Snapshot,
    name: &str,
    cluster_ip: &str,
    (ports, endpoints): (usize, usize),
    annotations: &Value,
) {
    let port = |base: usize| {
        (0..ports).map(move |port| json!({"name": format!("p{port}"), "port": base + port})).collect::<Vec<_>>()
    };
    let service = json!({
        "metadata": {"name": name, "namespace": "demo", "annotations": annotations},
        "spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": port(80)},
    });
    let endpoint = |nth: usize| json!({"addresses": [format!("10.1.{}.{}", nth / 250, 1 + nth % 250)]});
    let slice = json!({
        "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": port(8080), "endpoints": (0..endpoints).map(endpoint).collect::<Value>(),
    });
    let service = convert::service(&serde_json::from_value(service).expect("a Service")).object.expect("valid");
    let slice = convert::slice(&serde_json::from_value(slice).expect("a slice")).object.expect("valid");
    snapshot.revision += 1;
    snapshot.services.insert(service.name.clone(), Arc::new(service));
    snapshot.slices.insert(slice.key(), Arc::new(slice));
}

fn remove(snapshot: &mut Snapshot, name: &str) {
    snapshot.revision += 1;
    snapshot.services.remove(&ObjectName::new("demo", name));
    snapshot.slices = snapshot
        .slices
        .iter()
        .filter(|(key, _)| &*key.name != name)
        .map(|(key, slice)| (key.clone(), slice.clone()))
        .collect();
}

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_duration(Duration::from_secs(seconds))
}

fn restored(store: MemoryStore, run_max: usize) -> Programmer<MemoryStore> {
    let settings = PlanSettings { run_max, ..PlanSettings::without_drain_max() };
    Programmer::restore(store, settings, at(NOW)).expect("memory can be read")
}

/// A programmer whose every write is judged as a reader would.
fn judged() -> Programmer<MemoryStore> {
    let mut store = MemoryStore::new(Capacities::all(5_000));
    store.check_each_write = true;
    restored(store, RUN_MAX)
}

fn sync(programmer: &mut Programmer<MemoryStore>, snapshot: &Snapshot) -> Report {
    bounded(programmer.sync(snapshot, &NodeFacts::default(), at(NOW)))
}

/// Frontends and what belongs to them come on top of a part; releases are as many again.
fn bounded(report: Report) -> Report {
    assert!(report.writes <= 4 * RUN_MAX, "{} writes in one run", report.writes);
    assert_eq!((report.failing, report.refusals.len()), (0, 0), "{report:?}");
    report
}

/// Ticks as the agent does, until nothing is due at this time; how many runs it took.
fn finish(programmer: &mut Programmer<MemoryStore>, seconds: u64) -> usize {
    let mut now = at(NOW);
    for runs in 0..1_000 {
        let Some(due) = programmer.next_tick().filter(|due| *due <= at(seconds)) else { return runs };
        now = now.max(due);
        bounded(programmer.tick(now));
    }
    panic!("it never ends");
}

fn addresses(programmer: &Programmer<MemoryStore>) -> BTreeSet<IpAddr> {
    programmer.store().frontends.keys().map(|frontend| frontend.address).collect()
}

#[test]
fn what_others_change_does_not_wait_for_the_rest_of_a_large_service() {
    let (mut programmer, mut snapshot) = (judged(), Snapshot::default());
    put(&mut snapshot, "large", "10.96.0.1", 20, 50);
    assert!(sync(&mut programmer, &snapshot).waiting > 10);
    put(&mut snapshot, "web", "10.96.0.2", 2, 3);
    let report = sync(&mut programmer, &snapshot);
    assert!(report.waiting > 10, "the rest of the large one still waits");
    assert_eq!(
        programmer.store().frontends.keys().filter(|one| one.address == IpAddr::from([10, 96, 0, 2])).count(),
        2
    );
    assert!(programmer.store().vips.contains_key(&IpAddr::from([10, 96, 0, 2])));
    assert_eq!(programmer.store().programmed, None, "not all of it is in the tables");
    assert!(finish(&mut programmer, NOW) > 5);
    assert_eq!(
        (programmer.programmed().services().served(), programmer.programmed().backends().records().len()),
        (22, 1_006)
    );
    assert_eq!(programmer.store().programmed.map(|(revision, _)| revision), Some(2));
    assert_eq!(programmer.store().vips.len(), 2);
    // It goes, and again nobody waits for it.
    remove(&mut snapshot, "large");
    assert!(sync(&mut programmer, &snapshot).waiting > 5);
    remove(&mut snapshot, "web");
    sync(&mut programmer, &snapshot);
    assert_eq!(addresses(&programmer), [IpAddr::from([10, 96, 0, 1])].into());
    finish(&mut programmer, NOW + 200);
    assert_eq!(programmer.store().dump(), "");
}

#[test]
fn one_port_with_very_many_endpoints_is_written_in_parts_and_seen_as_a_whole() {
    let (mut programmer, mut snapshot) = (judged(), Snapshot::default());
    put(&mut snapshot, "wide", "10.96.0.1", 1, 1_000);
    let mut report = sync(&mut programmer, &snapshot);
    while report.waiting > 0 {
        assert!(programmer.store().frontends.is_empty(), "nothing leads to what is not complete");
        report = bounded(programmer.tick(at(NOW)));
    }
    finish(&mut programmer, NOW);
    let counts: Vec<u32> = programmer.store().frontends.values().map(|entry| entry.slot_count).collect();
    assert_eq!(counts, [1_000]);
    // All others go at once.
    put(&mut snapshot, "wide", "10.96.0.1", 1, 1);
    sync(&mut programmer, &snapshot);
    assert!(finish(&mut programmer, NOW) > 5);
    let report = programmer.tick(at(NOW));
    assert_eq!((report.backends.active, report.backends.draining), (1, 999));
    finish(&mut programmer, NOW + 200);
    assert_eq!(programmer.programmed().backends().records().len(), 1);
}

/// Wherever the agent is killed, the next one ends where an agent does that was never killed.
#[test]
fn a_restart_between_two_parts_goes_on() {
    let mut snapshot = Snapshot::default();
    put(&mut snapshot, "large", "10.96.0.1", 6, 100);
    let mut whole = judged();
    sync(&mut whole, &snapshot);
    let parts = finish(&mut whole, NOW);
    assert!(parts > 5);
    for killed_after in 0..parts {
        let mut programmer = judged();
        sync(&mut programmer, &snapshot);
        for _ in 0..killed_after {
            programmer.tick(at(NOW));
        }
        let mut store = programmer.into_store();
        store.end_readers();
        let mut next = restored(store, RUN_MAX);
        sync(&mut next, &snapshot);
        finish(&mut next, NOW + 5);
        assert_eq!(
            (next.programmed().services().served(), next.programmed().backends().records().len()),
            (6, 600),
            "after {killed_after} parts"
        );
        assert_eq!(next.programmed().slots().live(0).count(), 6);
    }
}

/// The frontends always lead somewhere, however the new owner and the old one fall into parts.
#[test]
fn a_large_service_that_takes_over_from_another_one_leaves_no_gap() {
    let orders = [["a-before", "b-after"], ["b-before", "a-after"]];
    // Many ports, and one that is larger than a part.
    let sizes = [(10, 40), (1, 400)];
    for (names, (ports, endpoints)) in orders.into_iter().flat_map(|names| sizes.map(|size| (names, size))) {
        let (mut programmer, mut snapshot) = (judged(), Snapshot::default());
        put(&mut snapshot, names[0], "10.96.0.1", ports, endpoints);
        sync(&mut programmer, &snapshot);
        finish(&mut programmer, NOW);
        remove(&mut snapshot, names[0]);
        put(&mut snapshot, names[1], "10.96.0.1", ports, endpoints);
        let mut report = sync(&mut programmer, &snapshot);
        while report.waiting > 0 {
            assert_eq!(programmer.store().frontends.len(), ports);
            report = bounded(programmer.tick(at(NOW)));
        }
        finish(&mut programmer, NOW);
        assert_eq!(programmer.store().frontends.len(), ports);
        assert!(programmer.programmed().services().served() == ports && programmer.store().vips.len() == 1);
    }
}

/// The largest table that there is, as often as its endpoints change.
#[test]
fn what_others_change_does_not_wait_for_a_maglev_table() {
    const SLOTS: u32 = 131_071;
    let largest = json!({"ballast.dev/scheduler": "maglev", "ballast.dev/maglev-size": SLOTS.to_string()});
    let settings =
        PlanSettings { slot_shares: SlotShares { service: 1, namespace: 1 }, ..PlanSettings::without_drain_max() };
    let store = MemoryStore::new(Capacities::all(5_000).with(Part::Slots, 4 * SLOTS));
    let mut programmer = Programmer::restore(store, settings, at(NOW)).expect("memory can be read");
    let mut snapshot = Snapshot::default();
    let run = |programmer: &mut Programmer<MemoryStore>, snapshot: &Snapshot| {
        programmer.sync(snapshot, &NodeFacts::default(), at(NOW))
    };
    for (endpoints, web) in [(1_000, 1), (999, 2)] {
        put_annotated(&mut snapshot, "large", "10.96.0.1", (1, endpoints), &largest);
        assert!(run(&mut programmer, &snapshot).waiting > 0);
        put(&mut snapshot, "web", "10.96.0.2", 1, web);
        assert!(run(&mut programmer, &snapshot).waiting > 0, "the table is still being computed");
        let web_slots = |programmer: &Programmer<MemoryStore>| {
            let frontends = programmer.store().frontends.iter();
            let mut web = frontends.filter(|(frontend, _)| frontend.address == IpAddr::from([10, 96, 0, 2]));
            web.next().map(|(_, entry)| entry.slot_count)
        };
        assert_eq!(web_slots(&programmer), Some(u32::try_from(web).expect("few")), "others are served meanwhile");
        assert_eq!(programmer.audit(true, at(NOW)).findings, [], "what waits is no drift");
        let mut runs = 0;
        while programmer.next_tick().is_some_and(|due| due <= at(NOW)) {
            programmer.tick(at(NOW));
            runs += 1;
        }
        assert!(runs > 3, "{runs}");
        let large = programmer.store().frontends.values().map(|entry| entry.slot_count).max();
        let store = programmer.store();
        assert_eq!((large, store.programmed.map(|(revision, _)| revision)), (Some(SLOTS), Some(snapshot.revision)));
        assert_eq!(store.problems(), [] as [String; 0]);
    }
    let writes = programmer.store().log.len();
    assert_eq!(programmer.audit(false, at(NOW)).findings, []);
    assert_eq!(programmer.store().log.len(), writes);
}

#[test]
fn an_audit_finds_no_fault_with_what_waits() {
    let (mut programmer, mut snapshot) = (judged(), Snapshot::default());
    put(&mut snapshot, "large", "10.96.0.1", 20, 50);
    sync(&mut programmer, &snapshot);
    let report = programmer.audit(false, at(NOW));
    assert!(report.findings.is_empty() && report.failures.is_empty(), "{report:?}");
    finish(&mut programmer, NOW);
    let report = programmer.audit(false, at(NOW));
    assert!(report.findings.is_empty() && report.checked > 1_000, "{report:?}");
}
