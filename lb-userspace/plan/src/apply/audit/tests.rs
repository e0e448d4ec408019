//! Whatever is done to the tables is found, called by its name, and put right; what is as it should be is left alone.

use std::{collections::BTreeMap, time::Duration};

use lb_common::abi::{self, backend_state};
use proptest::prelude::*;

use super::damage::{damage, table_of};
use super::*;
use crate::{
    apply::MemoryStore,
    plan::{BackendId, BackendRecord, Frontend, NodeFacts, Op, PlanSettings},
};
use lb_model::{Family, Snapshot};
use lb_objects::manifest::snapshot;

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.1, 'fd00::1']
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8::/32']
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: '2001:db8:1::1'}]}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1], nodeName: n1}, {addresses: [10.0.0.2], nodeName: n2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ['fd01::1'], nodeName: n2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-4, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{port: 5432}]
endpoints: [{addresses: [10.0.0.3]}, {addresses: [10.0.0.4]}]
";

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_duration(Duration::from_secs(seconds))
}

fn facts() -> NodeFacts {
    let addresses = ["192.0.2.9", "2001:db8::9"].map(|address| address.parse().unwrap());
    NodeFacts { addresses: addresses.into(), ..NodeFacts::default() }
}

/// Tables with a bit of everything: frontends of all kinds, both sets, source ranges, a drain, an id that is free again.
fn programmed() -> Programmer<MemoryStore> {
    let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::without_drain_max() };
    let mut programmer = Programmer::restore(MemoryStore::roomy(), settings, at(10)).unwrap();
    programmer.sync(&snapshot(&OBJECTS.replace("[10.0.0.4]", "[10.0.0.9]")), &facts(), at(10));
    programmer.sync(&snapshot(OBJECTS), &facts(), at(20));
    while let Some(due) = programmer.next_tick() {
        programmer.tick(due);
    }
    let report = programmer.sync(&snapshot(&OBJECTS.replace("{addresses: [10.0.0.3]}, ", "")), &facts(), at(200));
    assert_eq!((report.failures.len(), report.refusals.len(), report.backends.draining), (0, 0, 1), "{report:?}");
    let programmed = programmer.programmed();
    assert!(
        !programmed.backends().generations().is_empty()
            && programmed.frontends().iter().count() >= 5
            && programmed.vips().iter().count() > 0,
        "{programmed:?}"
    );
    assert_eq!(programmed.services().iter().map(|(_, service)| service.sources.len()).sum::<usize>(), 2);
    programmer
}

/// What readers and the next agent go by.
fn content(programmer: &Programmer<MemoryStore>) -> impl PartialEq + std::fmt::Debug + use<> {
    let store = programmer.store();
    let used = store.backends.iter().filter(|(_, record)| record.state != backend_state::FREE);
    let used: BTreeMap<_, _> = used.map(|(id, record)| (*id, *record)).collect();
    let live = programmer.programmed().slots().live(0);
    let slots: Vec<_> =
        live.flat_map(|(base, slots)| (base..).zip(slots).map(|(i, _)| store.slots.get(&i).copied())).collect();
    let MemoryStore { names, frontends, sources, vips, programmed, .. } = store.clone();
    (names, frontends, used, slots, sources, vips, programmed)
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), lb_seed::short_or_long(50, 200)))]

    #[test]
    fn one_damage_is_one_finding_of_its_kind(damage in damage()) {
        let mut programmer = programmed();
        let before = content(&programmer);
        let Some((target, kind)) = damage.carry_out(&mut programmer) else { return Ok(()) };
        let seen = programmer.audit(true, at(201));
        prop_assert_eq!(seen.findings.iter().map(|finding| (table_of(finding), finding.kind)).collect::<Vec<_>>(), [(target, kind)]);
        let report = programmer.audit(false, at(201));
        prop_assert_eq!(report.repaired(), 1);
        let unrepaired = report.findings.iter().map(|finding| Finding { repaired: false, ..finding.clone() });
        prop_assert_eq!(unrepaired.collect::<Vec<_>>(), seen.findings);
        prop_assert_eq!(content(&programmer), before);
    }

    #[test]
    fn whatever_is_done_is_put_right(damages in prop::collection::vec(damage(), 1..30)) {
        let mut programmer = programmed();
        let before = content(&programmer);
        for damage in &damages {
            damage.carry_out(&mut programmer);
        }
        let report = programmer.audit(false, at(201));
        prop_assert_eq!((report.failures.len(), report.repaired()), (0, report.findings.len()));
        prop_assert_eq!(content(&programmer), before);
        prop_assert_eq!(programmer.audit(false, at(201)).findings, []);
    }
}

