//! Scenario files: objects and commands in, tables out; each is run in several ways that must all end alike.
//!
//! A file in `tests/scenarios/` holds sections, each headed by `-- COMMAND --`:
//! `apply` (YAML, each document an event), `delete` (`Service NS/NAME` lines, each an event), `advance SECONDS`, `restart`,
//! `flows ADDRESS` (a flow refers to the backends at this address; without an address: none does any more), `full NAME N` and `node NAME`
//! (settings, at the head only), `tables` and `refusals` (what must hold now). Events between two other commands may come in
//! any order.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use lb_userspace::{
    apply::{MemoryStore, Programmer, Report},
    model::{Monotonic, Node, ObjectName, Refusal, Service, Slice, Snapshot},
    plan::{Capacities, NodeFacts, PlanSettings},
    source::{
        convert,
        manifest::{self, Object},
    },
};

/// How the events between two commands are brought in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// One after the other, as they stand.
    Forward,
    /// The last one first.
    Backward,
    /// All in one snapshot.
    AtOnce,
    /// One after the other, with a restart of the agent after each.
    Restarting,
    /// One after the other, where the n-th write after each failure fails.
    Failing(usize),
}

const WAYS: [Way; 8] = [
    Way::Forward,
    Way::Backward,
    Way::AtOnce,
    Way::Restarting,
    Way::Failing(0),
    Way::Failing(1),
    Way::Failing(2),
    Way::Failing(5),
];

#[derive(Clone, Debug)]
enum Event {
    Apply(Object),
    Delete(String),
}

struct World {
    way: Way,
    settings: PlanSettings,
    /// Taken only within a restart.
    programmer: Option<Programmer<MemoryStore>>,
    now: Monotonic,
    revision: u64,
    services: BTreeMap<ObjectName, Arc<Service>>,
    slices: BTreeMap<ObjectName, Arc<Slice>>,
    node: Option<Arc<Node>>,
    converted: BTreeMap<String, Vec<Refusal>>,
    report: Report,
}

impl World {
    fn new(way: Way, capacities: Option<Capacities>, node_name: Option<String>) -> Self {
        let settings =
            PlanSettings { node_name, retry_min: Duration::ZERO, retry_max: Duration::ZERO, ..PlanSettings::default() };
        let mut store = capacities.map_or_else(MemoryStore::roomy, MemoryStore::new);
        store.check_each_write = true;
        let now = Monotonic::default();
        let programmer = Programmer::restore(store, settings.clone(), now).expect("memory can be read");
        Self {
            way,
            settings,
            programmer: Some(programmer),
            now,
            revision: 0,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            node: None,
            converted: BTreeMap::new(),
            report: Report::default(),
        }
    }

    fn programmer(&mut self) -> &mut Programmer<MemoryStore> {
        self.programmer.as_mut().expect("it is only taken within a restart")
    }

    fn store(&mut self) -> &mut MemoryStore {
        self.programmer().store_mut()
    }

    fn events(&mut self, mut events: Vec<Event>) {
        if self.way == Way::Backward {
            events.reverse();
        }
        let count = events.len();
        for (index, event) in events.into_iter().enumerate() {
            self.take(event);
            if self.way != Way::AtOnce || index + 1 == count {
                self.sync();
            }
            if self.way == Way::Restarting {
                self.restart();
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Apply(Object::Service(service)) => {
                let name = convert::object_name(&service.metadata);
                let converted = convert::service(&service);
                self.services.remove(&name);
                self.converted.insert(format!("Service {name}"), converted.refusals);
                self.services.extend(converted.object.map(|object| (name, Arc::new(object))));
            }
            Event::Apply(Object::Slice(slice)) => {
                let name = convert::object_name(&slice.metadata);
                let converted = convert::slice(&slice);
                self.slices.remove(&name);
                self.converted.insert(format!("EndpointSlice {name}"), converted.refusals);
                self.slices.extend(converted.object.map(|object| (name, Arc::new(object))));
            }
            Event::Apply(Object::Node(node)) => {
                let converted = convert::node(&node);
                self.converted.insert("Node".into(), converted.refusals);
                self.node = converted.object.map(Arc::new);
            }
            Event::Apply(Object::Other(what)) => panic!("{what} in a scenario"),
            Event::Delete(what) => {
                self.converted.remove(&what);
                let (kind, name) = what.split_once(' ').expect("a kind and a name");
                let (namespace, name) = name.split_once('/').expect("a namespace and a name");
                let name = ObjectName::new(namespace, name);
                let known = match kind {
                    "Service" => self.services.remove(&name).is_some(),
                    _ => self.slices.remove(&name).is_some(),
                };
                assert!(known, "{what} is not there");
            }
        }
    }

    fn sync(&mut self) {
        if let Way::Failing(after) = self.way {
            self.store().failures = vec![after; 3];
        }
        self.revision += 1;
        let snapshot = Snapshot {
            revision: self.revision,
            services: self.services.iter().map(|(name, service)| (name.clone(), Arc::clone(service))).collect(),
            slices: self.slices.values().map(|slice| (slice.key(), Arc::clone(slice))).collect(),
            node: self.node.clone(),
        };
        let now = self.now;
        self.report = self.programmer().sync(&snapshot, &NodeFacts::default(), now);
        self.settle();
    }

    /// Ticks as the agent would, until nothing is due at this moment.
    fn settle(&mut self) {
        for _ in 0..100 {
            let now = self.now;
            let programmer = self.programmer();
            if programmer.next_tick().is_none_or(|at| at > now) {
                break;
            }
            let report = programmer.tick(now);
            let stuck = report == self.report && report.failures.is_empty() && report.writes == 0;
            self.report = report;
            if stuck {
                break;
            }
        }
        assert_eq!(self.report.failures, Vec::<String>::new(), "failures that no retry overcame");
        self.store().failures.clear();
    }

    fn advance(&mut self, seconds: u64) {
        // Second by second, as ticks come.
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.settle();
        }
    }

