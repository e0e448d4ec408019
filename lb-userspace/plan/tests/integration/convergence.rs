//! Whatever the order and the grouping of events, and whatever fails meanwhile, the tables end at the truth; and at no write on
//! the way does a reader see half an update.

use std::{net::IpAddr, sync::Arc, time::Duration};

use lb_model::{Family, Monotonic, Node, Snapshot};
use lb_plan::{
    apply::{MemoryStore, Programmer, Report},
    plan::{Capacities, NodeFacts, Part, PlanSettings},
};
use proptest::prelude::*;

mod hidden;
mod kept;
mod shapes;

use hidden::Hidden;
use shapes::{ServiceShape, SliceShape, name, service, slice};

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
    /// A restart, after which some objects cannot be read until the end.
    Blind(u8),
    /// Tenths of a second go by.
    Wait(u16),
    /// The node has other addresses, and is in another zone.
    Node(u8),
    /// The tables are compared.
    Audit,
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
        1 => any::<u8>().prop_map(Step::Blind),
        2 => (1u16..400).prop_map(Step::Wait),
        1 => (0u8..4).prop_map(Step::Node),
        2 => Just(Step::Audit),
    ];
    prop::collection::vec(step, 1..60)
}

/// So much that each run handles all there is.
const RUN_MAX: usize = 1_000;

/// How much one run handles: next to nothing, or all there is.
fn run_max() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 1usize..12, 1 => Just(RUN_MAX)]
}

struct Run {
    settings: PlanSettings,
    programmer: Option<Programmer<MemoryStore>>,
    snapshot: Snapshot,
    hidden: Hidden,
    facts: NodeFacts,
    now: Monotonic,
    /// Writes were made to fail.
    fails: bool,
}

