//! Where the plan is made for: this node as far as a plan depends on it. Another place needs another plan.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

use super::{Frontend, Marks, NodePortAddresses, PlanSettings, cluster_ips::ClusterIps};
use lb_model::{Endpoint, Family, Mode, ObjectName, Protocol, Scheduler, Slice, SliceKey, Snapshot};

/// What the node itself knows, beside the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses of its links; no loopback, no link-local ones.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that no link has at the moment: node ports wait for them, cluster IPs do not.
    pub absent: BTreeSet<IpAddr>,
    /// Networks that its links are in: a host with an address there is its neighbour.
    pub networks: BTreeSet<IpNet>,
    /// What no node port, load balancer or external IP may take: the API server, the kubelet, ports of our own. An unspecified
    /// address means every address of the node.
    pub reserved: BTreeSet<(IpAddr, u16, Protocol)>,
    pub marks: Marks,
    /// The most that a link takes which has an address of IPv4, of IPv6; `None`: not known, or there is none.
    pub mtu: [Option<u32>; 2],
}

const UNSPECIFIED: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// This node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeContext {
    pub node_name: Option<String>,
    pub zone: Option<String>,
    /// Addresses that are the node's own, by its links or by the API.
    pub addresses: BTreeSet<IpAddr>,
    /// Cluster IPs that a link of the node has, as NodeLocal DNSCache puts that of kube-dns on one: the node answers there by itself, and they
    /// are no node addresses.
    pub local_cluster_ips: BTreeSet<IpAddr>,
    /// Networks that its links are in.
    pub networks: BTreeSet<IpNet>,
    /// Those that node ports are served on.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// The unspecified address of each family in which sockets of this node's processes meet node ports.
    pub host_sockets: BTreeSet<IpAddr>,
    pub external_ips: bool,
    /// Where a Service says nothing.
    pub scheduler: Scheduler,
    /// Where a Service says nothing.
    pub mode: Mode,
    /// Whether other nodes are known, which may send packets of clients here in an outer header.
    pub knows_peers: bool,
    /// The most that a link of each family takes: [`NodeFacts::mtu`].
    pub mtu: [Option<u32>; 2],
    /// Where a Service says nothing.
    pub retry: bool,
    /// Networks that active checks may go to; `None`: nothing is checked.
    pub check_networks: Option<BTreeSet<IpNet>>,
    /// Label value of the services that are ours; `None`: those without the label.
    pub proxy_name: Option<String>,
    pub reserved: BTreeSet<(IpAddr, u16, Protocol)>,
    pub marks: Marks,
}

impl NodeContext {
    pub fn new(snapshot: &Snapshot, facts: &NodeFacts, cluster_ips: &ClusterIps, settings: &PlanSettings) -> Self {
        let node = snapshot.node.as_deref();
        let named = node.map(|node| node.addresses.as_slice()).unwrap_or_default();
        let primary = |family| named.iter().copied().find(|address| Family::of(*address) == family);
        let serves_node_ports = |address: &IpAddr| match &settings.nodeport_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Primary => primary(Family::of(*address)) == Some(*address),
            NodePortAddresses::Cidrs(networks) => networks.iter().any(|network| network.contains(address)),
        };
        // What the Node object names is the node's own, whatever a Service says.
        let is_local_cluster_ip = |address: &IpAddr| cluster_ips.contains(address) && !named.contains(address);
        let (mut local_cluster_ips, own): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            facts.addresses.iter().copied().partition(is_local_cluster_ip);
        // Nobody answers there meanwhile.
        local_cluster_ips.retain(|address| !facts.absent.contains(address));
        let node_port_addresses: BTreeSet<IpAddr> = own.iter().copied().filter(serves_node_ports).collect();
        let unspecified = UNSPECIFIED.into_iter().zip(LOOPBACK);
        let host_sockets = unspecified.filter(|(any, loopback)| {
            let served = node_port_addresses.iter().any(|address| Family::of(*address) == Family::of(*any));
            served || serves_node_ports(loopback)
        });
        let pods = node.map(|node| node.pod_cidrs.as_slice()).unwrap_or_default();
        let check_networks = settings.check_networks.as_ref();
        Self {
            check_networks: check_networks.map(|networks| networks.iter().chain(pods).copied().collect()),
            host_sockets: host_sockets.map(|(any, _)| any).collect(),
            node_name: settings.node_name.clone(),
            zone: node.and_then(|node| node.zone.clone()),
            addresses: own.iter().chain(named).copied().collect(),
            local_cluster_ips,
            networks: facts.networks.clone(),
            node_port_addresses,
            external_ips: settings.external_ips,
            scheduler: settings.scheduler,
            mode: settings.mode,
            // Not known yet: what is in the tables for them stays.
            knows_peers: settings.has_peers || snapshot.peers.as_ref().is_none_or(|peers| !peers.is_empty()),
            mtu: facts.mtu,
            retry: settings.retry,
            proxy_name: settings.service_proxy_name.clone(),
            reserved: facts.reserved.iter().copied().chain(api_servers(snapshot)).collect(),
            marks: facts.marks.clone(),
        }
    }

    /// True if the endpoint is on this node.
    pub fn is_here(&self, endpoint: &Endpoint) -> bool {
        self.node_name.is_some() && endpoint.node.as_deref() == self.node_name.as_deref()
    }

    /// True if the node itself listens on this port, at whichever of its addresses.
    pub fn listens(&self, port: u16, protocol: Protocol) -> bool {
        let is_here = |at: &IpAddr| at.is_unspecified() || at.is_loopback() || self.addresses.contains(at);
        self.reserved.iter().any(|(at, number, of)| (*number, *of) == (port, protocol) && is_here(at))
    }

    /// True if no service may take the frontend: something of the node's own listens there.
    pub fn is_reserved(&self, frontend: &Frontend) -> bool {
        let (port, protocol) = (frontend.port, frontend.protocol);
        if frontend.address.is_unspecified() {
            return self.listens(port, protocol);
        }
        let anywhere = || UNSPECIFIED.into_iter().any(|address| self.reserved.contains(&(address, port, protocol)));
        self.reserved.contains(&(frontend.address, port, protocol))
            || self.addresses.contains(&frontend.address) && anywhere()
    }
}

/// Where the API servers listen, as the cluster knows it: the endpoints of the Service `default/kubernetes`. An agent that reaches them by
/// that Service's cluster IP has no other way to know.
fn api_servers(snapshot: &Snapshot) -> BTreeSet<(IpAddr, u16, Protocol)> {
    let slices = slices_of(snapshot, &ObjectName::new("default", "kubernetes"));
    let listening = slices.into_iter().flat_map(|slice| {
        let ports = slice.ports.iter().map(|port| (port.port, port.protocol));
        ports.flat_map(|(port, protocol)| slice.endpoints.iter().map(move |at| (at.address, port, protocol)))
    });
    listening.collect()
}

/// The slices of one service, which are next to each other.
pub(super) fn slices_of<'a>(snapshot: &'a Snapshot, service: &ObjectName) -> Vec<&'a Slice> {
    let ObjectName { namespace, name } = service;
    let first = SliceKey { namespace: namespace.clone(), service: name.clone(), name: "".into() };
    let all = snapshot.slices.range(first..);
    let own = all.take_while(|(key, _)| key.namespace == *namespace && key.service == *name);
    own.map(|(_, slice)| slice.as_ref()).collect()
}
