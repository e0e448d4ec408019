//! The truth as plain data: services and slices, with no Kubernetes types and no clock.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod accepted;
mod annotations;
mod node;
mod options;
mod protocol;
mod refusal;
mod refused;
mod service;
mod slice;
mod slot_shares;
mod texts;
mod time;
mod unread;
pub mod values;

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use imbl::OrdMap;
use ipnet::IpNet;

pub use accepted::{Accepted, Mark, Marks as ObjectMarks, hash};
pub use annotations::{AllowedAnnotations, Annotation, Namespaces};
pub use lb_common::family::Family;
pub use node::{Node, Peer, ServiceCidr};
pub use options::{
    Check, CheckMethod, MAGLEV_SIZES, Mode, RateLimit, Scheduler, ServiceOptions, UnknownMode, UnknownScheduler,
    WEIGHT_MAX, Weighed,
};
pub use protocol::Protocol;
pub use refusal::{Refusal, Refusals};
pub use refused::{NAMED_MAX, Refused, fair_share};
pub use service::{Exposure, PortKey, Service, ServicePort, TrafficPolicy};
pub use slice::{Endpoint, Hints, RefusedEndpoints, Slice, SliceKey, SlicePort, uid_hash};
pub use slot_shares::SlotShares;
pub use texts::shared;
pub use time::Monotonic;
pub use unread::{Unread, UnreadKind};
pub use values::{NodePortAddresses, ValueError, named::NamedError};

/// Namespace and name of an object. A copy shares the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Stands for all objects whose names cannot be read.
    pub fn unreadable() -> Self {
        Self::new("", "")
    }

    pub fn is_unreadable(&self) -> bool {
        self.name.is_empty()
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unreadable() {
            return f.write_str("(no name)");
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything that a source knows at one moment. There is one only when services *and* slices have been listed.
///
/// The maps share what two snapshots have in common: a copy costs nothing, and [`OrdMap::diff`] costs what changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Counts the snapshots of this source, from 1.
    pub revision: u64,
    pub services: OrdMap<ObjectName, Arc<Service>>,
    pub slices: OrdMap<SliceKey, Arc<Slice>>,
    /// This node; `None`: not known (a file without it, or the API has not said yet).
    pub node: Option<Arc<Node>>,
    /// Addresses of the other nodes, as far as anybody asks for them; `None`: not known yet.
    pub peers: Option<Arc<BTreeSet<IpAddr>>>,
    /// Service CIDRs that the source names; `None`: not known yet.
    pub service_cidrs: Option<Arc<BTreeSet<IpNet>>>,
    /// What cannot be read, and is not in this snapshot in any state: what the tables hold of it at a start stays.
    pub unread: Arc<BTreeSet<Unread>>,
    /// The states of the objects that it is made of; empty for a file.
    pub accepted: Accepted,
}

/// Nothing, no service CIDR among it, and nobody asks for other nodes.
impl Default for Snapshot {
    fn default() -> Self {
        Self {
            revision: 0,
            services: OrdMap::new(),
            slices: OrdMap::new(),
            node: None,
            peers: Some(Arc::default()),
            service_cidrs: Some(Arc::default()),
            unread: Arc::default(),
            accepted: Accepted::default(),
        }
    }
}