#[test]
fn what_is_right_is_left_alone_also_while_it_drains_and_after_a_restart() {
    let mut programmer = programmed();
    let writes = programmer.store().log.len();
    let report = programmer.audit(false, at(201));
    assert!(report.findings.is_empty() && report.failures.is_empty() && report.checked > 20, "{report:?}");
    assert_eq!(programmer.store().log.len(), writes, "nothing was written");
    // The drain goes on to its end.
    for seconds in 202..240 {
        programmer.tick(at(seconds));
        let report = programmer.audit(false, at(seconds));
        assert_eq!(report.findings, [], "at {seconds} s");
    }
    assert_eq!(programmer.programmed().backends().count_in(backend_state::DRAINING), 0);
    let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::without_drain_max() };
    let mut restarted = Programmer::restore(programmer.into_store(), settings, at(300)).unwrap();
    assert_eq!(restarted.audit(false, at(300)), AuditReport::default(), "without a snapshot nothing is judged");
    restarted.sync(&snapshot(&OBJECTS.replace("{addresses: [10.0.0.3]}, ", "")), &facts(), at(301));
    assert_eq!(restarted.audit(false, at(301)).findings, []);
}

#[test]
fn no_address_of_services_is_ruled_out_and_what_is_gone_is_again() {
    let mut programmer = programmed();
    let held = |programmer: &Programmer<MemoryStore>, address: &str| {
        vip_filter::is_ruled_out(&programmer.store().vip_filter, address.parse().unwrap())
    };
    assert!(held(&programmer, "10.0.0.1") && !held(&programmer, "10.96.0.1") && !held(&programmer, "fd00::1"));
    // Somebody else's doing: what was written is lost on packets.
    let everybody = vip_filter::all_but(std::iter::empty());
    programmer.store_mut().vip_filter = everybody.clone();
    let addresses = programmer.programmed().addresses().count();
    let seen = programmer.audit(true, at(201));
    let is_lost = |finding: &Finding| (finding.table.as_str(), finding.kind) == ("vip_filter", FindingKind::Edited);
    assert!(seen.findings.len() == addresses && seen.findings.iter().all(is_lost), "{seen:?}");
    assert_eq!(programmer.audit(false, at(201)).repaired(), addresses);
    assert_eq!(programmer.audit(false, at(201)).findings, []);
    assert!(held(&programmer, "10.0.0.1") && !held(&programmer, "10.96.0.2"));
    // Services go: their addresses may be looked up until the next audit, and that is no finding.
    programmer.sync(&Snapshot { revision: 8, ..Snapshot::default() }, &facts(), at(202));
    assert!(!held(&programmer, "10.96.0.2"));
    assert_eq!(programmer.audit(false, at(203)).findings, []);
    assert!(held(&programmer, "10.96.0.2") && programmer.store().vip_filter == everybody);
}

#[test]
fn the_tables_of_a_version_without_vip_filter_rule_nothing_out() {
    let mut programmer = programmed();
    programmer.store_mut().vip_filter = vip_filter::all_but(std::iter::empty());
    let restarted = Programmer::restore(programmer.into_store(), PlanSettings::without_drain_max(), at(300)).unwrap();
    assert_eq!(restarted.store().problems(), [] as [String; 0]);
}

