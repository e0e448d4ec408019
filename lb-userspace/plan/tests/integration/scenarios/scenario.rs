//! The cluster of a scenario: objects come and go, time passes, the agent restarts, writes fail.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lb_model::{Monotonic, Node, ObjectName, PortKey, Protocol, Refusal, Service, Slice, Snapshot};
use lb_objects::{convert, manifest::Object};
use lb_plan::{
    apply::{MemoryStore, Programmer, Report},
    plan::{Capacities, HealthCheck, NodeFacts, PlanSettings, plan},
};

/// How the events between two commands are brought in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventOrder {
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

pub const ORDERS: [EventOrder; 8] = [
    EventOrder::Forward,
    EventOrder::Backward,
    EventOrder::AtOnce,
    EventOrder::Restarting,
    EventOrder::Failing(0),
    EventOrder::Failing(1),
    EventOrder::Failing(2),
    EventOrder::Failing(5),
];

#[derive(Clone, Debug)]
pub enum Event {
    Apply(Object),
    Delete(String),
}

pub struct Scenario {
    order: EventOrder,
    settings: PlanSettings,
    /// Taken only within a restart.
    programmer: Option<Programmer<MemoryStore>>,
    now: Monotonic,
    revision: u64,
    services: BTreeMap<ObjectName, Arc<Service>>,
    slices: BTreeMap<ObjectName, Arc<Slice>>,
    node: Option<Arc<Node>>,
    converted: BTreeMap<String, Vec<Refusal>>,
    facts: NodeFacts,
    report: Report,
}

impl Scenario {
    pub fn new(order: EventOrder, capacities: Option<Capacities>, settings: PlanSettings) -> Self {
        let settings = PlanSettings { retry_min: Duration::ZERO, retry_max: Duration::ZERO, ..settings };
        let mut store = capacities.map_or_else(MemoryStore::roomy, MemoryStore::new);
        store.check_each_write = true;
        let now = Monotonic::default();
        let programmer = Programmer::restore(store, settings.clone(), now).expect("memory can be read");
        Self {
            order,
            settings,
            programmer: Some(programmer),
            now,
            revision: 0,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            node: None,
            converted: BTreeMap::new(),
            facts: NodeFacts::default(),
            report: Report::default(),
        }
    }

    fn programmer(&mut self) -> &mut Programmer<MemoryStore> {
        self.programmer.as_mut().expect("it is only taken within a restart")
    }

    pub fn store(&mut self) -> &mut MemoryStore {
        self.programmer().store_mut()
    }

    pub fn events(&mut self, mut events: Vec<Event>) {
        if self.order == EventOrder::Backward {
            events.reverse();
        }
        let count = events.len();
        for (index, event) in events.into_iter().enumerate() {
            self.take(event);
            if self.order != EventOrder::AtOnce || index + 1 == count {
                self.sync();
            }
            if self.order == EventOrder::Restarting {
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
                if what == "Node" {
                    self.node = None;
                    return;
                }
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
        if let EventOrder::Failing(after) = self.order {
            self.store().failures = vec![after; 3];
        }
        self.revision += 1;
        let (snapshot, facts, now) = (self.snapshot(), self.facts.clone(), self.now);
        self.report = self.programmer().sync(&snapshot, &facts, now);
        self.settle();
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            services: self.services.iter().map(|(name, service)| (name.clone(), Arc::clone(service))).collect(),
            slices: self.slices.values().map(|slice| (slice.key(), Arc::clone(slice))).collect(),
            node: self.node.clone(),
            ..Snapshot::default()
        }
    }

    /// The node's links have these addresses from now on.
    pub fn address(&mut self, addresses: &str) {
        self.facts.addresses = addresses.split_whitespace().map(|ip| ip.parse().expect("an address")).collect();
        self.sync();
    }

    /// The node itself listens there.
    pub fn reserve(&mut self, argument: &str) {
        let words: Vec<&str> = argument.split_whitespace().collect();
        let [address, port] = words[..] else { panic!("{argument}: expected an address and a port") };
        let (address, port) = (address.parse().expect("an address"), port.parse().expect("a port"));
        self.facts.reserved.insert((address, port, Protocol::Tcp));
        self.sync();
    }

    /// A hand takes something out, or brings it back.
    pub fn maintenance(&mut self, argument: &str) {
        let (switch, target) = argument.split_once(' ').expect("a switch and a target");
        let target = target.parse().expect("an address");
        match switch {
            "on" => self.facts.marks.maintenance.insert(target),
            _ => self.facts.marks.maintenance.remove(&target),
        };
        self.sync();
    }

    /// The active checks of an endpoint fail, or no longer do.
    pub fn set_unhealthy(&mut self, argument: &str) {
        let words: Vec<&str> = argument.split_whitespace().collect();
        let [switch, service, port, endpoint] = words[..] else { panic!("{argument}: expected four words") };
        let (namespace, name) = service.split_once('/').expect("a namespace and a name");
        let port = port.parse().expect("a port");
        let key = PortKey { service: ObjectName::new(namespace, name), port, protocol: Protocol::Tcp };
        let mark = (key, endpoint.parse().expect("an address and a port"));
        match switch {
            "on" => self.facts.marks.unhealthy.insert(mark),
            _ => self.facts.marks.unhealthy.remove(&mark),
        };
        self.sync();
    }

    /// What is answered on health-check node ports.
    pub fn health(&self) -> String {
        let checks = plan(&self.snapshot(), &self.facts, &self.settings).health_checks;
        let line = |(port, check): (&u16, &HealthCheck)| format!("{port} {} {}", check.service, check.local_ready);
        checks.iter().map(line).collect::<Vec<_>>().join("\n")
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

    pub fn advance(&mut self, seconds: u64) {
        // Second by second, as ticks come.
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.settle();
        }
    }

    pub fn restart(&mut self) {
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

    pub fn refer(&mut self, address: &str) {
        let store = self.store();
        store.flows.clear();
        let at = store.backends.iter().filter(|(_, record)| record.address.ip().to_string() == address);
        let ids: Vec<_> = at.map(|(id, _)| *id).collect();
        store.flows.extend(ids);
    }

    pub fn refusals(&self) -> String {
        let all = self.converted.values().flatten().chain(&self.report.refusals);
        all.map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}
