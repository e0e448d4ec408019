//! A Node, and another one, read and checked.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::{Converted, Problem, address, network};
use crate::lean::{self, ZONE_LABEL};
use lb_model::{Family, Node, Peer, Refusals};

/// Taint of a Node that the cluster autoscaler is about to delete (kube-proxy's health check fails on it, too).
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// So many addresses of another node are believed: each takes a place in a table that all nodes share, and nodes say themselves what
/// theirs are.
pub const PEER_ADDRESSES_MAX: usize = 8;

/// A Node. It is never refused as a whole: what can be read of it counts.
pub fn node(node: &lean::Node) -> Converted<Node> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut refusals = Refusals::default();
    let object = format!("Node {name}");
    let mut refuse = |problem: Problem| refusals.push(problem.refuse(object.clone()));
    let addresses = own_addresses(node, &mut refuse);
    let pod_cidrs = pod_cidrs(node, &mut refuse);
    let zone = node.metadata.labels.get(ZONE_LABEL);
    let is_tainted = node.spec.taints.iter().flatten().any(|taint| taint.key.as_deref() == Some(LEAVING_TAINT));
    let read = Node {
        zone: zone.filter(|zone| !zone.is_empty()).cloned(),
        addresses,
        pod_cidrs,
        is_leaving: is_tainted || node.metadata.deletion_timestamp.is_some(),
        name: name.clone(),
    };
    Converted { object: Some(read), refusals: refusals.all(&object) }
}

/// Another node; never refused as a whole, either.
pub fn peer(node: &lean::Node) -> Converted<Peer> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut refusals = Refusals::default();
    let object = format!("Node {name}");
    let mut refuse = |problem: Problem| refusals.push(problem.refuse(object.clone()));
    let mut addresses = addresses(node, &["InternalIP", "ExternalIP"], &mut refuse);
    if addresses.len() > PEER_ADDRESSES_MAX {
        let reason =
            format!("{} addresses: expected at most {PEER_ADDRESSES_MAX}; the first ones count", addresses.len());
        refuse(Problem::new(reason, "let the node report fewer"));
        addresses.truncate(PEER_ADDRESSES_MAX);
    }
    Converted { object: Some(Peer { name: name.clone(), addresses }), refusals: refusals.all(&object) }
}

/// The internal addresses, and the external ones of a family without these, as `GetNodeHostIPs` of `k8s.io/component-helpers` has them.
fn own_addresses(node: &lean::Node, refuse: &mut impl FnMut(Problem)) -> Vec<IpAddr> {
    let mut own = addresses(node, &["InternalIP"], refuse);
    let families: BTreeSet<Family> = own.iter().copied().map(Family::of).collect();
    let external = addresses(node, &["ExternalIP"], refuse);
    own.extend(external.into_iter().filter(|address| !families.contains(&Family::of(*address))));
    own
}

fn addresses(node: &lean::Node, types: &[&str], refuse: &mut impl FnMut(Problem)) -> Vec<IpAddr> {
    let listed = node.status.addresses.iter().flatten();
    let texts = listed.map(|listed| (listed.type_.as_deref().unwrap_or_default(), listed.address.as_deref()));
    let asked = texts.filter(|(kind, _)| types.contains(kind));
    asked.filter_map(|(kind, text)| address(kind, text.unwrap_or_default()).map_err(&mut *refuse).ok()).collect()
}

fn pod_cidrs(node: &lean::Node, refuse: &mut impl FnMut(Problem)) -> Vec<IpNet> {
    let spec = &node.spec;
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty());
    let texts = all.map_or_else(|| spec.pod_cidr.as_slice(), Vec::as_slice);
    texts.iter().filter_map(|text| network("podCIDR", text).map_err(&mut *refuse).ok()).collect()
}
