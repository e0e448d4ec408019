//! The objects that a source holds at the moment, already converted, and what was refused of them.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use imbl::OrdMap;
use ipnet::IpNet;

use super::{
    convert::{self, Converted},
    lean,
};
use lb_model::{
    Accepted, AllowedAnnotations, Mark, Node, ObjectMarks, ObjectName, Peer, Refusal, Service, ServiceCidr,
    ServiceOptions, Slice, SliceKey, Snapshot, Unread,
};

/// What a snapshot holds by a key.
pub trait Keyed: PartialEq {
    type Key: Ord + Clone + std::fmt::Debug;

    fn key(&self) -> Self::Key;

    /// Its own name, where it has one: held once.
    fn name(&self) -> Option<&ObjectName> {
        None
    }

    /// The service that it is, or belongs to; `None`: it concerns no single one.
    fn service(&self) -> Option<ObjectName> {
        None
    }
}

impl Keyed for Service {
    type Key = ObjectName;

    fn key(&self) -> ObjectName {
        self.name.clone()
    }

    fn name(&self) -> Option<&ObjectName> {
        Some(&self.name)
    }

    fn service(&self) -> Option<ObjectName> {
        Some(self.name.clone())
    }
}

impl Keyed for Slice {
    type Key = SliceKey;

    fn key(&self) -> SliceKey {
        Slice::key(self)
    }

    fn name(&self) -> Option<&ObjectName> {
        Some(&self.name)
    }

    fn service(&self) -> Option<ObjectName> {
        Some(ObjectName { namespace: self.name.namespace.clone(), name: self.service.clone() })
    }
}

impl Keyed for Node {
    type Key = String;

    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Peer {
    type Key = String;

    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for ServiceCidr {
    type Key = String;

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// What came of an object, for every set of objects that it gets into.
#[derive(Debug)]
pub struct Shared<T> {
    pub object: Option<Arc<T>>,
    pub refusals: Vec<Refusal>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { object: self.object.clone(), refusals: self.refusals.clone() }
    }
}

impl<T> From<Converted<T>> for Shared<T> {
    fn from(converted: Converted<T>) -> Self {
        Self { object: converted.object.map(Arc::new), refusals: converted.refusals }
    }
}

/// A Service with what its annotations may ask for.
pub fn service(service: &lean::Service, allowed: &AllowedAnnotations) -> Shared<Service> {
    let mut converted = convert::service(service);
    if let Some(object) = &mut converted.object
        && let Some(mut options) = object.options.take()
    {
        let name = format!("Service {}", object.name);
        converted.refusals.extend(allowed.restrict(&mut options, &object.name.namespace, &name));
        object.options = (*options != ServiceOptions::default()).then_some(options);
    }
    converted.into()
}

/// Which object of its name it is, and which state of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// [`lb_model::uid_hash`]; 0: not known.
    pub uid: u32,
    pub mark: Mark,
}

/// An object, and which one of its name it is.
#[derive(Debug)]
struct Named<T> {
    object: Arc<T>,
    identity: Identity,
}

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self { object: self.object.clone(), identity: self.identity }
    }
}

/// All objects of one kind.
#[derive(Debug)]
pub struct Objects<T: Keyed> {
    held: OrdMap<T::Key, Arc<T>>,
    /// The objects by their names.
    by_name: OrdMap<ObjectName, Named<T>>,
    refusals: OrdMap<ObjectName, Vec<Refusal>>,
    /// Those that cannot be read, and of which nothing is held.
    unread: OrdMap<ObjectName, Unread>,
    /// Of the objects that are held, by service.
    marks: ObjectMarks,
}

impl<T: Keyed> Default for Objects<T> {
    fn default() -> Self {
        Self {
            held: OrdMap::new(),
            by_name: OrdMap::new(),
            refusals: OrdMap::new(),
            unread: OrdMap::new(),
            marks: ObjectMarks::default(),
        }
    }
}

/// Costs nothing: a copy shares what it has in common.
impl<T: Keyed> Clone for Objects<T> {
    fn clone(&self) -> Self {
        Self {
            held: self.held.clone(),
            by_name: self.by_name.clone(),
            refusals: self.refusals.clone(),
            unread: self.unread.clone(),
            marks: self.marks.clone(),
        }
    }
}

