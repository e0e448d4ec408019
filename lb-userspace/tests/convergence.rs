//! Whatever the order and the grouping of events, and whatever fails meanwhile, the tables end at the truth; and at no write on
//! the way does a reader see half an update.

use std::{net::IpAddr, sync::Arc, time::Duration};

use lb_userspace::{
    apply::{MemoryStore, Programmer, Report},
    model::{
        Endpoint, Exposure, Family, Hints, Monotonic, Node, ObjectName, Protocol, Service, ServicePort, Slice,
        SlicePort, Snapshot, TrafficPolicy,
    },
    plan::{Capacities, NodeFacts, PlanSettings},
};
use proptest::prelude::*;

#[path = "convergence/kept.rs"]
mod kept;

/// One step of a run.
#[derive(Clone, Debug)]
enum Step {
    Service(u8, Option<ServiceShape>),
    Slice(u8, Option<SliceShape>),
    /// The snapshot so far reaches the programmer.
    Sync,
    /// The n-th write from here on fails.
    Fail(usize),
    Restart,
    /// Tenths of a second go by.
    Wait(u16),
    /// The node has other addresses, and is in another zone.
    Node(u8),
    /// The tables are looked at.
    Audit,
}

#[derive(Clone, Debug)]
struct ServiceShape {
    /// Several services may claim one address.
    address: u8,
    dual: bool,
    ports: u8,
    affinity: bool,
    /// Which external frontends it has: bit 0 a node port, 1 a load balancer, 2 an external IP, 3 source ranges.
    external: u8,
    /// Bit 0: internal policy Local; 1: external policy Local.
    policies: u8,
}

#[derive(Clone, Debug)]
struct SliceShape {
    service: u8,
    v6: bool,
    /// Address, condition, pod.
    endpoints: Vec<(u8, u8, u8)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let external = prop_oneof![1 => Just(0u8), 2 => 0u8..16];
    let shape = (0u8..3, any::<bool>(), 1u8..4, any::<bool>(), external, 0u8..4).prop_map(
        |(address, dual, ports, affinity, external, policies)| ServiceShape {
            address,
            dual,
            ports,
            affinity,
            external,
            policies,
        },
    );
    let endpoints = prop::collection::vec((1u8..6, 0u8..5, 0u8..3), 0..5);
    let slice =
        (0u8..3, any::<bool>(), endpoints).prop_map(|(service, v6, endpoints)| SliceShape { service, v6, endpoints });
    let step = prop_oneof![
        4 => (0u8..3, prop::option::weighted(0.8, shape)).prop_map(|(name, shape)| Step::Service(name, shape)),
        8 => (0u8..4, prop::option::weighted(0.8, slice)).prop_map(|(name, shape)| Step::Slice(name, shape)),
        6 => Just(Step::Sync),
        2 => (0usize..6).prop_map(Step::Fail),
        1 => Just(Step::Restart),
        2 => (1u16..400).prop_map(Step::Wait),
        1 => (0u8..4).prop_map(Step::Node),
        2 => Just(Step::Audit),
    ];
    prop::collection::vec(step, 1..60)
}

fn service(index: u8, shape: &ServiceShape) -> Service {
    let mut cluster_ips: Vec<IpAddr> = vec![[10, 96, 0, shape.address].into()];
    if shape.dual {
        cluster_ips.push(format!("fd00::{}", shape.address).parse().expect("an address"));
    }
    let ports = [("a", 80, Protocol::Tcp), ("b", 80, Protocol::Udp), ("c", 81, Protocol::Tcp)];
    let has = |bit: u8| shape.external & (1 << bit) != 0;
    let port = |(name, port, protocol): &(&str, u16, Protocol)| ServicePort {
        name: (*name).to_owned(),
        port: *port,
        protocol: *protocol,
        node_port: has(0).then_some(30_000 + port),
    };
    let policy = |bit: u8| {
        let is_local = shape.policies & (1 << bit) != 0;
        if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
    };
    // Also the node's own address, and a cluster IP of another service.
    let balanced: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 168, 0, 1].into()];
    let taken: IpAddr = [10, 96, 0, 1].into();
    let networks = ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"].map(|network| network.parse().expect("a network"));
    Service {
        name: name("s", index),
        exposure: Exposure::Addresses,
        proxy_name: None,
        cluster_ips,
        ports: ports.iter().take(shape.ports.into()).map(port).collect(),
        external_ips: if has(2) { vec![taken] } else { Vec::new() },
        load_balancer_ips: if has(1) { balanced.to_vec() } else { Vec::new() },
        internal_policy: policy(0),
        external_policy: policy(1),
        source_ranges: has(3).then(|| networks[usize::from(shape.affinity)..].to_vec()),
        health_check_node_port: None,
        affinity_timeout_s: if shape.affinity { 60 } else { 0 },
        options: None,
        created_s: None,
    }
}

