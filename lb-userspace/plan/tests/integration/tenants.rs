//! What one tenant writes into his objects takes nothing from another: each service and namespace has a share of the slots.

use std::{collections::BTreeMap, sync::Arc};

use lb_model::{Monotonic, NAMED_MAX, Node, Snapshot};
use lb_objects::convert;
use lb_plan::{
    apply::{MemoryStore, Programmer, Report},
    plan::{Capacities, Desired, NodeFacts, Part, PlanSettings, plan},
};
use serde_json::{Value, json};

/// A service may have 4,096 of them, a namespace 16,384.
const SLOTS: u32 = 65_536;

/// A service of two ports.
#[derive(Clone, Copy)]
struct TwoPortService {
    namespace: &'static str,
    number: u16,
    endpoints: u16,
    annotations: &'static [(&'static str, &'static str)],
}

const PLAIN: TwoPortService = TwoPortService { namespace: "small", number: 1, endpoints: 3, annotations: &[] };
const LARGEST: &[(&str, &str)] = &[("scheduler", "maglev"), ("maglev-size", "131071")];

fn put(snapshot: &mut Snapshot, shape: TwoPortService) {
    let TwoPortService { namespace, number, endpoints, annotations } = shape;
    let name = format!("web-{number}");
    let [high, low] = number.to_be_bytes();
    let annotations: BTreeMap<String, &str> =
        annotations.iter().map(|(name, value)| (format!("ballast.dev/{name}"), *value)).collect();
    let cluster_ip = format!("10.{}.{high}.{low}", 96 + namespace.len());
    let service = json!({
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    let endpoint = |index: u16| {
        let [x, y] = index.to_be_bytes();
        json!({"addresses": [format!("172.16.{x}.{y}")]})
    };
    let slice = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}],
        "endpoints": (1..=endpoints).map(endpoint).collect::<Value>(),
    });
    let service = convert::service(&serde_json::from_value(service).expect("a Service")).object.expect("valid");
    let slice = convert::slice(&serde_json::from_value(slice).expect("a slice")).object.expect("valid");
    snapshot.revision += 1;
    snapshot.services.insert(service.name.clone(), Arc::new(service));
    snapshot.slices.insert(slice.key(), Arc::new(slice));
}

fn snapshot(shapes: impl IntoIterator<Item = TwoPortService>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for shape in shapes {
        put(&mut snapshot, shape);
    }
    snapshot
}

fn programmer(slots: u32) -> Programmer<MemoryStore> {
    let store = MemoryStore::new(Capacities::all(100_000).with(Part::Slots, slots));
    // All of it in one run: parts are the subject of `large_services`.
    let settings = PlanSettings { run_max: usize::MAX, ..PlanSettings::without_drain_max() };
    Programmer::restore(store, settings, Monotonic::default()).expect("memory can be read")
}

fn sync(programmer: &mut Programmer<MemoryStore>, snapshot: &Snapshot) -> Report {
    let report = programmer.sync(snapshot, &NodeFacts::default(), Monotonic::default());
    assert_eq!(report.failures, Vec::<String>::new());
    report
}

/// Slots of each port of the services of a namespace, by name.
fn slots_of(programmer: &Programmer<MemoryStore>, namespace: &str) -> Vec<(String, u32)> {
    let programmed = programmer.programmed();
    let of = |key| {
        let service = programmed.services().by_key(key).expect("written");
        let entries = service.frontends.iter().filter_map(|frontend| programmed.frontends().get(frontend));
        (key.to_string(), entries.map(|entry| entry.slot_count).max().unwrap_or(0))
    };
    let keys = programmed.services().ids().keys();
    keys.filter(|key| &*key.service.namespace == namespace).map(of).collect()
}

fn refusals(report: &Report, name: &str) -> Vec<String> {
    let all = report.refusals.iter().filter(|refusal| refusal.object == format!("Service {name}"));
    all.map(ToString::to_string).collect()
}

fn desired(snapshot: &Snapshot) -> Desired {
    plan(snapshot, &NodeFacts::default(), &PlanSettings { slots: SLOTS, ..PlanSettings::without_drain_max() })
}