    fn restart(&mut self) {
        let store = self.programmer.take().expect("it is only taken here").into_store();
        let before = store.dump();
        let restored = Programmer::restore(store, self.settings.clone(), self.now).expect("memory can be read");
        assert_eq!(restored.store().dump(), before, "a start alone changes nothing");
        self.programmer = Some(restored);
        let writes_before = self.store().log.len();
        self.sync();
        let store = self.store();
        let new: Vec<String> = store.log[writes_before..].iter().map(ToString::to_string).collect();
        let notes = |op: &&String| !op.starts_with("note revision") && !op.starts_with("forget");
        let new: Vec<&String> = new.iter().filter(notes).collect();
        assert!(new.is_empty(), "a restart with nothing new wrote {new:?}");
    }

    fn refer(&mut self, address: &str) {
        let store = self.store();
        store.flows.clear();
        let at = store.backends.iter().filter(|(_, record)| record.address.ip().to_string() == address);
        let ids: Vec<_> = at.map(|(id, _)| *id).collect();
        store.flows.extend(ids);
    }

    fn refusals(&self) -> String {
        let all = self.converted.values().flatten().chain(&self.report.refusals);
        all.map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

/// Sections: command, body, line.
fn sections(text: &str) -> Vec<(String, String, usize)> {
    let mut sections: Vec<(String, String, usize)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
            sections.push((command.to_owned(), String::new(), number + 1));
        } else if let Some((_, body, _)) = sections.last_mut()
            && !line.starts_with("# ")
        {
            body.push_str(line);
            body.push('\n');
        }
    }
    sections
}

fn run(path: &Path, way: Way) {
    let text = fs::read_to_string(path).expect("a readable scenario");
    let all = sections(&text);
    let head = |wanted: &str| all.iter().find_map(|(command, ..)| command.strip_prefix(wanted));
    let mut world = World::new(way, head("full ").map(capacities), head("node ").map(str::to_owned));
    let mut events = Vec::new();
    for (command, body, line) in &all {
        let place = format!("{}:{line} {way:?}", path.display());
        let (verb, argument) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "apply" => {
                events.extend(manifest::parse(&place, body).expect("a good manifest").into_iter().map(Event::Apply));
            }
            "delete" => events.extend(body.lines().filter(|l| !l.is_empty()).map(|l| Event::Delete(l.to_owned()))),
            _ => world.events(std::mem::take(&mut events)),
        }
        match verb {
            "apply" | "delete" | "node" | "full" => {}
            "advance" => world.advance(argument.parse().expect("seconds")),
            "restart" => world.restart(),
            "flows" => world.refer(argument),
            "tables" => {
                let dump = world.store().dump();
                assert_eq!(dump.trim(), body.trim(), "{place}\nthe tables are\n{dump}");
            }
            "refusals" => {
                let refusals = world.refusals();
                assert_eq!(refusals.trim(), body.trim(), "{place}\nrefused is\n{refusals}");
            }
            other => panic!("{place}: unknown command {other:?}"),
        }
    }
    assert!(events.is_empty(), "{}: events after the last check", path.display());
}

/// `MAP N`: that map holds N elements, all others plenty.
fn capacities(argument: &str) -> Capacities {
    let (map, count) = argument.split_once(' ').expect("a map and a number");
    let count = count.parse().expect("a number");
    let mut all = Capacities { slots: 1000, ..Capacities::all(100) };
    match map {
        "services4" => all.frontends4 = count,
        "backends4" => all.backends4 = count,
        "slots" => all.slots = count,
        "names" => all.names = count,
        "sources4" => all.sources4 = count,
        "vips4" => all.vips4 = count,
        other => panic!("unknown map {other}"),
    }
    all
}

#[test]
fn every_scenario_ends_alike_whatever_the_way() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "scenarios are missing");
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for way in WAYS {
            // A table without room may serve whoever comes first: such a file gives one order only.
            if text.contains("-- full ") && way != Way::Forward {
                continue;
            }
            run(&path, way);
        }
    }
}
