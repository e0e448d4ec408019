//! Direct server return: which service ports have it, and what follows for them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use lb_common::abi::service_flags;

use super::{DesiredService, Frontend, FrontendKind, Use, node_context::NodeContext};
use lb_model::{Family, MAGLEV_SIZES, Mode, PortKey, Protocol, Refusal, Scheduler, Service, ServicePort};

/// Slots of an endpoint in that table, at least: of a table that costs little, and of a larger one.
const SLOTS_EACH: u32 = 200;
const SLOTS_EACH_LARGE: u32 = 50;
const LARGE: u32 = 16_381;

fn mode(service: &Service, context: &NodeContext) -> Mode {
    service.options.as_ref().and_then(|options| options.mode).unwrap_or(context.mode)
}

/// Whether packets of external clients go whole to backends of other nodes.
pub(super) fn is_direct(service: &Service, protocol: Protocol, context: &NodeContext) -> bool {
    mode(service, context).is_direct(protocol)
}

/// Whether external clients can ask one of these at all.
pub(super) fn has_outside<'a>(mut kinds: impl Iterator<Item = &'a FrontendKind>) -> bool {
    kinds.any(|kind| *kind != FrontendKind::ClusterIp)
}

/// Whether other nodes may name a node port at their own addresses: where it has direct server return, and wherever others are known, as
/// they may be set otherwise.
pub(super) fn is_named_elsewhere(service: &Service, protocol: Protocol, context: &NodeContext) -> bool {
    context.knows_peers || is_direct(service, protocol, context)
}

/// The flags of a frontend of a port: for the packets that come by it, and at no address ([`anywhere`]) for those that other nodes send.
pub(super) fn flags(frontend: &Frontend, used: Use, is_direct: bool, context: &NodeContext) -> u8 {
    let is_whole = is_direct && narrow(Family::of(frontend.address), context).is_none();
    let is_named = frontend.address.is_unspecified() && (context.knows_peers || is_direct);
    if used.kind != FrontendKind::ClusterIp && (is_whole || is_named) { service_flags::DSR } else { 0 }
}

/// What a link must take: the least that every sender may count on (RFC 791, RFC 8200), in an outer header.
const fn least_mtu(family: Family) -> u32 {
    match family {
        Family::V4 => 576 + 20,
        Family::V6 => 1_280 + 40,
    }
}

/// What the node's widest link of the family takes, if that is too little.
fn narrow(family: Family, context: &NodeContext) -> Option<u32> {
    let [v4, v6] = context.mtu;
    let mtu = if family == Family::V4 { v4 } else { v6 };
    mtu.filter(|mtu| *mtu < least_mtu(family))
}

/// Families in which this node has no link for outer headers.
pub(super) fn too_narrow(
    service: &Service,
    ports: &[(PortKey, DesiredService)],
    context: &NodeContext,
) -> Vec<Refusal> {
    let is_asked = |family| {
        let direct = ports.iter().filter(|(key, _)| is_direct(service, key.protocol, context));
        let mut frontends = direct.flat_map(|(_, port)| &port.frontends);
        frontends.any(|(frontend, used)| used.kind != FrontendKind::ClusterIp && Family::of(frontend.address) == family)
    };
    let narrow = Family::ALL.into_iter().filter_map(|family| Some((family, narrow(family, context)?)));
    let refusal = |(family, mtu): (Family, u32)| {
        Refusal::new(
            format!("Service {}", service.name),
            format!(
                "no direct server return over {family}: no link takes more than {mtu} bytes, and an outer header asks for {}; an \
                 address of the node stands in for clients",
                least_mtu(family)
            ),
            "raise the MTU of the link between the nodes, or set the annotation ballast.dev/mode to snat",
        )
    };
    narrow.filter(|(family, _)| is_asked(*family)).map(refusal).collect()
}

/// A node port as other nodes name it, who were asked at an address of their own: at no address. Where the node's sockets are served
/// by one that is the same already.
pub(super) fn anywhere(port: &ServicePort, families: &BTreeSet<Family>, context: &NodeContext) -> Vec<Frontend> {
    let protocol = port.protocol;
    let every = families.iter().map(|family| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    });
    let new = every.filter(|address| protocol == Protocol::Sctp || !context.host_sockets.contains(address));
    new.zip(port.node_port.into_iter().cycle()).map(|(address, port)| Frontend { address, port, protocol }).collect()
}

