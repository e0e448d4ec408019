//! The truth as plain data: services and slices, with no Kubernetes types and no clock.

mod refusal;
mod service;
mod slice;
mod time;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub use refusal::Refusal;
pub use service::{Exposure, Family, Protocol, Service, ServicePort};
pub use slice::{Endpoint, Slice, SlicePort, uid_hash};
pub use time::Monotonic;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

impl ObjectName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything that a source knows at one moment. There is one only when services *and* slices have been listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Counts the snapshots of this source, from 1.
    pub revision: u64,
    pub services: BTreeMap<ObjectName, Arc<Service>>,
    pub slices: BTreeMap<ObjectName, Arc<Slice>>,
}