#[test]
fn the_largest_tables_of_one_tenant_leave_room_for_the_service_of_another() {
    let greedy =
        (1..=4).map(|number| TwoPortService { namespace: "greedy", number, endpoints: 2, annotations: LARGEST });
    let mut programmer = programmer(lb_common::limits::SLOTS);
    let mut all = snapshot(greedy);
    let report = sync(&mut programmer, &all);
    let refused = refusals(&report, "greedy/web-1");
    assert!(refused.len() == 1 && refused[0].contains("131071 slots: 1021 will do"), "{refused:?}");
    assert!(slots_of(&programmer, "greedy").iter().all(|(_, slots)| *slots == 1_021), "served with that size");
    put(&mut all, PLAIN);
    let report = sync(&mut programmer, &all);
    assert_eq!(refusals(&report, "small/web-1"), Vec::<String>::new());
    assert!(slots_of(&programmer, "small").iter().all(|(_, slots)| *slots == 3));
}

#[test]
fn a_size_that_the_endpoints_need_is_had_and_none_is_refused_without_endpoints() {
    for (endpoints, annotation, slots) in [(1, "251", 251), (2, "1021", 1_021), (6, "16381", 16_381), (0, "131071", 0)]
    {
        let annotations = Box::leak(Box::new([("scheduler", "maglev"), ("maglev-size", annotation)]));
        let mut programmer = programmer(lb_common::limits::SLOTS);
        let report = sync(&mut programmer, &snapshot([TwoPortService { endpoints, annotations, ..PLAIN }]));
        assert_eq!(*report.refusals, [], "{endpoints} endpoints");
        assert!(slots_of(&programmer, "small").iter().all(|(_, has)| *has == slots), "{endpoints} endpoints");
    }
}

#[test]
fn a_service_has_its_share_and_says_what_it_has_instead() {
    let large = TwoPortService { endpoints: 300, annotations: LARGEST, ..PLAIN };
    let mut programmer = programmer(SLOTS);
    let report = sync(&mut programmer, &snapshot([large]));
    // Two tables of 16,381 are wanted; of 4,096 slots each port may have half.
    assert!(slots_of(&programmer, "small").iter().all(|(_, slots)| *slots == 1_021));
    let refused = refusals(&report, "small/web-1");
    assert!(refused.iter().any(|one| one.contains("32762 slots") && one.contains("may take 4096")), "{refused:?}");
    // Without a table every endpoint has one slot, as far as they go.
    let many = TwoPortService { endpoints: 3_000, ..PLAIN };
    let report = sync(&mut programmer, &snapshot([many]));
    assert!(slots_of(&programmer, "small").iter().all(|(_, slots)| *slots == 2_048));
    let refused = refusals(&report, "small/web-1");
    assert!(refused.len() == 1 && refused[0].contains("each set has at most 2048"), "{refused:?}");
    let weights: &[(&str, &str)] = &[("scheduler", "weighted"), ("weights", "172.16.0.1=1000,172.16.0.2=999")];
    let weighted = TwoPortService { endpoints: 1_000, annotations: weights, ..PLAIN };
    let report = sync(&mut programmer, &snapshot([weighted]));
    let slots = slots_of(&programmer, "small");
    assert!(slots.iter().all(|(_, slots)| (1_000..=2_048).contains(slots)), "each has a slot: {slots:?}");
    assert_eq!(refusals(&report, "small/web-1").len(), 1);
}

#[test]
fn within_a_namespace_the_largest_give_first_and_other_namespaces_nothing() {
    let large =
        (2..12).map(|number| TwoPortService { namespace: "greedy", number, endpoints: 1_500, annotations: &[] });
    let mut programmer = programmer(SLOTS);
    let small = TwoPortService { namespace: "greedy", ..PLAIN };
    let elsewhere = TwoPortService { number: 2, endpoints: 1_500, ..PLAIN };
    let all = snapshot(large.clone().chain([small, elsewhere]));
    let report = sync(&mut programmer, &all);
    let slots: BTreeMap<String, u32> = slots_of(&programmer, "greedy").into_iter().collect();
    assert!(slots.values().sum::<u32>() <= SLOTS / 4, "{slots:?}");
    assert_eq!(slots["greedy/web-1:80/TCP"], 3, "the small one has what it needs");
    assert_eq!(slots["greedy/web-2:80/TCP"], (16_384 - 6) / 10 / 2);
    assert_eq!(refusals(&report, "greedy/web-1"), Vec::<String>::new());
    let refused = refusals(&report, "greedy/web-2");
    assert!(refused.len() == 1 && refused[0].contains("16384 that its namespace may take"), "{refused:?}");
    assert!(slots_of(&programmer, "small").iter().all(|(_, slots)| *slots == 1_500));
    assert_eq!(refusals(&report, "small/web-2"), Vec::<String>::new());

    // Those that go make room for those that stay.
    let few = snapshot(large.take(5).chain([small, elsewhere]));
    let report = sync(&mut programmer, &few);
    assert_eq!(*report.refusals, []);
    let slots: BTreeMap<String, u32> = slots_of(&programmer, "greedy").into_iter().collect();
    assert!((2..7).all(|number| slots[&format!("greedy/web-{number}:80/TCP")] == 1_500), "{slots:?}");
}