impl<T: Keyed> Objects<T> {
    /// What stays as it is keeps its place in memory, so that no snapshot differs by it.
    pub fn put(&mut self, name: ObjectName, identity: Identity, shared: Shared<T>) {
        let key = shared.object.as_ref().map(|object| object.key());
        if let Some(old) = self.by_name.get(&name).map(|old| old.object.key())
            && key.as_ref() != Some(&old)
        {
            self.drop_object(&name);
        }
        if let (Some(object), Some(key)) = (shared.object, key) {
            let same = self.held.get(&key).filter(|held| **held == object).cloned();
            if same.is_none() || self.by_name.get(&name).is_none_or(|known| known.identity != identity) {
                let is_same = same.is_some();
                let object = same.unwrap_or(object);
                let name = object.name().unwrap_or(&name).clone();
                if let Some(service) = object.service() {
                    self.marks.add(&service, identity.mark);
                }
                if let Some(old) = self.by_name.insert(name, Named { object: object.clone(), identity }) {
                    self.forget_mark(&old);
                }
                if !is_same {
                    self.held.insert(key, object);
                }
            }
        }
        self.unread.remove(&name);
        if shared.refusals.is_empty() {
            self.refusals.remove(&name);
        } else {
            self.refusals.insert(name, shared.refusals);
        }
    }

    /// The object cannot be read. What was read of the same object before stays; returns whether there is any. `unread` says what then
    /// is not known.
    pub fn put_unread(&mut self, name: &ObjectName, uid: u32, unread: Option<Unread>) -> bool {
        let is_other = |known: &Named<T>| known.identity.uid != uid && known.identity.uid != 0 && uid != 0;
        if self.by_name.get(name).is_some_and(is_other) {
            self.remove(name);
        }
        let is_kept = self.by_name.contains_key(name);
        match unread.filter(|_| !is_kept) {
            Some(unread) => drop(self.unread.insert(name.clone(), unread)),
            None => drop(self.unread.remove(name)),
        }
        is_kept
    }

    /// What cannot be read, and of which nothing is held.
    pub fn unread(&self) -> impl Iterator<Item = &Unread> {
        self.unread.values()
    }

    /// Notes what is refused of an object, in place of what was.
    pub fn refuse(&mut self, name: ObjectName, refusal: Refusal) {
        self.refusals.insert(name, vec![refusal]);
    }

    pub fn remove(&mut self, name: &ObjectName) {
        self.drop_object(name);
        self.refusals.remove(name);
        self.unread.remove(name);
    }

    fn drop_object(&mut self, name: &ObjectName) {
        if let Some(named) = self.by_name.remove(name) {
            self.held.remove(&named.object.key());
            self.forget_mark(&named);
        }
    }

    fn forget_mark(&mut self, named: &Named<T>) {
        if let Some(service) = named.object.service() {
            self.marks.remove(&service, named.identity.mark);
        }
    }

    /// Everything that is refused, by name.
    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.refusals.values().flatten()
    }

    /// Keeps only what has a name for which `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(&ObjectName) -> bool) {
        let gone: Vec<ObjectName> =
            self.by_name.keys().chain(self.refusals.keys()).filter(|name| !keep(name)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
    }

    pub fn contains(&self, name: &ObjectName) -> bool {
        self.by_name.contains_key(name) || self.refusals.contains_key(name)
    }
}

impl<T: Keyed> Objects<T> {
    /// Whether these are the same objects, at the same places.
    pub fn is_same(&self, other: &Self) -> bool {
        self.held.ptr_eq(&other.held)
    }
}

impl Objects<Service> {
    pub fn any(&self, is_so: impl Fn(&Service) -> bool) -> bool {
        self.held.values().any(|service| is_so(service))
    }

    /// With what its annotations may ask for.
    pub fn put_service(&mut self, read: &lean::Service, identity: Identity, allowed: &AllowedAnnotations) {
        self.put(convert::object_name(&read.metadata), identity, service(read, allowed));
    }
}

impl Objects<Slice> {
    pub fn put_slice(&mut self, slice: &lean::EndpointSlice, identity: Identity) {
        self.put(convert::object_name(&slice.metadata), identity, convert::slice(slice).into());
    }
}

