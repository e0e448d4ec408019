//! How a Service is reached from outside: external IPs, addresses of load balancers, policies, source ranges.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Problem, address, network, number};
use crate::lean;
use lb_model::{Refusals, Service, TrafficPolicy};

/// Reads the external side of a service into `read`. What is bad is refused by name, the rest is served.
pub(super) fn read(service: &lean::Service, object: &str, read: &mut Service, refusals: &mut Refusals) {
    let spec = &service.spec;
    let mut refuse = |problem: Problem| refusals.push(problem.refuse(object.to_owned()));
    let is_load_balancer = spec.type_.as_deref() == Some("LoadBalancer");
    read.internal_policy =
        policy("internalTrafficPolicy", spec.internal_traffic_policy.as_deref()).unwrap_or_else(|problem| {
            refuse(problem);
            TrafficPolicy::Cluster
        });
    read.external_policy =
        policy("externalTrafficPolicy", spec.external_traffic_policy.as_deref()).unwrap_or_else(|problem| {
            refuse(problem);
            TrafficPolicy::Cluster
        });
    let external = spec.external_ips.iter().flatten();
    read.external_ips = distinct(external.map(|text| address("externalIP", text)), &mut refuse);
    if is_load_balancer {
        let listed = service.status.load_balancer.as_ref().and_then(|status| status.ingress.as_ref());
        let ingress = listed.into_iter().flatten();
        read.load_balancer_ips = distinct(ingress.filter_map(captured), &mut refuse);
    }
    read.source_ranges = source_ranges(spec, &mut refuse);
    let port = spec.health_check_node_port.filter(|port| *port != 0);
    if let Some(port) = port.filter(|_| is_load_balancer && read.external_policy == TrafficPolicy::Local) {
        read.health_check_node_port = number("healthCheckNodePort", port).map_err(refuse).ok();
    }
}

fn policy(field: &str, text: Option<&str>) -> Result<TrafficPolicy, Problem> {
    match text {
        None | Some("" | "Cluster") => Ok(TrafficPolicy::Cluster),
        Some("Local") => Ok(TrafficPolicy::Local),
        Some(other) => Err(Problem::new(
            format!("{field} {other:?}: expected Cluster or Local"),
            "correct the policy; the service is served as with Cluster",
        )),
    }
}

/// The address of an ingress that is captured: a load balancer of mode `Proxy` wants to see the packets itself (KEP-1860), one
/// known by its host name has no address.
fn captured(ingress: &lean::Ingress) -> Option<Result<IpAddr, Problem>> {
    let text = ingress.ip.as_deref().filter(|ip| !ip.is_empty())?;
    match ingress.ip_mode.as_deref() {
        None | Some("VIP") => Some(address("load balancer IP", text)),
        Some("Proxy") => None,
        Some(other) => Some(Err(Problem::new(
            format!("ipMode {other:?} of load balancer IP {text}: expected VIP or Proxy"),
            "correct the ipMode; this address is not served",
        ))),
    }
}

fn distinct(addresses: impl Iterator<Item = Result<IpAddr, Problem>>, refuse: &mut impl FnMut(Problem)) -> Vec<IpAddr> {
    let mut good: Vec<IpAddr> = addresses.filter_map(|read| read.map_err(&mut *refuse).ok()).collect();
    good.sort_unstable();
    good.dedup();
    good
}

/// Kubernetes tolerates white space around a range. One that is bad admits nobody. Ranges that each hold a whole family are how "open" is
/// written: they restrict nobody, in either family.
fn source_ranges(spec: &lean::ServiceSpec, refuse: &mut impl FnMut(Problem)) -> Option<Vec<IpNet>> {
    let listed = spec.load_balancer_source_ranges.as_ref().filter(|listed| !listed.is_empty())?;
    let read = |text: &String| network("loadBalancerSourceRange", text.trim()).map_err(&mut *refuse).ok();
    let mut good: Vec<IpNet> = listed.iter().filter_map(read).collect();
    let is_open = good.len() == listed.len() && good.iter().all(|range| range.prefix_len() == 0);
    good.sort_unstable();
    good.dedup();
    (!is_open).then_some(good)
}
