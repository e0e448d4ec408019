//! Which endpoints a service port has, and which of them take new flows.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use super::Set;
use crate::model::{Endpoint, Family, ServicePort, Slice};

/// What the API says of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// Also one that terminates, if its service publishes addresses that are not ready.
    Ready,
    NotReady,
    Terminating,
}

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "four answers that do not depend on each other")]
pub struct DesiredEndpoint {
    pub state: EndpointState,
    /// It takes new flows of the cluster set.
    pub in_cluster_set: bool,
    /// It takes new flows of this node's set.
    pub in_local_set: bool,
    /// It is on this node.
    pub local: bool,
    pub serving: bool,
    /// 0: no UID known.
    pub uid_hash: u32,
}

impl DesiredEndpoint {
    /// It takes new flows of this set.
    pub fn is_in(&self, set: Set) -> bool {
        match set {
            Set::Cluster => self.in_cluster_set,
            Set::Local => self.in_local_set,
        }
    }
}

/// The endpoints of `port` in the slices of its service, of the given families.
pub fn of_port(
    slices: &[&Slice],
    port: &ServicePort,
    families: &BTreeSet<Family>,
    node_name: Option<&str>,
) -> BTreeMap<SocketAddr, DesiredEndpoint> {
    let mut endpoints = BTreeMap::new();
    for slice in slices.iter().filter(|slice| families.contains(&slice.family)) {
        let matching = slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
        for (listed, at) in matching.flat_map(|p| slice.endpoints.iter().map(move |endpoint| (endpoint, p.port))) {
            let address = SocketAddr::new(listed.address, at);
            let found = read(listed, node_name);
            // One that is in several slices: the local one counts, then the best, whatever the order of the slices.
            endpoints
                .entry(address)
                .and_modify(|held| {
                    if precedence(found) < precedence(*held) {
                        *held = found;
                    }
                })
                .or_insert(found);
        }
    }
    for family in families {
        select(&mut endpoints, *family);
    }
    endpoints
}

fn read(listed: &Endpoint, node_name: Option<&str>) -> DesiredEndpoint {
    let state = match (listed.ready, listed.terminating) {
        (true, _) => EndpointState::Ready,
        (false, true) => EndpointState::Terminating,
        (false, false) => EndpointState::NotReady,
    };
    DesiredEndpoint {
        state,
        in_cluster_set: false,
        in_local_set: false,
        local: node_name.is_some() && listed.node.as_deref() == node_name,
        serving: listed.serving,
        uid_hash: listed.uid_hash,
    }
}

fn precedence(endpoint: DesiredEndpoint) -> (Reverse<bool>, EndpointState, Reverse<bool>, Reverse<u32>) {
    (Reverse(endpoint.local), endpoint.state, Reverse(endpoint.serving), Reverse(endpoint.uid_hash))
}

/// All that are ready; if none is, all that terminate but still serve (KEP-1669).
fn select(endpoints: &mut BTreeMap<SocketAddr, DesiredEndpoint>, family: Family) {
    let of_family = |address: &SocketAddr| Family::of(address.ip()) == family;
    let ready = |endpoint: &DesiredEndpoint| endpoint.state == EndpointState::Ready;
    let fallback = |endpoint: &DesiredEndpoint| endpoint.state == EndpointState::Terminating && endpoint.serving;
    let any_ready = endpoints.iter().any(|(address, endpoint)| of_family(address) && ready(endpoint));
    for (_, endpoint) in endpoints.iter_mut().filter(|(address, _)| of_family(address)) {
        endpoint.in_cluster_set = if any_ready { ready(endpoint) } else { fallback(endpoint) };
    }
}
