//! Where the plan is made for: this node as far as a plan depends on it. Another place needs another plan.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::{Frontend, Marks, NodeFacts, NodePortAddresses, PlanSettings};
use crate::model::{Endpoint, Family, Node, Protocol, Scheduler};

/// This node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub node_name: Option<String>,
    pub zone: Option<String>,
    /// Addresses that are the node's own, by its links or by the API.
    pub addresses: BTreeSet<IpAddr>,
    /// Networks that its links are in.
    pub networks: BTreeSet<IpNet>,
    /// Those that node ports are served on.
    pub node_port_addresses: BTreeSet<IpAddr>,
    pub external_ips: bool,
    /// Where a Service says nothing.
    pub scheduler: Scheduler,
    /// Where a Service says nothing.
    pub retry: bool,
    /// Label value of the services that are ours; `None`: those without the label.
    pub proxy_name: Option<String>,
    pub reserved: BTreeSet<(IpAddr, u16, Protocol)>,
    pub marks: Marks,
}

impl Place {
    pub fn new(node: Option<&Node>, facts: &NodeFacts, settings: &PlanSettings) -> Self {
        let named = node.map(|node| node.addresses.as_slice()).unwrap_or_default();
        let primary = |family| named.iter().copied().find(|address| Family::of(*address) == family);
        let serves_node_ports = |address: &IpAddr| match &settings.nodeport_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Primary => primary(Family::of(*address)) == Some(*address),
            NodePortAddresses::Cidrs(networks) => networks.iter().any(|network| network.contains(address)),
        };
        Self {
            node_name: settings.node_name.clone(),
            zone: node.and_then(|node| node.zone.clone()),
            addresses: facts.addresses.iter().chain(named).copied().collect(),
            networks: facts.networks.clone(),
            node_port_addresses: facts.addresses.iter().copied().filter(serves_node_ports).collect(),
            external_ips: settings.external_ips,
            scheduler: settings.scheduler,
            retry: settings.retry,
            proxy_name: settings.service_proxy_name.clone(),
            reserved: facts.reserved.clone(),
            marks: facts.marks.clone(),
        }
    }

    /// True if the endpoint is on this node.
    pub fn is_here(&self, endpoint: &Endpoint) -> bool {
        self.node_name.is_some() && endpoint.node.as_deref() == self.node_name.as_deref()
    }

    /// True if no service may take the frontend: something of the node's own listens there.
    pub fn is_reserved(&self, frontend: &Frontend) -> bool {
        let (port, protocol) = (frontend.port, frontend.protocol);
        let anywhere = || {
            let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
            unspecified.into_iter().any(|address| self.reserved.contains(&(address, port, protocol)))
        };
        self.reserved.contains(&(frontend.address, port, protocol))
            || self.addresses.contains(&frontend.address) && anywhere()
    }
}
