//! Where Ballast means to differ from kube-proxy. Whatever else differs is a bug.
//!
//! docs/src/kube-proxy.md holds the same list for users.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipnet::IpNet;
use lb_plan::plan::{Frontend, FrontendKind, NodePortAddresses};
use serde_json::{Value, json};

use super::case::{Case, Inputs};
use super::cluster::Cluster;
use super::packet::{Client, Position};
use super::probes::{source_ranges, vips};
use super::verdict::{Answer, Fate};
use super::{duplicates, node};

/// A difference that is meant.
#[derive(Debug)]
pub struct Known {
    pub name: &'static str,
    pub reason: &'static str,
    /// Whether it may be the cause in this case.
    pub concerns: fn(&Case<'_>) -> bool,
    /// What kube-proxy makes of its objects.
    pub as_kube_proxy: Reading,
}

/// How kube-proxy's answer is checked, where a decision may be the cause.
#[derive(Clone, Copy, Debug)]
pub enum Reading {
    /// Ballast gives the same answer if its input is changed so.
    Otherwise(fn(&mut Inputs)),
    /// Ballast gives the same answer to one of these inputs.
    Chance(fn(&Case<'_>, &Inputs) -> Vec<Inputs>),
    /// By the decision alone.
    Unchecked,
}

/// All of them.
pub const KNOWN: [Known; 12] = [
    Known {
        name: "overlapping claims",
        reason: "two service ports claim one address, port and protocol: kube-proxy serves one of them or a mixture, by chance; Ballast serves the oldest",
        concerns: |case| {
            let ports: BTreeSet<_> = case.served_claims().map(|claim| (claim.service, claim.port)).collect();
            ports.len() > 1
        },
        as_kube_proxy: Reading::Unchecked,
    },
    Known {
        name: "contradicting duplicates",
        reason: "an endpoint is in several slices with different conditions: kube-proxy takes one by chance; Ballast a ready one, then the local, then the best",
        concerns: |case| !duplicates::of(case, case.inputs).is_empty(),
        as_kube_proxy: Reading::Chance(duplicates::each_kept_alone),
    },
    Known {
        name: "backends of the same node",
        reason: "a client outside, by an external frontend under the policy Cluster: kube-proxy shows every pod an address of this node; Ballast shows those of this node the client",
        concerns: |case| {
            case.probe.client.position == Position::Outside
                && case.served_claims().any(|claim| claim.kind != FrontendKind::ClusterIp)
                && matches!(case.reference.fate, Fate::Served(_))
                && case.reference.masqueraded != case.subject.masqueraded
        },
        as_kube_proxy: Reading::Otherwise(|inputs| {
            let local = |service: &Value| service["spec"]["externalTrafficPolicy"] == "Local";
            let services = inputs.cluster.services.iter().filter(|service| !local(service));
            let names: BTreeSet<String> = services.map(|service| service["metadata"]["name"].to_string()).collect();
            for slice in &mut inputs.cluster.slices {
                if names.contains(&slice["metadata"]["labels"]["kubernetes.io/service-name"].to_string()) {
                    for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
                        endpoint["nodeName"] = Value::Null;
                    }
                }
            }
        }),
    },
    Known {
        name: "unserved ports",
        reason: "a port that no service has on an external address: kube-proxy lets the packet go on, and it may come back; Ballast rejects it",
        concerns: |case| {
            let external = case
                .inputs
                .cluster
                .services
                .iter()
                .flat_map(vips)
                .filter(|(_, kind, _)| *kind != FrontendKind::ClusterIp);
            let address = case.probe.frontend.address;
            external.map(|(ip, ..)| ip).any(|ip| ip == address)
                && case.served_claims().next().is_none()
                && case.reference.fate == Fate::Passed
                && case.subject.fate == Fate::Rejected
        },
        as_kube_proxy: Reading::Unchecked,
    },
    Known {
        name: "cluster IPs of others",
        reason: "a load balancer's or external address that is another service's cluster IP: kube-proxy serves it at ports that the other one leaves free; Ballast never does",
        concerns: |case| {
            let address = case.probe.frontend.address;
            let is_theirs = |service: &&Value| {
                let mut addresses = vips(service).into_iter();
                case.inputs.settings.is_served(service)
                    && addresses.any(|(ip, kind, _)| (ip, kind) == (address, FrontendKind::ClusterIp))
            };
            let mut kinds = case.served_claims().map(|claim| claim.kind).peekable();
            case.inputs.cluster.services.iter().any(|service| is_theirs(&service))
                && kinds.peek().is_some()
                && kinds.all(|kind| matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIp))
                && case.subject.fate == Fate::Rejected
        },
        as_kube_proxy: Reading::Unchecked,
    },
    Known {
        name: "source ranges of external IPs",
        reason: "kube-proxy guards only the load balancer's addresses by loadBalancerSourceRanges; Ballast externalIPs, too",
        concerns: |case| {
            case.only_as(FrontendKind::ExternalIp) && case.claimants().any(|service| !source_ranges(service).is_empty())
        },
        as_kube_proxy: Reading::Otherwise(|inputs| {
            for service in &mut inputs.cluster.services {
                service["spec"]["loadBalancerSourceRanges"] = Value::Null;
            }
        }),
    },
    Known {
        name: "source ranges of one family",
        reason: "ranges of one family alone leave the other open in kube-proxy; Ballast denies it",
        concerns: |case| {
            let v4 = case.probe.frontend.address.is_ipv4();
            let missing =
                |ranges: &[IpNet]| !ranges.is_empty() && ranges.iter().all(|range| range.addr().is_ipv4() != v4);
            case.claimants().any(|service| missing(&source_ranges(service)))
        },
        as_kube_proxy: Reading::Otherwise(open_missing_families),
    },
    Known {
        name: "source ranges and this node",
        reason: "kube-proxy looks at the address that a process of the node sends from; Ballast lets it pass if any address of the node is in a range",
        concerns: |case| {
            let Client { position, address } = case.probe.client;
            let admits_another = |service| {
                let ranges = source_ranges(service);
                !ranges.iter().any(|range| range.contains(&address))
                    && ranges.iter().any(|range| node::addresses().iter().any(|own| range.contains(own)))
            };
            position == Position::Node && case.claimants().any(admits_another)
        },
        as_kube_proxy: Reading::Otherwise(|inputs| {
            for range in source_ranges_mut(&mut inputs.cluster) {
                let net: Option<IpNet> = range.as_str().and_then(|text| text.trim().parse().ok());
                if let Some(net) = net.filter(|net| !net.contains(&node::primary(net.addr().is_ipv4()))) {
                    *range = if net.addr().is_ipv4() { "198.18.0.0/32" } else { "fd00:198::/128" }.into();
                }
            }
        }),
    },
    Known {
        name: "node port addresses of one family",
        reason: "nodePortAddresses of one family alone leave the other unrestricted in kube-proxy; in Ballast they name all addresses that there are",
        concerns: |case| match &case.inputs.settings.nodeport_addresses {
            NodePortAddresses::Cidrs(nets) => {
                let v4 = case.probe.frontend.address.is_ipv4();
                case.only_as(FrontendKind::NodePort) && nets.iter().all(|net| net.addr().is_ipv4() != v4)
            }
            _ => false,
        },
        as_kube_proxy: Reading::Otherwise(|inputs| inputs.settings.nodeport_addresses = NodePortAddresses::All),
    },
    Known {
        name: "refused endpoint addresses",
        reason: "endpoints with loopback, link-local, multicast or unspecified addresses: kube-proxy sends packets there; Ballast refuses and reports them",
        concerns: |case| case.endpoints().any(has_stand_in),
        as_kube_proxy: Reading::Otherwise(|inputs| {
            for endpoint in endpoints_mut(&mut inputs.cluster) {
                if let Some(other) = stand_in(endpoint) {
                    endpoint["addresses"] = json!([other]);
                }
            }
        }),
    },
    Known {
        name: "serving not said",
        reason: "an endpoint that terminates and does not say whether it serves: to kube-proxy it does; to Ballast as it is ready",
        concerns: |case| case.endpoints().any(is_silent),
        as_kube_proxy: Reading::Otherwise(|inputs| {
            for endpoint in endpoints_mut(&mut inputs.cluster) {
                if is_silent(endpoint) {
                    endpoint["conditions"]["serving"] = true.into();
                }
            }
        }),
    },
    Known {
        name: "ports of the node",
        reason: "a node port or external address on which the node itself listens (API server, kubelet, Ballast): kube-proxy takes it from the node; Ballast leaves it",
        concerns: |case| {
            let Frontend { port, protocol, .. } = case.probe.frontend;
            case.inputs.settings.reserved.iter().any(|(_, reserved, of)| *reserved == port && *of == protocol)
        },
        as_kube_proxy: Reading::Otherwise(|inputs| inputs.settings.reserved.clear()),
    },
];

fn endpoints_mut(cluster: &mut Cluster) -> impl Iterator<Item = &mut Value> {
    cluster.slices.iter_mut().flat_map(|slice| slice["endpoints"].as_array_mut().into_iter().flatten())
}

fn source_ranges_mut(cluster: &mut Cluster) -> impl Iterator<Item = &mut Value> {
    let specs = cluster.services.iter_mut().map(|service| &mut service["spec"]);
    specs.filter_map(|spec| spec["loadBalancerSourceRanges"].as_array_mut()).flatten()
}

fn is_silent(endpoint: &Value) -> bool {
    let conditions = &endpoint["conditions"];
    conditions["serving"].is_null() && conditions["ready"] == false && conditions["terminating"] == true
}

/// Addresses that Ballast refuses, and their replacements for the question what it would do otherwise.
const STAND_INS: [(&str, &str); 6] = [
    ("127.0.0.1", "10.250.0.1"),
    ("169.254.1.1", "10.250.0.2"),
    ("224.0.0.1", "10.250.0.3"),
    ("::1", "fd00:250::1"),
    ("fe80::1", "fd00:250::2"),
    ("ff02::1", "fd00:250::3"),
];

/// Whether Ballast refuses the endpoint for its address.
pub fn has_stand_in(endpoint: &Value) -> bool {
    stand_in(endpoint).is_some()
}

fn stand_in(endpoint: &Value) -> Option<&'static str> {
    let address = endpoint["addresses"][0].as_str()?;
    STAND_INS.iter().find(|(refused, _)| *refused == address).map(|(_, other)| *other)
}

/// The answer with the addresses that were stood in for.
pub fn without_stand_ins(answer: Answer) -> Answer {
    let real = |socket: SocketAddr| {
        let found = STAND_INS.iter().find(|(_, other)| node::address(other) == socket.ip());
        found.map_or(socket, |(refused, _)| SocketAddr::new(node::address(refused), socket.port()))
    };
    // What goes to loopback is the node's own to take.
    let masqueraded = answer.masqueraded.into_iter().map(real).filter(|at| !at.ip().is_loopback()).collect();
    let fate = match answer.fate {
        Fate::Served(endpoints) => Fate::Served(endpoints.into_iter().map(real).collect()),
        other => other,
    };
    Answer { fate, masqueraded, ..answer }
}

fn open_missing_families(inputs: &mut Inputs) {
    for service in &mut inputs.cluster.services {
        let ranges = source_ranges(service);
        for (v4, all) in [(true, "0.0.0.0/0"), (false, "::/0")] {
            if !ranges.is_empty()
                && ranges.iter().all(|range| range.addr().is_ipv4() != v4)
                && let Some(listed) = service["spec"]["loadBalancerSourceRanges"].as_array_mut()
            {
                listed.push(all.into());
            }
        }
    }
}