fn slice(index: u8, shape: &SliceShape) -> Slice {
    let family = if shape.v6 { Family::V6 } else { Family::V4 };
    let endpoint = |(address, condition, pod): &(u8, u8, u8)| Endpoint {
        address: match family {
            Family::V4 => [10, 0, 0, *address].into(),
            Family::V6 => format!("fd01::{address}").parse().expect("an address"),
        },
        ready: *condition < 2,
        serving: *condition < 4,
        terminating: *condition == 3 || *condition == 4,
        node: Some(format!("n{}", address % 2).into()),
        zone: None,
        hints: Hints::of(vec![format!("z{}", pod % 2)], Vec::new()),
        uid_hash: u32::from(*pod),
    };
    let port = |(name, port, protocol): (&str, u16, Protocol)| SlicePort { name: name.to_owned(), port, protocol };
    Slice {
        changed_at: None,
        name: name("slice", index),
        service: name("s", shape.service).name,
        family,
        ports: [("a", 8080, Protocol::Tcp), ("b", 8080, Protocol::Udp), ("c", 8081, Protocol::Tcp)].map(port).into(),
        endpoints: shape.endpoints.iter().map(endpoint).collect(),
    }
}

fn name(kind: &str, index: u8) -> ObjectName {
    ObjectName::new("default", format!("{kind}{index}"))
}

struct Run {
    settings: PlanSettings,
    programmer: Option<Programmer<MemoryStore>>,
    snapshot: Snapshot,
    facts: NodeFacts,
    now: Monotonic,
    /// Writes were told to fail.
    fails: bool,
}

impl Run {
    fn new(capacities: Option<Capacities>) -> Self {
        let retry = Duration::from_secs(1);
        let settings = PlanSettings {
            node_name: Some("n1".to_owned()),
            external_ips: true,
            retry_min: retry,
            retry_max: retry,
            ..PlanSettings::default()
        };
        let mut store = capacities.map_or_else(MemoryStore::roomy, MemoryStore::new);
        store.check_each_write = true;
        let programmer =
            Programmer::restore(store, settings.clone(), Monotonic::default()).expect("memory can be read");
        let (snapshot, facts, now) = (Snapshot::default(), NodeFacts::default(), Monotonic::default());
        Self { settings, programmer: Some(programmer), snapshot, facts, now, fails: false }
    }

    fn programmer(&mut self) -> &mut Programmer<MemoryStore> {
        self.programmer.as_mut().expect("it is only taken within a restart")
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Service(index, shape) => {
                self.snapshot.services.remove(&name("s", *index));
                let made = shape.as_ref().map(|shape| (name("s", *index), Arc::new(service(*index, shape))));
                self.snapshot.services.extend(made);
            }
            Step::Slice(index, shape) => {
                let held = self.snapshot.slices.iter().filter(|(key, _)| key.name != name("slice", *index).name);
                self.snapshot.slices = held.map(|(key, slice)| (key.clone(), Arc::clone(slice))).collect();
                let made = shape.as_ref().map(|shape| slice(*index, shape));
                self.snapshot.slices.extend(made.map(|slice| (slice.key(), Arc::new(slice))));
            }
            Step::Node(shape) => {
                let addresses: [IpAddr; 2] = [[192, 168, 0, 1].into(), [192, 168, 0, 2].into()];
                self.facts.addresses = addresses[..usize::from(shape % 3)].iter().copied().collect();
                let zone = Some(format!("z{}", shape / 2));
                self.snapshot.node = Some(Arc::new(Node { name: "n1".into(), zone, ..Node::default() }));
            }
            Step::Sync => self.sync(),
            Step::Fail(after) => {
                self.fails = true;
                self.programmer().store_mut().failures = vec![*after];
            }
            Step::Restart => {
                let mut store = self.programmer.take().expect("it is only taken here").into_store();
                store.end_readers();
                self.programmer =
                    Some(Programmer::restore(store, self.settings.clone(), self.now).expect("memory can be read"));
            }
            Step::Audit => {
                // Nobody else writes here, and what waits or goes on is no difference.
                let now = self.now;
                let report = self.programmer().audit(true, now);
                assert!(report.findings.is_empty() && report.failures.is_empty(), "{report:?}");
            }
            Step::Wait(tenths) => self.wait(Duration::from_millis(u64::from(*tenths) * 100)),
        }
    }

    fn sync(&mut self) {
        self.snapshot.revision += 1;
        let (snapshot, facts, now) = (self.snapshot.clone(), self.facts.clone(), self.now);
        let report = self.programmer().sync(&snapshot, &facts, now);
        self.check(&report);
    }

    /// A table without room is no failure: what finds none is refused by name, and all else is written.
    fn check(&self, report: &Report) {
        assert!(self.fails || report.failures.is_empty(), "{:?}", report.failures);
    }

    /// Ticks whenever something is due.
    fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..10_000 {
            let Some(at) = self.programmer().next_tick().filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            let now = self.now;
            let report = self.programmer().tick(now);
            self.check(&report);
        }
        panic!("ticks without end");
    }

    /// The truth reaches the tables, and every drain ends.
    fn settle(&mut self) {
        self.programmer().store_mut().failures.clear();
        self.sync();
        self.wait(Duration::from_secs(200));
    }

    fn dump(&mut self) -> String {
        self.programmer().store_mut().dump()
    }
}

