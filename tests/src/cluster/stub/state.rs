//! The stub's state: objects, their history by version, and the faults to show.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use super::selector::Selector;
use crate::cluster::odd_objects::{OddObject, VERSION};

/// The kinds of objects that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceKind {
    Service,
    Slice,
    Node,
    ServiceCidr,
}

impl ResourceKind {
    /// As objects name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Service | Self::Node => "v1",
            Self::Slice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
        }
    }

    fn of(object: &Value) -> Self {
        let kinds = [Self::Service, Self::Slice, Self::Node, Self::ServiceCidr];
        let found = kinds.into_iter().find(|kind| object["kind"] == kind.name());
        found.unwrap_or_else(|| panic!("not an object that the stub serves: {object}"))
    }
}

/// What a list says instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// There is nothing.
    Empty,
    /// There are only so many, the first by name.
    Few(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    List,
    Watch,
}

/// What somebody asked.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Instant,
    /// The end of its connection: another one, another connection.
    pub peer: SocketAddr,
    pub kind: ResourceKind,
    pub verb: Verb,
    /// What follows the `?`.
    pub query: String,
}

type Name = (ResourceKind, String, String);

/// An event of the watches, and the version that its change made.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub version: u64,
    pub kind: ResourceKind,
    pub event: Value,
    /// No watch tells it.
    hidden: bool,
}

#[derive(Debug)]
pub struct State {
    version: u64,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    objects: BTreeMap<Name, Value>,
    history: Vec<StoredEvent>,
    lies: BTreeMap<ResourceKind, VecDeque<Lie>>,
    /// Kinds of which every question is answered with this status.
    refused: BTreeMap<ResourceKind, u16>,
    /// Watches opened before this count are silent, or at an end.
    silent_before: usize,
    ended_before: usize,
    watches: usize,
    /// Of a kind, changes of others are no news to its watches.
    reports_no_progress: bool,
    requests: Vec<Request>,
    events: Vec<Value>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            // A cluster is never at its first version: that number has a meaning of its own in questions.
            version: 100,
            forgotten: 100,
            objects: BTreeMap::new(),
            history: Vec::new(),
            lies: BTreeMap::new(),
            refused: BTreeMap::new(),
            silent_before: 0,
            ended_before: 0,
            watches: 0,
            reports_no_progress: false,
            requests: Vec::new(),
            events: Vec::new(),
        }
    }
}

impl State {
    pub fn put(&mut self, mut object: Value) {
        self.version += 1;
        let kind = ResourceKind::of(&object);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let known = self.objects.insert(name(kind, &object), object.clone());
        self.remember(kind, if known.is_some() { "MODIFIED" } else { "ADDED" }, &object);
    }

    /// Keeps an object as it is, whatever it says of itself, but for its version where it leaves room for one.
    pub fn put_odd(&mut self, odd: &OddObject) {
        self.version += 1;
        let mut object = odd.object.clone();
        if object.pointer("/metadata/resourceVersion").is_some_and(|version| version == VERSION) {
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
        self.objects.insert((odd.kind, String::new(), odd.what.clone()), object.clone());
        self.remember(odd.kind, "MODIFIED", &object);
    }

    pub fn delete(&mut self, kind: ResourceKind, namespace: &str, name: &str) {
        if let Some(mut object) = self.objects.remove(&(kind, namespace.to_owned(), name.to_owned())) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.remember(kind, "DELETED", &object);
        }
    }

    pub fn delete_where(&mut self, kind: ResourceKind, chosen: impl Fn(&Value) -> bool) {
        let is_gone = |((of, ..), object): &(&Name, &Value)| *of == kind && chosen(object);
        let gone: Vec<Name> = self.objects.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        for (kind, namespace, name) in gone {
            self.delete(kind, &namespace, &name);
        }
    }

    /// No watch tells the last change.
    pub fn hide_last(&mut self) {
        if let Some(change) = self.history.last_mut() {
            change.hidden = true;
        }
    }

    pub fn lie(&mut self, kind: ResourceKind, lie: Lie, count: usize) {
        self.lies.entry(kind).or_default().extend(std::iter::repeat_n(lie, count));
    }