#[test]
fn a_finding_speaks_of_the_service() {
    let mut programmer = programmed();
    let frontend = Frontend { address: "10.96.0.1".parse().unwrap(), port: 80, protocol: lb_model::Protocol::Tcp };
    programmer.store_mut().frontends.get_mut(&frontend).unwrap().affinity_timeout_s = 5;
    let report = programmer.audit(true, at(201));
    assert_eq!(
        report.findings[0].to_string(),
        "services4 10.96.0.1:80/TCP: edited (Service shop/web:80/TCP), affinity_timeout_s 5, expected 0"
    );
    assert_eq!(report.counts(), BTreeMap::from([(("services4", FindingKind::Edited), 1)]));
}

#[test]
fn a_repair_that_fails_is_told_and_comes_with_the_next_audit() {
    let mut programmer = programmed();
    programmer.store_mut().names.clear();
    programmer.store_mut().failures = vec![0];
    let report = programmer.audit(false, at(201));
    assert_eq!((report.findings.len(), report.repaired(), report.failures.len()), (2, 1, 1), "{report:?}");
    assert_eq!(programmer.audit(false, at(202)).repaired(), 1);
}

/// An id that somebody else used must not be given out with a generation that a flow of his may hold.
#[test]
fn a_foreign_backend_s_generation_is_not_used_again() {
    let mut programmer = programmed();
    let id = programmer.programmed().backends().free(Family::V4).find(|(_, generation)| *generation == 1).unwrap().0;
    let record = *programmer.store().backends.values().next().unwrap();
    programmer.store_mut().backends.insert(id, crate::plan::BackendRecord { generation: 1, ..record });
    programmer.audit(false, at(201));
    assert_eq!(programmer.programmed().backends().free(Family::V4).find(|(free, _)| *free == id), Some((id, 2)));
}

#[test]
fn tables_are_told_from_broken_ones_without_an_agent() {
    let load = |store: &MemoryStore| inspect(&read_all(store).unwrap().0);
    let whole = programmed().into_store();
    assert_eq!(load(&whole), []);
    let mut torn = whole.clone();
    torn.frontends.values_mut().next().unwrap().slot_count += 1;
    assert_eq!(load(&torn).iter().map(|finding| finding.kind).collect::<Vec<_>>(), [FindingKind::Torn]);
    let mut unnamed = whole.clone();
    unnamed.names.clear();
    assert!(load(&unnamed).iter().all(|finding| finding.table == "names" || finding.table.starts_with("sources")));
    let mut strange = whole.clone();
    for record in strange.backends.values_mut() {
        record.generation += 1;
    }
    let found = load(&strange);
    assert!(
        !found.is_empty() && found.iter().all(|f| f.table == "slots" && f.kind == FindingKind::Edited),
        "{found:?}"
    );
}

/// Where another node's choice of 10.0.0.1 leads, by what the tables say.
fn named(programmer: &Programmer<MemoryStore>) -> Option<(u16, u8)> {
    let store = programmer.store();
    let entry = store.endpoints.iter().find(|((address, _), _)| address.to_string() == "10.0.0.1")?.1;
    let record = store.backends[&BackendId { family: Family::V4, id: entry.backend }];
    assert_eq!(record.generation, entry.generation);
    Some((record.address.port(), record.state))
}

