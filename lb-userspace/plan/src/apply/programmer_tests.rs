//! When the programmer works, when it waits, and when it comes again.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    apply::MemoryStore,
    plan::{Capacities, DrainEnds, Part},
};
use lb_objects::manifest::snapshot;

#[path = "hold_tests.rs"]
mod hold;

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.0.0.1]}]
";

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_duration(Duration::from_secs(seconds))
}

fn programmed() -> Programmer<MemoryStore> {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    let report = programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10));
    assert_eq!((report.revision, report.services, report.backends.active), (4, 1, 1));
    programmer
}

#[test]
fn a_backend_that_was_written_without_its_name_is_written_again() {
    let web = WEB.replace("[10.0.0.1]}", "[10.0.0.1], nodeName: n1}");
    let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::without_drain_max() };
    let run = |store, now| {
        let mut programmer = Programmer::restore(store, settings.clone(), now).unwrap();
        let report = programmer.sync(&snapshot(&web), &NodeFacts::default(), now);
        (programmer.into_store(), report.writes)
    };
    let (mut store, _) = run(MemoryStore::roomy(), at(10));
    let named = std::mem::take(&mut store.endpoints);
    assert_eq!(named.len(), 1);
    let (store, _) = run(store, at(11));
    assert_eq!(store.endpoints, named);
    assert_eq!(run(store, at(12)).1, 0, "nothing is left to write");
}

/// An agent that was killed between the new entry and the end of the old record leaves two live records of one address.
#[test]
fn of_two_live_records_the_one_that_slots_lead_to_goes_on() {
    let pod = |uid: &str| {
        let text = format!("[10.0.0.1], targetRef: {{kind: Pod, name: {uid}, uid: {uid}}}");
        snapshot(&WEB.replace("[10.0.0.1]", &text))
    };
    let facts = NodeFacts::default();
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    let id = |id| BackendId { family: lb_model::Family::V4, id };
    // Ids 1 and 2 are taken, and 1 is free again: the pod that follows the one with 2 gets it.
    let other = WEB.replace("web", "db").replace("10.96.0.1", "10.96.0.2").replace("10.0.0.1", "10.0.0.9");
    programmer.sync(&snapshot(&other), &facts, at(10));
    let mut both = pod("a");
    both.services.extend(snapshot(&other).services);
    both.slices.extend(snapshot(&other).slices);
    programmer.sync(&both, &facts, at(11));
    assert_eq!(programmer.store().backends[&id(2)].address, "10.0.0.1:80".parse().unwrap());
    programmer.sync(&pod("a"), &facts, at(12));
    for seconds in [50, 120] {
        programmer.tick(at(seconds));
    }
    let before = programmer.store().backends[&id(2)];
    programmer.sync(&pod("b"), &facts, at(130));
    assert_eq!(programmer.store().backends[&id(1)].address, before.address);
    let mut store = programmer.into_store();
    store.backends.insert(id(2), before);
    let mut restarted = Programmer::restore(store, PlanSettings::without_drain_max(), at(140)).unwrap();
    let served = restarted.store().dump();
    restarted.sync(&pod("b"), &facts, at(140));
    let state = |programmer: &Programmer<MemoryStore>, number| programmer.store().backends[&id(number)].state;
    let (active, gone) = (lb_common::abi::backend_state::ACTIVE, lb_common::abi::backend_state::GONE);
    assert_eq!([state(&restarted, 1), state(&restarted, 2)], [active, gone], "{served}");
}

#[test]
fn nothing_happens_before_the_first_snapshot_however_old_the_deadlines() {
    let mut programmer = programmed();
    programmer.sync(&Snapshot::default(), &NodeFacts::default(), at(20));
    let store = programmer.into_store();
    let before = store.dump();
    let mut restarted = Programmer::restore(store, PlanSettings::without_drain_max(), at(1000)).unwrap();
    assert_eq!(restarted.next_tick(), None);
    assert_eq!(restarted.tick(at(2000)), Report::default());
    assert_eq!(restarted.store().dump(), before);
}

#[test]
fn the_next_tick_is_the_next_thing_that_is_due() {
    let mut programmer = programmed();
    assert_eq!(programmer.next_tick(), None);
    let report = programmer.sync(&Snapshot::default(), &NodeFacts::default(), at(20));
    assert_eq!(report.oldest_drain, Some(Duration::ZERO));
    // The slots have rested, the drain ends, the id is looked for.
    for due in [at(21), at(50), at(110)] {
        assert_eq!(programmer.next_tick(), Some(due));
        programmer.tick(due);
    }
    assert_eq!(programmer.next_tick(), None);
    assert_eq!(programmer.store().dump(), "");
}

