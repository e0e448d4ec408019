//! The probes of a cluster: every address, port and protocol that its objects name, from every position.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use lb_model::Protocol;
use lb_plan::plan::{Frontend, FrontendKind};
use serde_json::Value;

use super::cluster::Cluster;
use super::node;
use super::packet::{Client, Position, Probe};

/// A port that no service has.
const UNSERVED: u16 = 9;

/// A service port that a frontend is named by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Index of the Service in the cluster.
    pub service: usize,
    /// Index of the port in the Service.
    pub port: usize,
    pub kind: FrontendKind,
    /// Not so: a load balancer's address with `ipMode: Proxy`.
    pub captured: bool,
}

/// The frontends that the objects name, whether anybody serves them or not, and who names them.
pub fn claims(cluster: &Cluster) -> BTreeMap<Frontend, BTreeSet<Claim>> {
    let mut claims: BTreeMap<Frontend, BTreeSet<Claim>> = BTreeMap::new();
    for (service, object) in cluster.services.iter().enumerate() {
        let addresses = vips(object);
        for (index, port) in object["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
            let protocol = protocol(port);
            let mut add = |address, number, kind, captured| {
                let claim = Claim { service, port: index, kind, captured };
                claims.entry(Frontend { address, port: number, protocol }).or_default().insert(claim);
            };
            for (address, kind, captured) in &addresses {
                add(*address, number(&port["port"]), *kind, *captured);
            }
            if !port["nodePort"].is_null() {
                for address in node::addresses() {
                    add(*address, number(&port["nodePort"]), FrontendKind::NodePort, true);
                }
            }
        }
    }
    claims
}

/// The addresses that a Service names, how, and whether packets to them are captured.
pub fn vips(service: &Value) -> BTreeSet<(IpAddr, FrontendKind, bool)> {
    let list = |pointer: &str| service.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let texts = list("/spec/clusterIPs").map(|ip| (ip, FrontendKind::ClusterIp, true));
    let texts = texts.chain(list("/spec/externalIPs").map(|ip| (ip, FrontendKind::ExternalIp, true)));
    let texts = texts.chain(
        list("/status/loadBalancer/ingress")
            .map(|ingress| (&ingress["ip"], FrontendKind::LoadBalancer, ingress["ipMode"] != "Proxy")),
    );
    texts.filter_map(|(ip, kind, captured)| Some((ip.as_str()?.parse().ok()?, kind, captured))).collect()
}

/// The source ranges of a Service, as far as they can be read.
pub fn source_ranges(service: &Value) -> Vec<IpNet> {
    let listed = service["spec"]["loadBalancerSourceRanges"].as_array().into_iter().flatten();
    listed.filter_map(|range| range.as_str()?.trim().parse().ok()).collect()
}

fn protocol(port: &Value) -> Protocol {
    match port["protocol"].as_str() {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

fn number(port: &Value) -> u16 {
    port.as_u64().and_then(|port| u16::try_from(port).ok()).expect("a generated port")
}

/// All packets to ask about. `also` are frontends that a side knows of; every one is asked about.
pub fn probes(cluster: &Cluster, also: impl Iterator<Item = Frontend>) -> BTreeSet<Probe> {
    let mut frontends: BTreeSet<Frontend> = claims(cluster).into_keys().chain(also).collect();
    let addresses: BTreeSet<IpAddr> = frontends.iter().map(|frontend| frontend.address).collect();
    for address in addresses {
        frontends.insert(Frontend { address, port: UNSERVED, protocol: Protocol::Tcp });
    }
    let clients = clients(cluster);
    let same_family = |frontend: &Frontend, client: &Client| frontend.address.is_ipv4() == client.address.is_ipv4();
    frontends
        .into_iter()
        .flat_map(|frontend| {
            let fitting = clients.iter().filter(move |client| same_family(&frontend, client));
            fitting.map(move |client| Probe { frontend, client: *client })
        })
        .collect()
}

/// One of each position and family, and one in each source range.
fn clients(cluster: &Cluster) -> BTreeSet<Client> {
    let mut clients = BTreeSet::new();
    for v4 in [true, false] {
        let place = cluster.place;
        let pod = if v4 { format!("10.244.{place}.200") } else { format!("fd00:244:0:{place:x}::c8") };
        let of = |position, address| Client { position, address };
        clients.insert(of(Position::Pod, node::address(&pod)));
        clients.insert(of(Position::Node, node::primary(v4)));
        clients.insert(of(Position::Outside, node::address(node::OUTSIDE[usize::from(!v4)])));
    }
    let pods = node::POD_NETS.map(node::network);
    for range in cluster.services.iter().flat_map(source_ranges) {
        // The second address of the network: the first is no host's.
        let Some(address) = range.hosts().nth(usize::from(range.prefix_len() < range.max_prefix_len())) else {
            continue;
        };
        if range.prefix_len() == 0 || node::addresses().contains(&address) {
            continue;
        }
        let is_pod = pods.iter().any(|net| net.contains(&address));
        clients.insert(Client { position: if is_pod { Position::Pod } else { Position::Outside }, address });
    }
    clients
}
