//! The node that the agent runs on, and the others, as the API knows them.

use std::net::IpAddr;

use ipnet::IpNet;

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// `status.addresses` of type `InternalIP`, then those of type `ExternalIP` of a family without them, in their order: the first of each
    /// family is the primary one.
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    /// It is being deleted, or has the taint `ToBeDeletedByClusterAutoscaler`: load balancers must not choose it any more.
    pub is_leaving: bool,
}

/// A `ServiceCIDR`: the API server takes cluster IPs from its networks (KEP-1880).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCidr {
    pub name: String,
    pub networks: Vec<IpNet>,
}

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    /// `status.addresses` of the types `InternalIP` and `ExternalIP`: what its packets may come from.
    pub addresses: Vec<IpAddr>,
}
