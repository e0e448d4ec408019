//! The objects that a source holds at the moment, already converted, and what was refused of them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};

use super::convert::{self, Converted};
use crate::model::{ObjectName, Refusal, Service, Slice, Snapshot};

/// All objects of one kind.
#[derive(Debug)]
pub struct Objects<T> {
    held: BTreeMap<ObjectName, Arc<T>>,
    refusals: BTreeMap<ObjectName, Vec<Refusal>>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), refusals: BTreeMap::new() }
    }
}

impl<T> Objects<T> {
    fn put(&mut self, name: ObjectName, converted: Converted<T>) {
        self.remove(&name);
        if let Some(object) = converted.object {
            self.held.insert(name.clone(), Arc::new(object));
        }
        if !converted.refusals.is_empty() {
            self.refusals.insert(name, converted.refusals);
        }
    }

    pub fn remove(&mut self, name: &ObjectName) {
        self.held.remove(name);
        self.refusals.remove(name);
    }

    /// Keeps only what has a name for which `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(&ObjectName) -> bool) {
        self.held.retain(|name, _| keep(name));
        self.refusals.retain(|name, _| keep(name));
    }

    pub fn contains(&self, name: &ObjectName) -> bool {
        self.held.contains_key(name) || self.refusals.contains_key(name)
    }
}

impl Objects<Service> {
    pub fn put_service(&mut self, service: &core::Service) {
        self.put(convert::object_name(&service.metadata), convert::service(service));
    }
}

impl Objects<Slice> {
    pub fn put_slice(&mut self, slice: &discovery::EndpointSlice) {
        self.put(convert::object_name(&slice.metadata), convert::slice(slice));
    }
}

/// A snapshot of both kinds.
pub fn snapshot(services: &Objects<Service>, slices: &Objects<Slice>, revision: u64) -> Snapshot {
    Snapshot { revision, services: services.held.clone(), slices: slices.held.clone() }
}

/// Everything that is refused, by name.
pub fn refusals(services: &Objects<Service>, slices: &Objects<Slice>) -> Vec<Refusal> {
    services.refusals.values().chain(slices.refusals.values()).flatten().cloned().collect()
}