/// An agent that has seen all changes wants what one wants that sees the last state first: nodes and restarts agree.
#[test]
fn the_same_state_has_the_same_limits_whatever_was_before() {
    let shapes: Vec<TwoPortService> = (1..15)
        .map(|number| TwoPortService { namespace: "greedy", number, endpoints: 200 * number, annotations: &[] })
        .chain([TwoPortService { annotations: LARGEST, namespace: "greedy", number: 20, endpoints: 40 }])
        .collect();
    let mut programmer = programmer(SLOTS);
    let mut seen = Snapshot::default();
    for shape in shapes.iter().rev() {
        put(&mut seen, *shape);
        sync(&mut programmer, &seen);
        assert_eq!(programmer.desired(), &desired(&seen));
    }
    for shape in &shapes {
        put(&mut seen, TwoPortService { endpoints: shape.endpoints / 3, ..*shape });
        sync(&mut programmer, &seen);
        assert_eq!(programmer.desired(), &desired(&seen));
    }
    for shape in &shapes {
        put(&mut seen, *shape);
    }
    sync(&mut programmer, &seen);
    assert_eq!(programmer.desired().services, desired(&snapshot(shapes)).services);
}

/// A tenant must not make nodes connect to whatever it names.
#[test]
fn active_checks_are_off_and_go_to_pods_only_when_they_are_on() {
    let shape = TwoPortService { annotations: &[("check", "tcp")], ..PLAIN };
    let mut all = snapshot([shape]);
    let with = |all: &Snapshot, check_networks| {
        plan(all, &NodeFacts::default(), &PlanSettings { check_networks, ..PlanSettings::without_drain_max() })
    };
    let refused = |desired: &Desired| desired.refusals.iter().map(ToString::to_string).collect::<Vec<_>>();
    let checked = |desired: &Desired| {
        let ports = desired.services.values().filter(|port| port.check.is_some());
        ports.map(|port| port.endpoints.len() - port.unchecked.len()).sum::<usize>()
    };
    let off = with(&all, None);
    assert!(checked(&off) == 0 && refused(&off).concat().contains("active checks are off"), "{:?}", refused(&off));
    // Endpoints are 172.16.0.1 to 172.16.0.3, at two ports.
    let pods = with(&all, Some(vec!["172.16.0.0/31".parse().expect("a network")]));
    assert_eq!(checked(&pods), 2);
    assert!(
        refused(&pods).concat().contains("at 2 addresses are not checked (172.16.0.2 is one)"),
        "{:?}",
        refused(&pods)
    );
    let node = Node { pod_cidrs: vec!["172.16.0.0/24".parse().expect("a network")], ..Node::default() };
    all.node = Some(Arc::new(node));
    let of_node = with(&all, Some(Vec::new()));
    assert_eq!((checked(&of_node), refused(&of_node)), (6, Vec::new()));
}

#[test]
fn hundreds_of_refused_services_of_one_tenant_hide_no_refusal_of_another() {
    let shape = |namespace, number| TwoPortService { namespace, number, endpoints: 1, annotations: LARGEST };
    let mut programmer = programmer(SLOTS);
    let mut all = snapshot((1..=u16::MAX).take(2 * NAMED_MAX).map(|number| shape("a-greedy", number)));
    let report = sync(&mut programmer, &all);
    assert_eq!((report.refusals.len(), report.refusals.more() > 0), (NAMED_MAX, true), "the room is one tenant's");
    put(&mut all, shape("small", 1));
    let report = sync(&mut programmer, &all);
    assert_eq!((report.refusals.len(), refusals(&report, "small/web-1").len()), (NAMED_MAX, 1));
}