/// Each drain has one end, whatever came between.
#[test]
fn drains_are_counted_by_how_they_ended() {
    let pod = |uid: &str| {
        let text = format!("[10.0.0.1], targetRef: {{kind: Pod, name: {uid}, uid: {uid}}}");
        snapshot(&WEB.replace("[10.0.0.1]", &text))
    };
    let (none, facts) = (Snapshot::default(), NodeFacts::default());
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::default(), at(10)).unwrap();
    let mut sync = |snapshot: &Snapshot, seconds| programmer.sync(snapshot, &facts, at(seconds));
    sync(&pod("a"), 10);
    sync(&none, 20);
    let ends = sync(&pod("a"), 21).drain_ends;
    assert_eq!(ends, DrainEnds { returned: 1, ..DrainEnds::default() });
    sync(&none, 30);
    let ends = sync(&pod("b"), 31).drain_ends;
    assert_eq!(ends, DrainEnds { returned: 1, replaced: 1, ..DrainEnds::default() });
    sync(&none, 40);
    // Another agent goes on with it, and knows its age.
    let mut programmer = Programmer::restore(programmer.into_store(), PlanSettings::default(), at(50)).unwrap();
    assert_eq!(programmer.sync(&none, &facts, at(60)).oldest_drain, Some(Duration::from_secs(20)));
    // Its period is over, and it may have connections.
    let report = programmer.tick(at(70));
    assert_eq!((report.oldest_drain, report.drain_ends), (Some(Duration::from_secs(30)), DrainEnds::default()));
    let report = programmer.tick(at(3_640));
    assert_eq!((report.oldest_drain, report.drain_ends), (None, DrainEnds { deadline: 1, ..DrainEnds::default() }));
    // One that is known to have no flow left was empty at its end.
    programmer.sync(&pod("c"), &facts, at(3_650));
    programmer.sync(&none, &facts, at(3_660));
    let idle = programmer.programmed().drains().ids().collect();
    programmer.note_idle(&idle);
    assert_eq!(programmer.tick(at(3_680)).drain_ends, DrainEnds { deadline: 1, ..DrainEnds::default() });
    assert_eq!(programmer.next_tick(), Some(at(3_690)), "when its period ends");
    assert_eq!(programmer.tick(at(3_690)).drain_ends, DrainEnds { deadline: 1, empty: 1, ..DrainEnds::default() });
}

#[test]
fn the_age_of_the_oldest_drain_is_told_also_when_it_is_overdue() {
    let mut programmer = programmed();
    programmer.sync(&Snapshot::default(), &NodeFacts::default(), at(20));
    // The release of the slots succeeds, the end of the drain does not.
    programmer.store_mut().failures = vec![1];
    let report = programmer.tick(at(55));
    assert_eq!((report.failures.len(), report.oldest_drain), (1, Some(Duration::from_secs(35))));
}

#[test]
fn a_failure_comes_again_after_a_pause_that_doubles() {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    // The name, the address and the note, seven times each.
    programmer.store_mut().failures = vec![0; 21];
    let report = programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10));
    assert_eq!(
        report.failures,
        [
            "Service default/web:80/TCP: write name of service port 1: fails as the test asks",
            "address 10.96.0.1: write address 10.96.0.1: fails as the test asks"
        ]
    );
    let mut now = at(10);
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        now = now + Duration::from_secs(pause);
        assert_eq!(programmer.next_tick(), Some(now));
        programmer.tick(now);
    }
    assert_eq!(programmer.next_tick(), None);
    assert_eq!(programmer.store().frontends.len(), 1);
    assert_eq!(programmer.store().programmed, Some((4, now.to_tenths())));
}

/// Whatever changes meanwhile.
#[test]
fn a_subject_that_can_never_be_written_delays_no_other_and_is_tried_ever_more_rarely() {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    programmer.store_mut().broken = [std::net::IpAddr::from([10, 96, 0, 1])].into();
    let (mut failed, mut passes) = (0, 0);
    for tenth in (0..1_200).step_by(5) {
        let now = at(10) + Duration::from_millis(100 * tenth);
        let other = WEB.replace("web", "db").replace("10.96.0.1", "10.96.0.2");
        let other = other.replace("10.0.0.1", &format!("10.0.1.{}", 1 + tenth % 200));
        let mut both = snapshot(&format!("{WEB}---{other}"));
        both.revision = 5 + tenth;
        let report = programmer.sync(&both, &NodeFacts::default(), now);
        failed += report.failed_writes;
        passes += 1;
        assert!(programmer.store().dump().contains(&format!("-> 10.0.1.{}:80", 1 + tenth % 200)), "{passes}");
        assert_eq!((report.failing, report.failures.len()), (2, 2), "the service and its address");
        assert!(report.failures[0].contains("Service default/web:80/TCP: write frontend"), "{report:?}");
        assert_ne!(report.writable.map(|written| written.is_ok()), Some(false), "others are written");
    }
    // After 0, 1, 3, 7, 15, 31, 61 and 91 s, each time the service and its address.
    assert_eq!(failed, 16);
    programmer.store_mut().broken.clear();
    let report = programmer.tick(at(10) + Duration::from_secs(121));
    assert_eq!((report.failing, programmer.store().frontends.len()), (0, 2));
}