impl Run {
    /// `run_max`: [`PlanSettings::run_max`].
    fn new(capacities: Option<Capacities>, run_max: usize) -> Self {
        let retry = Duration::from_secs(1);
        let settings = PlanSettings {
            node_name: Some("n1".to_owned()),
            external_ips: true,
            run_max,
            retry_min: retry,
            retry_max: retry,
            ..PlanSettings::without_drain_max()
        };
        let mut store = capacities.map_or_else(MemoryStore::roomy, MemoryStore::new);
        store.check_each_write = true;
        let programmer =
            Programmer::restore(store, settings.clone(), Monotonic::default()).expect("memory can be read");
        let (snapshot, facts, now) = (Snapshot::default(), NodeFacts::default(), Monotonic::default());
        let hidden = Hidden::default();
        Self { settings, programmer: Some(programmer), snapshot, hidden, facts, now, fails: false }
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
            Step::Restart => self.restart(Hidden::default()),
            Step::Blind(hidden) => self.restart(Hidden(*hidden)),
            Step::Audit => {
                // Nobody else writes here, and what waits or goes on is no difference.
                let now = self.now;
                let report = self.programmer().audit(true, now);
                assert!(report.findings.is_empty() && report.failures.is_empty(), "{report:?}");
            }
            Step::Wait(tenths) => self.wait(Duration::from_millis(u64::from(*tenths) * 100)),
        }
    }

    fn restart(&mut self, hidden: Hidden) {
        self.hidden = hidden;
        let mut store = self.programmer.take().expect("it is only taken here").into_store();
        store.end_readers();
        self.programmer =
            Some(Programmer::restore(store, self.settings.clone(), self.now).expect("memory can be read"));
    }

    fn sync(&mut self) {
        self.snapshot.revision += 1;
        let (snapshot, facts, now) = (self.hidden.view(&self.snapshot), self.facts.clone(), self.now);
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
        self.hidden = Hidden::default();
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

fn played(steps: &[Step], capacities: Option<Capacities>, run_max: usize) -> Run {
    let mut run = Run::new(capacities, run_max);
    for step in steps {
        run.step(step);
    }
    run
}

fn ends_at_the_truth(steps: &[Step], run_max: usize) -> Said {
    let mut run = played(steps, None, run_max);
    run.settle();
    let mut fresh = Run::new(None, RUN_MAX);
    fresh.snapshot = run.snapshot.clone();
    fresh.facts = run.facts.clone();
    fresh.settle();
    prop_assert_eq!(timeless(&run.dump()), timeless(&fresh.dump()));
    // A restart finds everything as it was left, whatever can be read.
    let slices = if hidden::lists_an_endpoint_twice(&run.snapshot) { 3..3 } else { 3..7 };
    for hidden in (0..3).chain(slices).map(|bit| 1 << bit).chain([0x7, 0x87, 0]) {
        run.restart(Hidden(hidden));
        let before = run.programmer().store_mut().log.len();
        run.sync();
        run.wait(Duration::ZERO);
        let store = run.programmer().store_mut();
        let written = &store.log[before..];
        prop_assert!(written.iter().all(|op| op.to_string().starts_with("note")), "{:x}: {:?}", hidden, written);
    }
    Ok(())
}

fn leaves_nothing(steps: &[Step], run_max: usize) -> Said {
    let mut run = played(steps, None, run_max);
    run.snapshot = Snapshot::default();
    run.settle();
    prop_assert_eq!(run.dump(), "");
    let programmer = run.programmer();
    prop_assert_eq!(programmer.next_tick(), None);
    let programmed = programmer.programmed();
    prop_assert!(
        programmed.services().is_empty() && programmed.slots().is_empty() && programmed.slots().unused().is_empty()
    );
    prop_assert!(
        programmed.backends().records().is_empty()
            && programmed.backends().deadlines().is_empty()
            && programmed.backends().gone().is_empty()
    );
    prop_assert!(programmer.store().names.is_empty());
    Ok(())
}

fn leaves_nothing_in_small_tables(steps: &[Step], (slots, backends, names): (u32, u32, u32), run_max: usize) -> Said {
    let capacities = Capacities::new(|part| match part {
        Part::Services(Family::V4) => 3,
        Part::Backends(_) => backends,
        Part::Endpoints(Family::V6) => 1,
        Part::Slots => slots,
        Part::Names => names,
        _ => 2,
    });
    let mut run = played(steps, Some(capacities), run_max);
    run.snapshot = Snapshot::default();
    run.settle();
    prop_assert_eq!(run.dump(), "");
    Ok(())
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), lb_seed::short_or_long(100, 500)))]

    #[test]
    fn every_run_ends_at_the_truth(steps in steps(), run_max in run_max()) {
        ends_at_the_truth(&steps, run_max)?;
    }

    #[test]
    fn nothing_is_left_of_what_is_deleted(steps in steps(), run_max in run_max()) {
        leaves_nothing(&steps, run_max)?;
    }

    #[test]
    fn small_tables_never_break_what_a_reader_sees(
        steps in steps(), room in (1u32..12, 2u32..8, 1u32..5), run_max in run_max()
    ) {
        leaves_nothing_in_small_tables(&steps, room, run_max)?;
    }
}

#[test]
fn runs_that_once_failed_hold_every_property() {
    for (steps, run_max) in
        kept::runs().into_iter().flat_map(|steps| [1, 2, 3, RUN_MAX].map(|max| (steps.clone(), max)))
    {
        ends_at_the_truth(&steps, run_max).unwrap_or_else(|error| panic!("{steps:?}: {error}"));
        leaves_nothing(&steps, run_max).unwrap_or_else(|error| panic!("{steps:?}: {error}"));
        for room in [(1, 2, 1), (4, 4, 2), (11, 7, 4)] {
            leaves_nothing_in_small_tables(&steps, room, run_max)
                .unwrap_or_else(|error| panic!("{room:?} slots, backends, names, {run_max} a run: {steps:?}: {error}"));
        }
    }
}

/// Two services exchange frontends, and a write of the first fails: what the other kept for it goes all the same.
#[test]
fn services_that_exchange_frontends_while_a_write_fails_leave_nothing_behind() {
    let shape =
        |address, external| ServiceShape { address, dual: false, ports: 1, affinity: false, external, policies: 0 };
    for fails_after in 0..10 {
        let mut run = Run::new(None, RUN_MAX);
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
        let mut fresh = Run::new(None, RUN_MAX);
        fresh.snapshot = run.snapshot.clone();
        fresh.settle();
        assert_eq!(timeless(&run.dump()), timeless(&fresh.dump()), "the write after {fails_after} others fails");
    }
}
