//! An endpoint slice: some of the endpoints of a service, and the ports that they all serve.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;

use super::{Family, ObjectName, Protocol};

/// Where a slice is kept: all slices of a service are next to each other in the order of these keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceKey {
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// Name of the slice.
    pub name: Arc<str>,
}

/// An `EndpointSlice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub name: ObjectName,
    /// Name of the Service, in the same namespace.
    pub service: Arc<str>,
    pub family: Family,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
    /// When the slice's change happened, by the wall clock of its writer: for a metric, never for a decision.
    pub changed_at: Option<Timestamp>,
    /// When the slice was made, in seconds since the epoch, for the order of age only; `None`: the source knows no time.
    pub created_s: Option<i64>,
    /// Its endpoints that were refused; `None`: none was.
    pub refused: Option<Box<RefusedEndpoints>>,
}

/// Endpoints of a slice that were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEndpoints {
    pub count: usize,
    /// Why the first one was.
    pub reason: String,
}

impl Slice {
    pub fn key(&self) -> SliceKey {
        SliceKey { namespace: self.name.namespace.clone(), service: self.service.clone(), name: self.name.name.clone() }
    }
}

/// A port that every endpoint of the slice serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the service's port; empty: the one without a name.
    pub name: String,
    pub port: u16,
    pub protocol: Protocol,
}

/// One endpoint, its conditions already read by the rules for absent values: ready unless said otherwise, serving as ready,
/// not terminating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node: Option<Arc<str>>,
    /// `topology.kubernetes.io/zone` of its node.
    pub zone: Option<Arc<str>>,
    /// Where the endpoint is meant to be used; `None`: no hint at all.
    pub hints: Option<Box<Hints>>,
    /// [`uid_hash`] of the pod; 0: no UID known.
    pub uid_hash: u32,
}

impl Endpoint {
    pub fn hint_zones(&self) -> &[String] {
        self.hints.as_ref().map_or(&[], |hints| &hints.zones)
    }

    pub fn hint_nodes(&self) -> &[String] {
        self.hints.as_ref().map_or(&[], |hints| &hints.nodes)
    }
}

/// `hints.forZones` and `hints.forNodes`. Few endpoints have any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    pub zones: Vec<String>,
    pub nodes: Vec<String>,
}

impl Hints {
    /// `None`: there is neither.
    pub fn of(zones: Vec<String>, nodes: Vec<String>) -> Option<Box<Self>> {
        (!zones.is_empty() || !nodes.is_empty()).then(|| Box::new(Self { zones, nodes }))
    }
}

/// A stable 32-bit hash of a pod's UID (FNV-1a); never 0, which means that no UID is known.
pub fn uid_hash(uid: &str) -> u32 {
    let hash = uid.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is kept in pinned maps, so a new build must compute the same one.
    #[test]
    fn the_hash_of_a_uid_never_changes() {
        assert_eq!(uid_hash(""), 0x811c_9dc5);
        assert_eq!(uid_hash("a"), 0xe40c_292c);
        assert_eq!(uid_hash("foobar"), 0xbf9c_f968);
    }
}