/// Others that fail meanwhile make it no older.
#[test]
fn a_subject_fails_since_its_own_first_failure() {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    let other = WEB.replace("web", "db").replace("10.96.0.1", "10.96.0.2").replace("10.0.0.1", "10.0.0.9");
    let both = snapshot(&format!("{WEB}---{other}"));
    let (web, db) = (std::net::IpAddr::from([10, 96, 0, 1]), std::net::IpAddr::from([10, 96, 0, 2]));
    programmer.store_mut().broken = [web].into();
    assert_eq!(programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10)).failing_since, Some(at(10)));
    programmer.store_mut().broken = [web, db].into();
    let report = programmer.sync(&both, &NodeFacts::default(), at(18));
    assert_eq!((report.failing, report.failing_since), (4, Some(at(10))), "each service and its address");
    programmer.store_mut().broken = [db].into();
    let report = programmer.tick(at(25));
    assert_eq!((report.failing, report.failing_since), (2, Some(at(18))));
    programmer.store_mut().broken.clear();
    assert_eq!(programmer.tick(at(56)).failing_since, None);
}

/// If the revision cannot be written, nothing can be written.
#[test]
fn tables_that_cannot_be_written_at_all_are_told_from_one_subject() {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    programmer.store_mut().broken = [std::net::IpAddr::from([10, 96, 0, 1])].into();
    assert_eq!(programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10)).writable, Some(Ok(())));
    let report = programmer.tick(at(11));
    assert_eq!((report.failed_writes, report.writable), (2, Some(Ok(()))), "the note is written");
    programmer.store_mut().failures = vec![0; 9];
    let report = programmer.tick(at(13));
    assert_eq!(report.writable, Some(Err("noting the revision: fails as the test asks".to_owned())));
    programmer.store_mut().failures.clear();
    programmer.store_mut().broken.clear();
    assert_eq!(programmer.tick(at(17)).writable, Some(Ok(())));
}

#[test]
fn tables_that_are_not_complete_are_not_noted_as_programmed() {
    let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::without_drain_max(), at(10)).unwrap();
    programmer.store_mut().failures = vec![2];
    programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10));
    assert_eq!(programmer.store().programmed.map(|(revision, _)| revision), Some(0), "what was noted before");
}

#[test]
fn a_name_that_was_lost_does_not_keep_its_service_alive() {
    let mut store = programmed().into_store();
    store.names.clear();
    let mut restarted = Programmer::restore(store, PlanSettings::without_drain_max(), at(20)).unwrap();
    restarted.sync(&Snapshot::default(), &NodeFacts::default(), at(20));
    assert_eq!(restarted.store().frontends.len(), 0);
    for seconds in 21..200 {
        restarted.tick(at(seconds));
    }
    assert_eq!(restarted.store().dump(), "");
}

/// One table without room delays nobody else's drain, and is not asked without end.
#[test]
fn a_full_table_keeps_nobody_from_ending() {
    // Room for one slot, and for as many that are kept free.
    let small = Capacities::all(9).with(Part::Slots, 2);
    let mut programmer =
        Programmer::restore(MemoryStore::new(small), PlanSettings::without_drain_max(), at(10)).unwrap();
    programmer.sync(&snapshot(WEB), &NodeFacts::default(), at(10));
    // The web goes; db takes its slot once it has rested.
    let db = snapshot(&WEB.replace("web", "db").replace("10.96.0.1", "10.96.0.2"));
    let report = programmer.sync(&db, &NodeFacts::default(), at(20));
    assert!(report.refusals[0].reason.contains("map slots is full"), "{report:?}");
    let report = programmer.tick(at(21));
    assert_eq!((report.refusals.len(), programmer.store().frontends.len()), (0, 1));
    // db's next endpoint finds no room as long as the first one is there.
    let two =
        WEB.replace("web", "db").replace("10.96.0.1", "10.96.0.2").replace("[{addr", "[{addresses: [10.0.0.2]}, {addr");
    programmer.sync(&snapshot(&two), &NodeFacts::default(), at(22));
    let mut asked = 0;
    while let Some(due) = programmer.next_tick().filter(|due| *due <= at(120)) {
        let report = programmer.tick(due);
        asked += 1;
        assert_eq!(report.refusals.len(), 1, "still refused, whatever the tick was for");
        assert_eq!(report.backends.gone > 0, (at(50)..at(110)).contains(&due), "at {due:?}");
    }
    assert!(asked < 12, "asked {asked} times");
    // Room comes.
    programmer.sync(&db, &NodeFacts::default(), at(130));
    assert_eq!(programmer.next_tick(), None);
}
