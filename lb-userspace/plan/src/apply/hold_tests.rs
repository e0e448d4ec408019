//! What a restart holds of services whose objects cannot be read, and when it lets go.

use super::*;
use lb_model::{Unread, UnreadKind};

const TWO: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {ANNOTATIONS}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 53, protocol: UDP}]
  sessionAffinity: ClientIP
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  loadBalancerSourceRanges: [10.0.0.0/8]
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: a, port: 80}, {name: b, port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.0.0.1], nodeName: n1, targetRef: {kind: Pod, name: p, uid: u}}
- {addresses: [10.0.0.2], nodeName: n2}
- {addresses: [10.0.0.3], nodeName: n1, conditions: {ready: false}}
- {addresses: [10.0.0.4], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.0.0.9]}]
";

fn two(annotations: &str) -> Snapshot {
    snapshot(&TWO.replace("ANNOTATIONS", annotations))
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

fn service(of: &str) -> UnreadKind {
    UnreadKind::Service(name(of))
}

fn slice(of: &str) -> UnreadKind {
    UnreadKind::Slice { name: name(&format!("{of}-1")), service: name(of) }
}

fn file() -> UnreadKind {
    UnreadKind::Unknown("/etc/ballast/web.yaml".to_owned())
}

/// The snapshot without these, which cannot be read.
fn without(mut snapshot: Snapshot, services: &[&str], slices: &[&str], unread: impl Into<Vec<UnreadKind>>) -> Snapshot {
    for service in services {
        snapshot.services.remove(&name(service));
    }
    let held = snapshot.slices.iter().filter(|(key, _)| !slices.contains(&&*key.service));
    snapshot.slices = held.map(|(key, slice)| (key.clone(), slice.clone())).collect();
    snapshot.unread = Arc::new(unread.into().into_iter().map(|what| Unread { what, uid: 7 }).collect());
    snapshot
}

fn settings() -> PlanSettings {
    PlanSettings { node_name: Some("n1".into()), ..PlanSettings::without_drain_max() }
}

fn facts() -> NodeFacts {
    NodeFacts { addresses: [[192, 168, 0, 1].into()].into(), ..NodeFacts::default() }
}

/// An agent that starts after another one that had read everything.
fn restarted(before: &Snapshot) -> Programmer<MemoryStore> {
    let mut first = Programmer::restore(MemoryStore::roomy(), settings(), at(10)).unwrap();
    first.sync(before, &facts(), at(10));
    Programmer::restore(first.into_store(), settings(), at(20)).unwrap()
}

fn refused(report: &Report) -> Vec<String> {
    report.refusals.iter().map(ToString::to_string).collect()
}

/// The backends that the slots of each frontend lead to.
fn leads(agent: &Programmer<MemoryStore>) -> BTreeMap<crate::plan::Frontend, BTreeSet<std::net::SocketAddr>> {
    let store = agent.store();
    let leads = |entry: &lb_common::abi::Service| {
        let slots = entry.slot_base..entry.slot_base + entry.slot_count;
        let id = |slot: u32| BackendId { family: lb_model::Family::V4, id: store.slots[&slot].backend };
        slots.map(|slot| store.backends[&id(slot)].address).collect()
    };
    store.frontends.iter().map(|(frontend, entry)| (*frontend, leads(entry))).collect()
}

#[test]
fn a_service_that_cannot_be_read_is_served_as_it_was_until_it_can_be_read_or_is_deleted() {
    let schedulers = [
        "",
        "ballast.dev/scheduler: weighted, ballast.dev/weights: 10.0.0.1=3",
        "ballast.dev/scheduler: maglev, ballast.dev/maglev-size: \"1021\"",
        "ballast.dev/scheduler: round-robin, ballast.dev/retry: \"off\"",
    ];
    for annotations in schedulers {
        for (services, slices, unread) in [
            (&["web"][..], &[][..], vec![service("web")]),
            (&[], &["web"], vec![slice("web")]),
            (&["web"], &["web"], vec![service("web"), slice("web")]),
            (&["web"], &["web"], vec![file()]),
            (&["web", "db"], &["web", "db"], vec![file()]),
        ] {
            let whole = two(annotations);
            let mut agent = restarted(&whole);
            let served = agent.store().dump();
            let report = agent.sync(&without(whole.clone(), services, slices, unread), &facts(), at(20));
            assert_eq!((agent.store().dump(), report.writes), (served.clone(), 0), "{annotations}");
            let refused = refused(&report);
            let said = |line: &&String| line.contains("default/web") && line.contains("cannot be read");
            assert_eq!(refused.iter().filter(said).count(), 1, "{refused:?}");
            let report = agent.sync(&whole, &facts(), at(21));
            assert_eq!((agent.store().dump(), report.writes, report.refusals.total()), (served, 0, 0), "{annotations}");
            // From now on it is as with any other.
            let report = agent.sync(&without(whole, services, slices, vec![service("web"), file()]), &facts(), at(22));
            assert!(report.writes > 0 && report.refusals.total() == 0);
        }
    }
}

#[test]
fn what_is_deleted_or_made_anew_is_held_no_longer() {
    let whole = two("");
    let hidden = || without(whole.clone(), &["web"], &[], [service("web")]);
    let gone = |agent: &Programmer<MemoryStore>| !agent.store().dump().contains("10.96.0.1:80");
    let mut agent = restarted(&whole);
    agent.sync(&hidden(), &facts(), at(20));
    assert!(!gone(&agent));
    agent.sync(&without(whole.clone(), &["web"], &[], []), &facts(), at(21));
    assert!(gone(&agent), "it was deleted");
    agent.sync(&hidden(), &facts(), at(22));
    assert!(gone(&agent), "and does not come again");
    let mut agent = restarted(&whole);
    agent.sync(&hidden(), &facts(), at(20));
    let mut other = hidden();
    other.unread = Arc::new([Unread { what: service("web"), uid: 8 }].into());
    agent.sync(&other, &facts(), at(21));
    assert!(gone(&agent), "it is another object of the same name");
    // A slice that cannot be read keeps no Service that is gone.
    let mut agent = restarted(&whole);
    agent.sync(&without(whole.clone(), &["web"], &["web"], [slice("web")]), &facts(), at(20));
    assert!(gone(&agent));
}

#[test]
fn others_are_followed_and_a_service_whose_endpoints_are_all_known_is_too() {
    let whole = two("");
    let mut agent = restarted(&whole);
    let mut hidden = without(whole.clone(), &["web"], &["web"], [file()]);
    agent.sync(&hidden, &facts(), at(20));
    let db = snapshot(&TWO.replace("ANNOTATIONS", "").replace("10.0.0.9", "10.0.0.8"));
    hidden.slices = without(db, &[], &["web"], []).slices;
    agent.sync(&hidden, &facts(), at(21));
    let dump = agent.store().dump();
    assert!(dump.contains("-> 10.0.0.8:80") && dump.contains("10.96.0.1:80"), "{dump}");
    // Its Service and slices come in other files: nothing is missing of it any more.
    let report = agent.sync(&Snapshot { unread: hidden.unread.clone(), ..whole }, &facts(), at(22));
    assert_eq!(report.refusals.total(), 0, "{report:?}");
}

#[test]
fn nobody_takes_a_frontend_of_a_service_that_is_held() {
    let whole = two("");
    let mut agent = restarted(&whole);
    let mut hidden = without(whole.clone(), &["web"], &[], [service("web")]);
    let thief = "apiVersion: v1\nkind: Service\nmetadata: {name: aaa}\nspec: {type: LoadBalancer, clusterIP: 10.96.0.7, ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 10.96.0.1}]}}\n";
    hidden.services.extend(snapshot(thief).services);
    let report = agent.sync(&hidden, &facts(), at(20));
    let refused = refused(&report);
    assert!(refused.iter().any(|line| line.contains("default/aaa") && line.contains("10.96.0.1:80")), "{refused:?}");
    let key = |name: &str| PortKey { service: self::name(name), port: 80, protocol: lb_model::Protocol::Tcp };
    let owner = |agent: &Programmer<MemoryStore>| {
        let at = crate::plan::Frontend { address: [10, 96, 0, 1].into(), port: 80, protocol: lb_model::Protocol::Tcp };
        agent.desired().owners[&at].clone()
    };
    assert_eq!(owner(&agent), key("web"));
    agent.sync(&Snapshot { services: snapshot(thief).services, ..Snapshot::default() }, &facts(), at(21));
    assert_eq!(owner(&agent), key("aaa"), "it was deleted");
}

#[test]
fn deadlines_strike_while_a_service_is_held_and_another_place_lets_nothing_go() {
    let whole = two("");
    let mut agent = restarted(&whole);
    agent.sync(&without(whole.clone(), &["web"], &[], [service("web")]), &facts(), at(20));
    let state = |agent: &Programmer<MemoryStore>| {
        let mut records = agent.store().backends.values();
        records.find(|record| record.address == "10.0.0.4:80".parse().unwrap()).map(|record| record.state)
    };
    assert_eq!(state(&agent), Some(lb_common::abi::backend_state::TERMINATING));
    agent.tick(at(20) + Duration::from_hours(1));
    assert_eq!(state(&agent), Some(lb_common::abi::backend_state::GONE));
    let moved = NodeFacts { addresses: [[192, 168, 0, 2].into()].into(), ..NodeFacts::default() };
    let hidden = without(whole, &["web"], &[], [service("web")]);
    let before = agent.store().frontends.len();
    agent.sync(&hidden, &moved, at(4_000));
    assert_eq!(agent.store().frontends.len(), before);
    assert!(agent.holds(&name("web")));
}

/// The agent before was killed between two writes, and the next one cannot read what it wrote.
#[test]
fn a_kill_at_any_write_leaves_each_frontend_one_of_both_states() {
    let before = two("");
    let after = snapshot(&TWO.replace("ANNOTATIONS", "").replace("10.0.0.1]", "10.0.0.7]"));
    let (old, new) = (leads(&restarted(&before)), leads(&restarted(&after)));
    assert_ne!(old, new);
    let mut whole = false;
    for writes in 0.. {
        let mut first = Programmer::restore(MemoryStore::roomy(), settings(), at(10)).unwrap();
        first.sync(&before, &facts(), at(10));
        first.store_mut().failures = std::iter::once(writes).chain([0; 200]).collect();
        whole = first.sync(&after, &facts(), at(11)).failed_writes == 0;
        let mut store = first.into_store();
        store.failures.clear();
        store.check_each_write = true;
        let mut agent = Programmer::restore(store, settings(), at(20)).unwrap();
        agent.sync(&without(after.clone(), &["web"], &["web"], [file()]), &facts(), at(20));
        let held = leads(&agent);
        assert_eq!(held.len(), old.len());
        for (frontend, backends) in held {
            let states = [&old[&frontend], &new[&frontend]];
            assert!(states.contains(&&backends), "after {writes} writes {frontend} leads to {backends:?}");
        }
        agent.sync(&after, &facts(), at(21));
        assert_eq!(leads(&agent), new, "after {writes} writes");
        if whole {
            break;
        }
    }
    assert!(whole);
}

/// An order holds for it as for any other, before the restart and after it, and is taken back.
#[test]
fn a_service_that_is_held_follows_maintenance() {
    for (annotations, policy) in [("", "Local"), ("ballast.dev/scheduler: maglev", "Local"), ("", "Cluster")] {
        let text = TWO
            .replace("ANNOTATIONS", annotations)
            .replace("TrafficPolicy: Local", &format!("TrafficPolicy: {policy}"));
        let whole = snapshot(&text.replace(", nodeName: n2", ", nodeName: n1"));
        let maintained = |targets: &[&str]| {
            let mut facts = facts();
            facts.marks.maintenance = targets.iter().map(|target| target.parse().unwrap()).collect();
            facts
        };
        let orders: [&[&str]; 6] =
            [&[], &["10.0.0.1"], &["10.0.0.1", "10.0.0.2:80"], &["10.0.0.2:80"], &["10.0.0.1"], &[]];
        for first in [0, 1, 2] {
            let before = maintained(orders[first]);
            let mut agents = [(); 2].map(|()| {
                let mut agent = Programmer::restore(MemoryStore::roomy(), settings(), at(10)).unwrap();
                agent.sync(&whole, &before, at(10));
                Programmer::restore(agent.into_store(), settings(), at(20)).unwrap()
            });
            let hidden = without(whole.clone(), &["web"], &["web"], [service("web")]);
            for order in &orders[first..] {
                let [held, read] = &mut agents;
                held.sync(&hidden, &maintained(order), at(20));
                read.sync(&whole, &maintained(order), at(20));
                assert!(held.holds(&name("web")) && !read.holds(&name("web")));
                assert_eq!(leads(held), leads(read), "{policy} {annotations} {order:?} after {first}");
            }
        }
    }
}