#[test]
fn a_backend_that_drains_is_named_to_other_nodes_while_nobody_follows_at_its_address() {
    let mut programmer = programmed();
    let moved = OBJECTS.replace("port: 8080", "port: 8081");
    let gone = OBJECTS.replace("{addresses: [10.0.0.1], nodeName: n1}, ", "");
    let is_right = |programmer: &mut Programmer<MemoryStore>, now: Monotonic, expected: (u16, u8)| {
        assert_eq!(named(programmer), Some(expected), "as written");
        assert_eq!(programmer.audit(false, now).findings, []);
        programmer.store_mut().endpoints.clear();
        assert_eq!(programmer.audit(false, now).repaired(), 1);
        assert_eq!(named(programmer), Some(expected), "as repaired");
        assert_eq!(programmer.audit(false, now).findings, []);
    };
    is_right(&mut programmer, at(201), (8080, backend_state::ACTIVE));
    programmer.sync(&snapshot(&gone), &facts(), at(202));
    is_right(&mut programmer, at(202), (8080, backend_state::DRAINING));
    programmer.sync(&snapshot(&moved), &facts(), at(203));
    is_right(&mut programmer, at(203), (8081, backend_state::ACTIVE));
    // The one that drains is written again: it takes nothing from the one that follows.
    let draining = |(id, record): (&BackendId, &BackendRecord)| {
        (record.address.to_string() == "10.0.0.1:8080").then_some((*id, *record))
    };
    let (id, record) = programmer.store().backends.iter().find_map(draining).unwrap();
    programmer.store_mut().apply(&Op::WriteBackend { id, record }).unwrap();
    is_right(&mut programmer, at(203), (8081, backend_state::ACTIVE));
    // What leads to the wrong one of the two is put right.
    let wrong = abi::Endpoint { backend: id.id, generation: record.generation };
    let key = *programmer.store().endpoints.keys().next().unwrap();
    programmer.store_mut().endpoints.insert(key, wrong);
    assert_eq!(programmer.audit(false, at(203)).repaired(), 1);
    assert_eq!(named(&programmer), Some((8081, backend_state::ACTIVE)));
}

/// So many backends take several steps of an audit.
const MANY: u32 = 20_000;

/// A service port with [`MANY`] backends.
fn many() -> Programmer<MemoryStore> {
    let endpoint = |nth: u32| format!("{{addresses: [10.{}.{}.{}]}}", nth >> 16, (nth >> 8) & 255, nth & 255);
    let endpoints: Vec<String> = (1..=MANY).map(endpoint).collect();
    let objects = OBJECTS.replace("{addresses: [10.0.0.4]}", &endpoints.join(", "));
    let store = MemoryStore::new(crate::plan::Capacities::all(50_000).with(Part::Slots, 100_000));
    let mut programmer = Programmer::restore(store, PlanSettings::without_drain_max(), at(10)).unwrap();
    programmer.sync(&snapshot(&objects), &facts(), at(10));
    while programmer.next_tick().is_some_and(|due| due <= at(20)) {
        programmer.tick(at(20));
    }
    assert_eq!(programmer.programmed().backends().count_in(backend_state::ACTIVE), MANY as usize + 3);
    programmer
}

#[test]
fn a_step_looks_at_a_bounded_number_of_entries_and_all_steps_at_all() {
    let mut programmer = many();
    let programmed = programmer.programmed();
    let longest = programmed.slots().live(0).map(|(_, slots)| slots.len()).max().unwrap();
    // One in each step that compares backends.
    let ids: Vec<BackendId> = programmed.backends().records().keys().copied().step_by(BACKENDS).collect();
    assert!(ids.len() > 2);
    programmer.store_mut().backends.retain(|id, _| !ids.contains(id));
    let foreign = BackendId { family: Family::V4, id: MANY + 20_000 };
    let record = *programmer.store().backends.values().next().unwrap();
    programmer.store_mut().backends.insert(foreign, record);
    let mut audit = Audit::new(false);
    let report = loop {
        let before = audit.report.checked;
        let most = match audit.left.last().unwrap() {
            Part::Backends(_) => BACKENDS + IDS_TOGETHER as usize,
            Part::Slots => SLOTS + longest,
            _ => usize::MAX,
        };
        if let Some(report) = audit.step(&mut programmer, at(21)) {
            break report;
        }
        assert!(audit.report.checked - before <= most, "{} in one step", audit.report.checked - before);
    };
    assert!(report.checked > MANY as usize && report.repaired() == ids.len() + 1, "{report:?}");
    assert_eq!(programmer.audit(false, at(22)).findings, []);
}
