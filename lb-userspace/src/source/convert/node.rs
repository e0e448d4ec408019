//! A Node, and another one, read and checked.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::{Converted, Problem, address, network};
use crate::model::{Node, Peer};

/// Label of a Node: the zone that topology hints speak of.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Taint of a Node that the cluster autoscaler is about to delete (kube-proxy's health check fails on it, too).
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// So many addresses of another node are believed: each takes a place in a table that all nodes share, and nodes say themselves what
/// theirs are.
pub const PEER_ADDRESSES_MAX: usize = 8;

/// A Node. It is never refused as a whole: what can be read of it counts.
pub fn node(node: &core::Node) -> Converted<Node> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut refusals = Vec::new();
    let mut refuse = |problem: Problem| refusals.push(problem.refuse(format!("Node {name}")));
    let addresses = addresses(node, &["InternalIP"], &mut refuse);
    let pod_cidrs = pod_cidrs(node, &mut refuse);
    let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_tainted = taints.into_iter().flatten().any(|taint| taint.key == LEAVING_TAINT);
    let object = Node {
        zone: zone.filter(|zone| !zone.is_empty()).cloned(),
        addresses,
        pod_cidrs,
        is_leaving: is_tainted || node.metadata.deletion_timestamp.is_some(),
        name: name.clone(),
    };
    Converted { object: Some(object), refusals }
}

/// Another node; never refused as a whole, either.
pub fn peer(node: &core::Node) -> Converted<Peer> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut refusals = Vec::new();
    let mut refuse = |problem: Problem| refusals.push(problem.refuse(format!("Node {name}")));
    let mut addresses = addresses(node, &["InternalIP", "ExternalIP"], &mut refuse);
    if addresses.len() > PEER_ADDRESSES_MAX {
        let reason =
            format!("{} addresses: expected at most {PEER_ADDRESSES_MAX}; the first ones count", addresses.len());
        refuse(Problem::new(reason, "let the node report fewer"));
        addresses.truncate(PEER_ADDRESSES_MAX);
    }
    Converted { object: Some(Peer { name: name.clone(), addresses }), refusals }
}

fn addresses(node: &core::Node, types: &[&str], refuse: &mut impl FnMut(Problem)) -> Vec<IpAddr> {
    let listed = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let asked = listed.into_iter().flatten().filter(|listed| types.contains(&listed.type_.as_str()));
    asked.filter_map(|listed| address(&listed.type_, &listed.address).map_err(&mut *refuse).ok()).collect()
}

fn pod_cidrs(node: &core::Node, refuse: &mut impl FnMut(Problem)) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty());
    let texts = all.map_or_else(|| spec.pod_cidr.as_slice(), Vec::as_slice);
    texts.iter().filter_map(|text| network("podCIDR", text).map_err(&mut *refuse).ok()).collect()
}
