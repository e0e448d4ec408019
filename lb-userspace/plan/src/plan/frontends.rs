//! The frontends that a service claims, and how each of them is used.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use lb_common::abi::service_flags;

use super::{Frontend, FrontendKind, Set, Use, claim::Claim, mode, node_context::NodeContext};
use lb_model::{Exposure, Family, Protocol, Refusal, Service, ServicePort, TrafficPolicy};

/// True if the service is for this proxy to serve.
pub(super) fn is_ours(service: &Service, context: &NodeContext) -> bool {
    service.exposure == Exposure::Addresses && service.proxy_name == context.proxy_name
}

/// Everything that a service claims.
pub(super) fn claims(service: &Service, context: &NodeContext) -> Vec<(Frontend, Claim)> {
    let addresses = addresses(service, context);
    let mut all = Vec::with_capacity(service.ports.len() * addresses.len());
    for port in &service.ports {
        for (frontend, kind) in of_port(service, port, &addresses, context) {
            if kind == FrontendKind::ClusterIp || !context.is_reserved(&frontend) {
                all.push((frontend, Claim::new(service, &frontend, kind, port.port)));
            }
        }
    }
    all
}

/// What of a service's frontends is not even claimed.
pub(super) fn unclaimed(service: &Service, context: &NodeContext) -> Vec<Refusal> {
    let object = || format!("Service {}", service.name);
    let mut refusals = Vec::new();
    if !service.external_ips.is_empty() && !context.external_ips {
        refusals.push(Refusal::new(
            object(),
            "its external IPs are not served: --external-ips is off",
            "turn it on, if everybody who may write Services may take any address (CVE-2020-8554)",
        ));
    }
    let external = service.external_ips.iter().filter(|_| context.external_ips);
    for address in external.chain(&service.load_balancer_ips).filter(|address| !has_family(service, **address)) {
        refusals.push(Refusal::new(
            object(),
            format!("{address} is not served: the service has no cluster IP of this family"),
            "make the service dual-stack (spec.ipFamilyPolicy)",
        ));
    }
    let has_node_port = service.ports.iter().any(|port| port.node_port.is_some());
    let node_ports_served = context.node_port_addresses.iter().any(|address| has_family(service, *address));
    if has_node_port && !node_ports_served {
        refusals.push(Refusal::new(
            object(),
            "its node ports are served on no address: this node has none that --nodeport-addresses admits",
            "correct --nodeport-addresses, or give the node such an address",
        ));
    } else if has_node_port {
        let lacks = |family: &Family| context.addresses.iter().all(|address| Family::of(*address) != *family);
        for family in Family::ALL.into_iter().filter(|family| serves(service, *family)).filter(lacks) {
            refusals.push(Refusal::new(
                object(),
                format!("its node ports are served on no {family} address: this node has none"),
                format!("give the node an {family} address, or make the service single-stack (spec.ipFamilyPolicy)"),
            ));
        }
    }
    let addresses = addresses(service, context);
    let claimed = service.ports.iter().flat_map(|port| of_port(service, port, &addresses, context));
    for (frontend, _) in claimed.filter(|(f, kind)| {
        !matches!(kind, FrontendKind::ClusterIp | FrontendKind::HostSocket) && context.is_reserved(f)
    }) {
        refusals.push(Refusal::new(
            object(),
            format!("{frontend} is in use by the node itself (API server, kubelet or Ballast)"),
            "use another port or address",
        ));
    }
    refusals
}

fn has_family(service: &Service, address: IpAddr) -> bool {
    serves(service, Family::of(address))
}

fn serves(service: &Service, family: Family) -> bool {
    service.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
}

/// The addresses that a service is published at, beside its cluster IPs.
pub(super) fn published(service: &Service, context: &NodeContext) -> impl Iterator<Item = IpAddr> {
    let external = service.external_ips.iter().filter(|_| context.external_ips);
    let published = service.load_balancer_ips.iter().chain(external).copied();
    published.filter(|ip| has_family(service, *ip)).collect::<Vec<_>>().into_iter()
}

/// The addresses that every port of a service is reached by. Where one is of several kinds, the first of them counts.
fn addresses(service: &Service, context: &NodeContext) -> BTreeMap<IpAddr, FrontendKind> {
    let served = service.cluster_ips.iter().filter(|ip| !context.local_cluster_ips.contains(ip));
    let cluster = served.map(|ip| (*ip, FrontendKind::ClusterIp));
    let balanced = service.load_balancer_ips.iter().map(|ip| (*ip, FrontendKind::LoadBalancer));
    let external =
        service.external_ips.iter().filter(|_| context.external_ips).map(|ip| (*ip, FrontendKind::ExternalIp));
    let mut addresses = BTreeMap::new();
    for (address, kind) in cluster.chain(balanced).chain(external).filter(|(ip, _)| has_family(service, *ip)) {
        addresses.entry(address).or_insert(kind);
    }
    addresses
}

