//! Health-check node ports: the service of each, and the number of endpoints that it reports.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{Frontend, claim::service_claim, claims::Claimed, endpoints::Listed, node_context::NodeContext};
use lb_model::{Endpoint, Family, Protocol, Refusal, Service, Slice};

/// Why the service does not get its health-check node port. Clients of this port must reach the agent: a frontend would take the packets,
/// and what the node itself listens on stays the node's.
pub(super) fn refused(service: &Service, port: u16, claimed: &Claimed, context: &NodeContext) -> Option<Refusal> {
    let frontend = |address: &IpAddr| Frontend { address: *address, port, protocol: Protocol::Tcp };
    let taker = context.addresses.iter().find_map(|address| claimed.owner(&frontend(address)));
    let older = claimed.health.first(&port).filter(|first| **first != service_claim(service));
    let why = if context.listens(port, Protocol::Tcp) {
        "is in use by the node itself (API server, kubelet or Ballast)".to_owned()
    } else if let Some(taker) = taker {
        format!("is a port of Service {} on this node", taker.service)
    } else {
        format!("belongs to Service {}, which is older", older?.1)
    };
    Some(Refusal::new(
        format!("Service {}", service.name),
        format!("healthCheckNodePort {port} {why}"),
        "give one of them another port",
    ))
}

/// How many endpoints of a service are on this node and ready. Distinct addresses count, of the family that has more of them, so that a pod of both
/// families counts once. Only families of its cluster IPs count, since it serves no other.
pub(super) fn local_ready(service: &Service, listed: &Listed<'_>, context: &NodeContext) -> usize {
    let is_served = |family| service.cluster_ips.iter().any(|ip| Family::of(*ip) == family);
    let slices = listed.slices().iter().filter(|slice| !slice.ports.is_empty() && is_served(slice.family));
    // One that is in maintenance by all of its ports takes no new flows: load balancers are not to count on it.
    let is_open = |slice: &Slice, endpoint: &Endpoint| {
        slice.ports.iter().any(|port| !context.marks.maintains(SocketAddr::new(endpoint.address, port.port)))
    };
    let here = slices.flat_map(|slice| {
        let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready && context.is_here(endpoint));
        ready.filter(|endpoint| is_open(slice, endpoint))
    });
    let addresses: BTreeSet<IpAddr> = here.map(|endpoint| endpoint.address).collect();
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    v4.max(addresses.len() - v4)
}
