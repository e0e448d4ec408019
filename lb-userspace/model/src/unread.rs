//! Objects that a source cannot read, and of which it knows nothing else.

use std::fmt;

use super::ObjectName;

/// An object, or a file, that cannot be read, and of which nothing that was read before is known. What the tables hold of its service
/// stays until it can be read or is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unread {
    pub what: UnreadKind,
    /// [`crate::uid_hash`] of the object; 0: not known. Another object of the same name is another one.
    pub uid: u32,
}

/// What cannot be read, and so which services may depend on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreadKind {
    Service(ObjectName),
    /// A slice, and the service that its label names.
    Slice {
        name: ObjectName,
        service: ObjectName,
    },
    /// It does not say which services it is about, so it may be any: a file by its path, or a slice whose labels cannot be read.
    Unknown(String),
}

impl Unread {
    /// Whether the endpoints of this service may be incomplete.
    pub fn may_list_endpoints_of(&self, name: &ObjectName) -> bool {
        match &self.what {
            UnreadKind::Service(_) => false,
            UnreadKind::Slice { service, .. } => service == name,
            UnreadKind::Unknown(_) => true,
        }
    }

    /// Whether this service may exist though no snapshot names it.
    pub fn may_be_service(&self, name: &ObjectName) -> bool {
        match &self.what {
            UnreadKind::Service(service) => service == name,
            UnreadKind::Slice { .. } => false,
            UnreadKind::Unknown(_) => true,
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            UnreadKind::Service(name) => write!(f, "Service {name}"),
            UnreadKind::Slice { name, .. } => write!(f, "EndpointSlice {name}"),
            UnreadKind::Unknown(what) => f.write_str(what),
        }
    }
}