impl Objects<Node> {
    pub fn put_node(&mut self, node: &lean::Node, identity: Identity) {
        self.put(convert::object_name(&node.metadata), identity, convert::node(node).into());
    }

    /// The only one, where one is selected.
    pub fn first(&self) -> Option<&Arc<Node>> {
        self.held.values().next()
    }
}

impl Objects<Peer> {
    pub fn put_peer(&mut self, node: &lean::Node, identity: Identity) {
        self.put(convert::object_name(&node.metadata), identity, convert::peer(node).into());
    }

    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.held.values().flat_map(|peer| peer.addresses.iter().copied()).collect()
    }
}

impl Objects<ServiceCidr> {
    pub fn put_service_cidr(&mut self, cidr: &lean::ServiceCidr, identity: Identity) {
        self.put(convert::object_name(&cidr.metadata), identity, convert::service_cidr(cidr).into());
    }

    pub fn networks(&self) -> BTreeSet<IpNet> {
        self.held.values().flat_map(|cidr| cidr.networks.iter().copied()).collect()
    }
}

/// A snapshot of both kinds, and of this node, the others and the service CIDRs if they are known.
pub fn snapshot(
    services: &Objects<Service>,
    slices: &Objects<Slice>,
    node: Option<&Arc<Node>>,
    peers: Option<&Arc<BTreeSet<IpAddr>>>,
    service_cidrs: Option<&Arc<BTreeSet<IpNet>>>,
    revision: u64,
) -> Snapshot {
    let unread = Arc::new(services.unread().chain(slices.unread()).cloned().collect());
    let (node, peers, service_cidrs) = (node.cloned(), peers.cloned(), service_cidrs.cloned());
    let accepted = Accepted { services: services.marks.clone(), slices: slices.marks.clone(), ..Accepted::default() };
    let (services, slices) = (services.held.clone(), slices.held.clone());
    Snapshot { revision, services, slices, node, peers, service_cidrs, unread, accepted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::Family;

    fn slice(name: &str, service: &str) -> Shared<Slice> {
        let (name, service, family) = (ObjectName::new("demo", name), service.into(), Family::V4);
        let (ports, endpoints) = (Vec::new(), Vec::new());
        let (changed_at, created_s, refused) = (None, None, None);
        let object = Slice { name, service, family, ports, endpoints, changed_at, created_s, refused };
        Shared { object: Some(Arc::new(object)), refusals: Vec::new() }
    }

    /// However objects come, change and go, the marks are those of the objects that are held.
    #[test]
    fn the_marks_are_those_of_what_is_held() {
        let name = |name: &str| ObjectName::new("demo", name);
        let identity = |version: &str| Identity { uid: 1, mark: Mark::of("EndpointSlice", &name("s"), "u", version) };
        let marks = |all: &[(&str, &str)]| {
            let mut marks = ObjectMarks::default();
            for (service, version) in all {
                marks.add(&name(service), identity(version).mark);
            }
            marks
        };
        let mut slices = Objects::<Slice>::default();
        slices.put(name("s1"), identity("1"), slice("s1", "web"));
        slices.put(name("s2"), identity("2"), slice("s2", "web"));
        assert_eq!(slices.marks, marks(&[("web", "1"), ("web", "2")]));
        let before = slices.held.clone();
        slices.put(name("s1"), identity("3"), slice("s1", "web"));
        assert!(slices.held.ptr_eq(&before), "only its version changed: no snapshot differs by it");
        assert_eq!(slices.marks, marks(&[("web", "3"), ("web", "2")]));
        slices.put(name("s1"), identity("4"), slice("s1", "db"));
        assert_eq!(slices.marks, marks(&[("db", "4"), ("web", "2")]));
        assert!(slices.put_unread(&name("s1"), 1, None), "what was read before is held");
        assert_eq!(slices.marks, marks(&[("db", "4"), ("web", "2")]));
        slices.put(name("s1"), identity("5"), Shared { object: None, refusals: Vec::new() });
        slices.remove(&name("s2"));
        assert_eq!(slices.marks, ObjectMarks::default());
    }
}
