//! Direct server return: which service ports have it, and what follows for them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use lb_common::abi::service_flags;

use super::{Frontend, Kind, Use, place::Place};
use crate::model::{Family, Mode, Protocol, Refusal, Scheduler, Service, ServicePort};

fn mode(service: &Service, place: &Place) -> Mode {
    service.options.as_ref().and_then(|options| options.mode).unwrap_or(place.mode)
}

/// Whether packets of clients outside go whole to backends of other nodes.
pub(super) fn is_direct(service: &Service, protocol: Protocol, place: &Place) -> bool {
    mode(service, place).is_direct(protocol)
}

/// The flags of a frontend of such a port.
pub(super) fn flags(used: Use) -> u8 {
    if used.kind == Kind::ClusterIp { 0 } else { service_flags::DSR }
}

/// A node port as other nodes name it, who were asked at an address of their own: at no address. Where the node's sockets are served
/// by one that is the same already.
pub(super) fn anywhere(port: &ServicePort, families: &BTreeSet<Family>, place: &Place) -> Vec<Frontend> {
    let protocol = port.protocol;
    let every = families.iter().map(|family| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    });
    let new = every.filter(|address| protocol == Protocol::Sctp || !place.host_sockets.contains(address));
    new.zip(port.node_port.into_iter().cycle()).map(|(address, port)| Frontend { address, port, protocol }).collect()
}

/// A scheduler that has no say: every node must find the same backend.
pub(super) fn unscheduled(service: &Service, place: &Place) -> Option<Refusal> {
    let asked = service.options.as_ref()?.scheduler.filter(|scheduler| *scheduler != Scheduler::Maglev)?;
    let direct = service.ports.iter().any(|port| is_direct(service, port.protocol, place));
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
    use std::sync::Arc;

    use super::*;
    use crate::model::Snapshot;
    use crate::plan::{Desired, NodeFacts, PlanSettings, plan};
    use crate::source::{convert, manifest};

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
        let mut snapshot = Snapshot::default();
        for object in manifest::parse("test", DNS).unwrap() {
            let manifest::Object::Service(service) = object else { continue };
            let service = convert::service(&service).object.unwrap();
            snapshot.services.insert(service.name.clone(), Arc::new(service));
        }
        let facts = NodeFacts { addresses: ["192.0.2.1".parse().unwrap()].into(), ..NodeFacts::default() };
        plan(&snapshot, &facts, &PlanSettings { mode, ..PlanSettings::default() })
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
                    assert_eq!(flagged, is_direct && used.kind != Kind::ClusterIp, "{mode} {frontend}");
                }
                let anywhere = service.frontends.keys().filter(|frontend| frontend.address.is_unspecified()).count();
                assert_eq!(anywhere, 1, "{mode} {key}: for the node's sockets, and for other nodes");
            }
            let refusals: Vec<String> = desired.refusals.iter().map(ToString::to_string).collect();
            let told = refusals.iter().any(|refusal| refusal.contains("round-robin has no say"));
            assert_eq!(told, !direct.is_empty(), "{mode}: {refusals:?}");
        }
    }
}