/// The tables without what depends on when things happened.
fn timeless(dump: &str) -> Vec<String> {
    let line = |line: &str| line.split(" until ").next().unwrap_or_default().to_owned();
    dump.lines().filter(|line| !line.contains(" gone")).map(line).collect()
}

/// What a property says of a run.
type Said = Result<(), TestCaseError>;

fn played(steps: &[Step], capacities: Option<Capacities>) -> Run {
    let mut run = Run::new(capacities);
    for step in steps {
        run.step(step);
    }
    run
}

fn ends_at_the_truth(steps: &[Step]) -> Said {
    let mut run = played(steps, None);
    run.settle();
    let mut fresh = Run::new(None);
    fresh.snapshot = run.snapshot.clone();
    fresh.facts = run.facts.clone();
    fresh.settle();
    prop_assert_eq!(timeless(&run.dump()), timeless(&fresh.dump()));
    // A restart finds everything as it was left.
    run.step(&Step::Restart);
    let before = run.programmer().store_mut().log.len();
    run.sync();
    let store = run.programmer().store_mut();
    let written = &store.log[before..];
    prop_assert!(written.iter().all(|op| op.to_string().starts_with("note")), "{:?}", written);
    Ok(())
}

fn leaves_nothing(steps: &[Step]) -> Said {
    let mut run = played(steps, None);
    run.snapshot = Snapshot::default();
    run.settle();
    prop_assert_eq!(run.dump(), "");
    let programmer = run.programmer();
    prop_assert_eq!(programmer.next_tick(), None);
    let book = programmer.book();
    prop_assert!(book.services.is_empty() && book.ranges.is_empty() && book.resting.is_empty());
    prop_assert!(book.backends.is_empty() && book.deadlines.is_empty() && book.gone.is_empty());
    prop_assert!(programmer.store().names.is_empty());
    Ok(())
}

fn leaves_nothing_in_small_tables(steps: &[Step], slots: u32, backends: u32, names: u32) -> Said {
    let capacities = Capacities {
        frontends4: 3,
        frontends6: 2,
        backends4: backends,
        backends6: backends,
        endpoints4: 2,
        endpoints6: 1,
        slots,
        names,
        ..Capacities::all(2)
    };
    let mut run = played(steps, Some(capacities));
    run.snapshot = Snapshot::default();
    run.settle();
    prop_assert_eq!(run.dump(), "");
    Ok(())
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 500))]

    #[test]
    fn every_run_ends_at_the_truth(steps in steps()) {
        ends_at_the_truth(&steps)?;
    }

    #[test]
    fn nothing_is_left_of_what_is_deleted(steps in steps()) {
        leaves_nothing(&steps)?;
    }

    #[test]
    fn small_tables_never_break_what_a_reader_sees(steps in steps(), slots in 1u32..12, backends in 2u32..8, names in 1u32..5) {
        leaves_nothing_in_small_tables(&steps, slots, backends, names)?;
    }
}

#[test]
fn runs_that_once_failed_hold_every_property() {
    for steps in kept::runs() {
        ends_at_the_truth(&steps).unwrap_or_else(|error| panic!("{steps:?}: {error}"));
        leaves_nothing(&steps).unwrap_or_else(|error| panic!("{steps:?}: {error}"));
        for (slots, backends, names) in [(1, 2, 1), (4, 4, 2), (11, 7, 4)] {
            leaves_nothing_in_small_tables(&steps, slots, backends, names).unwrap_or_else(|error| {
                panic!("{slots} slots, {backends} backends, {names} names: {steps:?}: {error}")
            });
        }
    }
}

/// Two services exchange frontends, and a write of the first fails: what the other kept for it goes all the same.
#[test]
fn services_that_exchange_frontends_while_a_write_fails_leave_nothing_behind() {
    let shape =
        |address, external| ServiceShape { address, dual: false, ports: 1, affinity: false, external, policies: 0 };
    for fails_after in 0..10 {
        let mut run = Run::new(None);
        for step in [
            Step::Service(1, Some(shape(0, 10))),
            Step::Service(0, Some(shape(0, 0))),
            Step::Sync,
            Step::Service(0, Some(shape(1, 10))),
            Step::Fail(fails_after),
            Step::Sync,
        ] {
            run.step(&step);
        }
        run.settle();
        let mut fresh = Run::new(None);
        fresh.snapshot = run.snapshot.clone();
        fresh.settle();
        assert_eq!(timeless(&run.dump()), timeless(&fresh.dump()), "the write after {fails_after} others fails");
    }
}
