//! A change of some objects: manifests that replace objects of a snapshot, or come to it. The snapshot itself stays as it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    convert, lean,
    manifest::{self, ManifestError, Object},
    objects::{self, Shared},
};
use lb_model::{
    AllowedAnnotations, Exposure, ObjectName, Protocol, Refusal, Service, ServicePort, Snapshot, UnreadKind,
};

/// Why a change cannot be planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChangeError {
    #[error("{path}:{line}:{column}: {reason}")]
    Manifest { path: String, line: u64, column: u64, reason: String },
    #[error("{kind} {name} is there more than once: keep one of them")]
    Twice { kind: &'static str, name: ObjectName },
    #[error("{path} holds neither a Service nor an EndpointSlice: nothing else changes what is served")]
    Empty { path: String },
    /// All of an object is refused. A plan of it would be a plan of its end.
    #[error("{0}")]
    Refused(Refusal),
}

/// How fields are completed that a manifest does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// An object is what its manifest says.
    File,
    /// An API server keeps what it has allocated before: cluster IPs, node ports, addresses of load balancers. A new Service is created now, in seconds
    /// since the epoch.
    Api { now_s: i64 },
}

/// The objects of one or more manifests.
#[derive(Debug, Default)]
pub struct ObjectChange {
    services: BTreeMap<ObjectName, lean::Service>,
    slices: BTreeMap<ObjectName, lean::EndpointSlice>,
    /// Objects of other kinds, by kind and name.
    pub ignored: Vec<String>,
}

/// A snapshot with a change in it.
#[derive(Debug)]
pub struct Changed {
    pub snapshot: Snapshot,
    /// Parts of the objects that would not be served.
    pub refusals: Vec<Refusal>,
}

impl ObjectChange {
    /// Reads all documents of `text`; `path` is named in errors. All of it must be good.
    pub fn parse(path: &str, text: &str) -> Result<Self, ChangeError> {
        let parsed = manifest::parse(path, text).map_err(|ManifestError { path, line, column, reason }| {
            ChangeError::Manifest { path, line, column, reason }
        })?;
        let mut change = Self::default();
        for object in parsed {
            let identity = object.identity();
            let is_new = match (object, identity.clone().map(|(_, name)| name)) {
                (Object::Service(service), Some(name)) => change.services.insert(name, *service).is_none(),
                (Object::Slice(slice), Some(name)) => change.slices.insert(name, *slice).is_none(),
                (Object::Node(_), Some(name)) => {
                    change.ignored.push(format!("Node {}", name.name));
                    true
                }
                (Object::Other(what), _) => {
                    change.ignored.push(what);
                    true
                }
                (_, None) => true,
            };
            if let Some((kind, name)) = identity.filter(|_| !is_new) {
                return Err(ChangeError::Twice { kind, name });
            }
        }
        if change.services.is_empty() && change.slices.is_empty() {
            return Err(ChangeError::Empty { path: path.to_owned() });
        }
        Ok(change)
    }

    /// The snapshot with these objects in place of those of their names.
    pub fn over(&self, present: &Snapshot, allowed: &AllowedAnnotations, rules: Rules) -> Result<Changed, ChangeError> {
        let mut snapshot = present.clone();
        let mut refusals = Vec::new();
        for (name, service) in &self.services {
            let before = present.services.get(name).map(AsRef::as_ref);
            let shared = objects::service(&completed(service, before, rules), allowed);
            let mut object = (*whole(shared, &mut refusals)?).clone();
            if let Rules::Api { now_s } = rules {
                keep_allocated(&mut object, service, before, now_s);
            }
            snapshot.services.insert(name.clone(), Arc::new(object));
        }
        let is_replaced = |name: &ObjectName| self.slices.contains_key(name);
        for (key, _) in present.slices.iter().filter(|(_, slice)| is_replaced(&slice.name)) {
            snapshot.slices.remove(key);
        }
        for slice in self.slices.values() {
            let converted = convert::slice(slice);
            // A slice of a headless service leads to no frontend.
            if converted.object.is_none() && converted.refusals.is_empty() {
                continue;
            }
            let slice = whole(converted.into(), &mut refusals)?;
            snapshot.slices.insert(slice.key(), slice);
        }
        snapshot.unread = Arc::new(self.still_unread(present));
        Ok(Changed { snapshot, refusals })
    }

    fn still_unread(&self, present: &Snapshot) -> BTreeSet<lb_model::Unread> {
        let is_read = |what: &UnreadKind| match what {
            UnreadKind::Service(name) => self.services.contains_key(name),
            UnreadKind::Slice { name, .. } => self.slices.contains_key(name),
            UnreadKind::Unknown(_) => false,
        };
        present.unread.iter().filter(|unread| !is_read(&unread.what)).cloned().collect()
    }
}

fn whole<T>(shared: Shared<T>, refusals: &mut Vec<Refusal>) -> Result<Arc<T>, ChangeError> {
    let Shared { object, refusals: own } = shared;
    match (object, own.first()) {
        (Some(object), _) => {
            refusals.extend(own);
            Ok(object)
        }
        (None, first) => {
            let unsaid = || Refusal::new("an object", "it cannot be served", "correct it");
            // The last refusal says why nothing of the object is served.
            Err(ChangeError::Refused(own.last().or(first).cloned().unwrap_or_else(unsaid)))
        }
    }
}

/// The manifest with what the API server would keep where nothing is given.
fn completed(service: &lean::Service, before: Option<&Service>, rules: Rules) -> lean::Service {
    let mut service = service.clone();
    let spec = &mut service.spec;
    let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
    let Some(before) = before
        .filter(|before| rules != Rules::File && before.exposure == Exposure::Addresses && type_ != "ExternalName")
    else {
        return service;
    };
    let first = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty());
    let is_same = first.is_none_or(|ip| before.cluster_ips.first().is_some_and(|known| ip.parse() == Ok(*known)));
    if is_same && spec.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
        spec.cluster_ips = Some(before.cluster_ips.iter().map(ToString::to_string).collect());
    }
    if matches!(type_, "NodePort" | "LoadBalancer") {
        for port in spec.ports.iter_mut().flatten().filter(|port| port.node_port.is_none_or(|number| number == 0)) {
            let known = before.ports.iter().find(|known| is_port(port, known));
            port.node_port = known.and_then(|known| known.node_port).map(i32::from);
        }
    }
    if spec.health_check_node_port.is_none_or(|port| port == 0) {
        spec.health_check_node_port = before.health_check_node_port.map(i32::from);
    }
    service
}

fn is_port(listed: &lean::ServicePort, known: &ServicePort) -> bool {
    let protocol = match listed.protocol.as_deref() {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    listed.port == Some(i32::from(known.port)) && protocol == known.protocol
}

/// What no manifest sets: the age of a Service, and the addresses that its load balancer has.
fn keep_allocated(object: &mut Service, read: &lean::Service, before: Option<&Service>, now_s: i64) {
    object.created_s = before.map_or(Some(now_s), |before| before.created_s);
    let is_balanced = read.spec.type_.as_deref() == Some("LoadBalancer");
    if let Some(before) = before.filter(|_| is_balanced && read.status.load_balancer.is_none()) {
        object.load_balancer_ips.clone_from(&before.load_balancer_ips);
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