fn of_port<'a>(
    service: &Service,
    port: &'a ServicePort,
    addresses: &'a BTreeMap<IpAddr, FrontendKind>,
    context: &'a NodeContext,
) -> impl Iterator<Item = (Frontend, FrontendKind)> + 'a {
    let protocol = port.protocol;
    let own = addresses.iter().map(move |(ip, kind)| (Frontend { address: *ip, port: port.port, protocol }, *kind));
    let families: BTreeSet<Family> = service.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let wanted = families.clone();
    let on_nodes = port.node_port.into_iter().flat_map(move |node_port| {
        let (families, of_hosts) = (wanted.clone(), wanted.clone());
        let served = context.node_port_addresses.iter().filter(move |ip| families.contains(&Family::of(**ip)));
        // A frontend that another kind has is claimed already.
        let new = served.filter(move |ip| node_port != port.port || !addresses.contains_key(ip));
        let new = new.map(move |ip| (Frontend { address: *ip, port: node_port, protocol }, FrontendKind::NodePort));
        // The hook knows no protocol but these.
        let by_socket = context.host_sockets.iter().filter(move |ip| {
            matches!(protocol, Protocol::Tcp | Protocol::Udp) && of_hosts.contains(&Family::of(**ip))
        });
        new.chain(
            by_socket.map(move |ip| (Frontend { address: *ip, port: node_port, protocol }, FrontendKind::HostSocket)),
        )
    });
    let is_named = mode::is_named_elsewhere(service, protocol, context);
    let anywhere = if is_named { mode::anywhere(port, &families, context) } else { Vec::new() };
    own.chain(on_nodes).chain(anywhere.into_iter().map(|frontend| (frontend, FrontendKind::HostSocket)))
}

/// The sets that a frontend of this kind uses, and the flags that do not depend on endpoints.
pub(super) fn use_of(service: &Service, kind: FrontendKind) -> Use {
    let set = |policy| if policy == TrafficPolicy::Local { Set::Local } else { Set::Cluster };
    if kind == FrontendKind::ClusterIp {
        let set = set(service.internal_policy);
        let flags = if set == Set::Local { service_flags::INSIDE_LOCAL } else { 0 };
        return Use { kind, inside: set, outside: set, flags };
    }
    let outside = set(service.external_policy);
    let flags = if outside == Set::Local { service_flags::OUTSIDE_LOCAL } else { 0 };
    // Pods and processes of the cluster reach every endpoint, whatever the policy for those outside.
    Use { kind, inside: Set::Cluster, outside, flags }
}

/// Who may pass the guarded frontends of a service.
pub(super) struct Guard<'a> {
    ranges: Option<&'a [IpNet]>,
    node_allowed: [bool; 2],
}

impl<'a> Guard<'a> {
    pub fn of(service: &'a Service, context: &NodeContext) -> Self {
        let ranges = service.source_ranges.as_deref();
        let admits = |ip: &IpAddr| ranges.into_iter().flatten().any(|range| range.contains(ip));
        let allowed = |family| context.addresses.iter().any(|ip| Family::of(*ip) == family && admits(ip));
        let node_allowed = if ranges.is_some() { Family::ALL.map(allowed) } else { [false; 2] };
        Self { ranges, node_allowed }
    }

    /// The flags of a frontend; load balancers and external IPs are guarded.
    pub fn flags(&self, kind: FrontendKind, family: Family) -> u8 {
        match kind {
            FrontendKind::LoadBalancer | FrontendKind::ExternalIp if self.ranges.is_some() => {
                let node_allowed = self.node_allowed[usize::from(family == Family::V6)];
                service_flags::SOURCE_RANGES | if node_allowed { service_flags::NODE_ALLOWED } else { 0 }
            }
            FrontendKind::LoadBalancer
            | FrontendKind::ExternalIp
            | FrontendKind::ClusterIp
            | FrontendKind::NodePort
            | FrontendKind::HostSocket => 0,
        }
    }

    /// The ranges of a family.
    pub fn ranges(&self, family: Family) -> impl Iterator<Item = IpNet> {
        let all = self.ranges.into_iter().flatten();
        all.filter(move |range| Family::of(range.addr()) == family).map(IpNet::trunc)
    }
}