/// Slots of the table that every node has: so many for each endpoint that another endpoint's removal moves hardly a flow. After it, the backend's
/// node alone knows the flows that come by another node.
pub(super) fn table_size<'a>(endpoints: &(impl Iterator<Item = &'a SocketAddr> + Clone)) -> u32 {
    let of = |family| endpoints.clone().filter(|address| Family::of(address.ip()) == family).count();
    let most = Family::ALL.map(of).into_iter().max().unwrap_or(0);
    let [.., largest] = MAGLEV_SIZES;
    let each = |size: u32| if size < LARGE { SLOTS_EACH } else { SLOTS_EACH_LARGE };
    MAGLEV_SIZES.into_iter().find(|size| most <= (size / each(*size)) as usize).unwrap_or(largest)
}

/// A scheduler that has no say: every node must find the same backend.
pub(super) fn unscheduled(
    service: &Service,
    ports: &[(PortKey, DesiredService)],
    context: &NodeContext,
) -> Option<Refusal> {
    let asked = service.options.as_ref()?.scheduler.filter(|scheduler| *scheduler != Scheduler::Maglev)?;
    let direct = ports.iter().any(|(key, port)| {
        is_direct(service, key.protocol, context) && has_outside(port.frontends.values().map(|used| &used.kind))
    });
    direct.then(|| {
        Refusal::new(
            format!("Service {}", service.name),
            format!(
                "its scheduler {asked} has no say: with direct server return every node must find the same backend"
            ),
            "set the annotation ballast.dev/mode to snat, or ballast.dev/scheduler to maglev",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Desired, NodeFacts, PlanSettings, plan};
    use lb_objects::manifest::snapshot;

    const DNS: &str = "
apiVersion: v1
kind: Service
metadata: {name: dns, annotations: {ballast.dev/scheduler: round-robin}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1]
  ports:
  - {name: tcp, port: 53, nodePort: 30053, protocol: TCP}
  - {name: udp, port: 53, nodePort: 30053, protocol: UDP}
status: {loadBalancer: {ingress: [{ip: 203.0.113.53}]}}
";

    fn planned(mode: Mode) -> Desired {
        planned_with(mode, [Some(1500); 2])
    }

    fn planned_with(mode: Mode, mtu: [Option<u32>; 2]) -> Desired {
        planned_of(DNS, mode, mtu)
    }

    fn planned_of(manifest: &str, mode: Mode, mtu: [Option<u32>; 2]) -> Desired {
        planned_as(manifest, mtu, &PlanSettings { mode, ..PlanSettings::default() })
    }

    fn planned_as(manifest: &str, mtu: [Option<u32>; 2], settings: &PlanSettings) -> Desired {
        let facts = NodeFacts { addresses: ["192.0.2.1".parse().unwrap()].into(), mtu, ..NodeFacts::default() };
        plan(&snapshot(manifest), &facts, settings)
    }

    #[test]
    fn a_link_too_narrow_for_outer_headers_is_named_and_the_service_is_served_all_the_same() {
        for (mtu, is_refused) in [([Some(595); 2], true), ([Some(596), None], false), ([None; 2], false)] {
            let desired = planned_with(Mode::Dsr, mtu);
            assert_eq!(desired.services.len(), 2);
            let uses = desired.services.values().flat_map(|service| service.frontends.values());
            // What other nodes send is opened all the same.
            let mut outside =
                uses.filter(|used| !matches!(used.kind, FrontendKind::ClusterIp | FrontendKind::HostSocket));
            assert!(outside.all(|used| (used.flags & service_flags::DSR == 0) == is_refused), "{mtu:?}");
            let refusals: Vec<String> = desired.refusals.iter().map(ToString::to_string).collect();
            let is_refused_by_name =
                refusals.iter().any(|refusal| refusal.contains("595 bytes") && refusal.contains("596"));
            assert_eq!(is_refused_by_name, is_refused, "{mtu:?}: {refusals:?}");
        }
    }

    /// Packets that a node with another mode encapsulates and sends here.
    #[test]
    fn other_nodes_name_a_node_port_wherever_they_are_known() {
        let sctp = DNS.replace("protocol: UDP", "protocol: SCTP");
        for (has_peers, mtu) in [(false, 1500), (true, 1500), (true, 500)] {
            let desired = planned_as(&sctp, [Some(mtu); 2], &PlanSettings { has_peers, ..PlanSettings::default() });
            let frontends = desired.services.values().flat_map(|service| &service.frontends);
            let flagged: Vec<String> = frontends
                .filter(|(_, used)| used.flags & service_flags::DSR != 0)
                .map(|(frontend, _)| frontend.to_string())
                .collect();
            let expected: &[&str] = if has_peers { &["0.0.0.0:30053/TCP", "0.0.0.0:30053/SCTP"] } else { &[] };
            assert_eq!(flagged, expected);
            assert!(desired.services.values().all(|service| service.scheduler != Scheduler::Maglev));
        }
    }

    #[test]
    fn nothing_changes_for_what_nobody_outside_can_ask() {
        let inside = DNS.replace("type: LoadBalancer", "type: ClusterIP").replace(", nodePort: 30053", "");
        let inside = inside.lines().filter(|line| !line.starts_with("status")).collect::<Vec<_>>().join("\n");
        let desired = planned_of(&inside, Mode::Dsr, [Some(1500); 2]);
        assert_eq!(desired.services.len(), 2);
        for service in desired.services.values() {
            assert_eq!((service.scheduler, service.maglev_size), (Scheduler::RoundRobin, None), "no large table");
        }
        assert!(desired.refusals.is_empty(), "{:?}", desired.refusals);
    }

    #[test]
    fn weights_have_a_say_where_maglev_is_the_scheduler_in_the_end() {
        let weighed = DNS.replace("ballast.dev/scheduler: round-robin", "ballast.dev/weights: '10.0.0.1=3'");
        for (mode, is_expected) in [(Mode::Snat, true), (Mode::Dsr, false)] {
            let refusals: Vec<String> =
                planned_of(&weighed, mode, [Some(1500); 2]).refusals.iter().map(ToString::to_string).collect();
            let is_refused_by_name = refusals.iter().any(|refusal| refusal.contains("its weights have no say"));
            assert_eq!(is_refused_by_name, is_expected, "{mode}: {refusals:?}");
        }
    }

    #[test]
    fn the_table_of_every_node_has_room_for_each_endpoint() {
        let of = |count: u8| {
            let at = |last| SocketAddr::new([10, 0, 0, last].into(), 80);
            let endpoints: Vec<SocketAddr> = (0..count).map(at).collect();
            table_size(&endpoints.iter())
        };
        assert_eq!([of(0), of(1), of(2), of(5), of(6), of(255)], [251, 251, 1_021, 1_021, 16_381, 16_381]);
    }

    #[test]
    fn what_goes_whole_is_found_by_maglev_and_a_node_port_at_any_nodes_address() {
        for (mode, direct) in
            [(Mode::Snat, &[][..]), (Mode::Hybrid, &[Protocol::Tcp]), (Mode::Dsr, &[Protocol::Tcp, Protocol::Udp])]
        {
            let desired = planned(mode);
            assert_eq!(desired.services.len(), 2);
            for (key, service) in &desired.services {
                let is_direct = direct.contains(&key.protocol);
                let wanted = if is_direct { Scheduler::Maglev } else { Scheduler::RoundRobin };
                assert_eq!(service.scheduler, wanted, "{mode} {key}");
                for (frontend, used) in &service.frontends {
                    let flagged = used.flags & service_flags::DSR != 0;
                    assert_eq!(flagged, is_direct && used.kind != FrontendKind::ClusterIp, "{mode} {frontend}");
                }
                let anywhere = service.frontends.keys().filter(|frontend| frontend.address.is_unspecified()).count();
                assert_eq!(anywhere, 1, "{mode} {key}: for the node's sockets, and for other nodes");
            }
            let refusals: Vec<String> = desired.refusals.iter().map(ToString::to_string).collect();
            let is_refused_by_name = refusals.iter().any(|refusal| refusal.contains("round-robin has no say"));
            assert_eq!(is_refused_by_name, !direct.is_empty(), "{mode}: {refusals:?}");
        }
    }
}