    pub fn refuse(&mut self, kind: ResourceKind, status: Option<u16>) {
        match status {
            Some(status) => self.refused.insert(kind, status),
            None => self.refused.remove(&kind),
        };
    }

    pub fn refusal(&self, kind: ResourceKind) -> Option<u16> {
        self.refused.get(&kind).copied()
    }

    pub fn silence_watches(&mut self) {
        self.silent_before = self.watches;
    }

    pub fn forget(&mut self) {
        self.ended_before = self.watches;
        self.history.clear();
        // A client that knows the last version has missed nothing; here something else happened since.
        self.version += 1;
        self.forgotten = self.version;
    }

    /// Forgets the changes up to now without ending a watch.
    pub fn forget_told(&mut self) {
        self.history.clear();
        self.forgotten = self.version;
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// A list, or the lie that is next.
    pub fn list(&mut self, kind: ResourceKind, selector: &Selector) -> Value {
        let shown = match self.lies.get_mut(&kind).and_then(VecDeque::pop_front) {
            None => usize::MAX,
            Some(Lie::Empty) => 0,
            Some(Lie::Few(count)) => count,
        };
        json!({
            "kind": format!("{}List", kind.name()), "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": self.selected(kind, selector).take(shown).collect::<Vec<_>>(),
        })
    }

    /// The objects of a kind that a selector admits, by name.
    pub fn selected<'a>(&'a self, kind: ResourceKind, selector: &'a Selector) -> impl Iterator<Item = &'a Value> {
        self.objects
            .iter()
            .filter(move |((of, ..), object)| *of == kind && selector.admits(object))
            .map(|(_, object)| object)
    }

    /// A new watch: its number.
    pub fn open_watch(&mut self) -> usize {
        self.watches += 1;
        self.watches - 1
    }

    pub fn is_silent(&self, watch: usize) -> bool {
        watch < self.silent_before
    }

    pub fn is_ended(&self, watch: usize) -> bool {
        watch < self.ended_before
    }

    /// Whether the changes since a version are known.
    pub fn remembers(&self, version: u64) -> bool {
        version >= self.forgotten
    }

    /// What a watch tells that knows everything up to `version`.
    pub fn since<'a>(
        &'a self,
        kind: ResourceKind,
        version: u64,
        selector: &'a Selector,
    ) -> impl Iterator<Item = &'a StoredEvent> {
        let known = self.history.partition_point(|change| change.version <= version);
        let tells = move |change: &&StoredEvent| {
            change.kind == kind && !change.hidden && selector.admits(&change.event["object"])
        };
        self.history[known..].iter().filter(tells)
    }

    pub fn report_no_progress(&mut self) {
        self.reports_no_progress = true;
    }

    /// Of a watch that began at version `from`; `None`: the server has none for it.
    pub fn bookmark(&self, kind: ResourceKind, from: u64) -> Option<Value> {
        if !self.reports_no_progress {
            return Some(bookmark(kind, self.version));
        }
        let newest = self.history.iter().rev().find(|change| change.kind == kind)?.version;
        (newest > from).then(|| bookmark(kind, newest))
    }

    /// The bookmark behind the initial events of a watch.
    pub fn initial_bookmark(&self, kind: ResourceKind) -> Value {
        let mut bookmark = bookmark(kind, self.version);
        bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        bookmark
    }

    pub fn note(&mut self, request: Request) {
        self.requests.push(request);
    }

    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    pub fn note_event(&mut self, event: Value) {
        self.events.push(event);
    }

    pub fn events(&self) -> &[Value] {
        &self.events
    }

    fn remember(&mut self, kind: ResourceKind, how: &str, object: &Value) {
        let event = json!({"type": how, "object": object});
        self.history.push(StoredEvent { version: self.version, kind, event, hidden: false });
    }
}

fn bookmark(kind: ResourceKind, version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {
        "kind": kind.name(), "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": version.to_string()},
    }})
}

fn name(kind: ResourceKind, object: &Value) -> Name {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}
