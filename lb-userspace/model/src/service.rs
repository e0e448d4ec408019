//! A service: its addresses, its ports, and who serves it.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use super::{ObjectName, Protocol, ServiceOptions};

/// One port of a service: the unit that has an id, slots and backends of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    pub service: ObjectName,
    pub port: u16,
    pub protocol: Protocol,
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.service, self.port, self.protocol)
    }
}

/// How a service is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// By its cluster IPs.
    Addresses,
    /// By the addresses of its endpoints alone (`clusterIP: None`).
    Headless,
    /// By a DNS name.
    ExternalName,
}

/// `internalTrafficPolicy` or `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    #[default]
    Cluster,
    /// Endpoints of this node alone.
    Local,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: ObjectName,
    pub exposure: Exposure,
    /// Value of the label `service.kubernetes.io/service-proxy-name`: another proxy serves it.
    pub proxy_name: Option<String>,
    /// At most one of each family.
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Ingress addresses of the load balancer that are captured: those of `ipMode: Proxy` are not here.
    pub load_balancer_ips: Vec<IpAddr>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// `loadBalancerSourceRanges`; `None`: none given, everybody may pass. Only ranges that could be read are here: given, but
    /// all bad, nobody passes.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Port on which load balancers ask whether this node has endpoints (`externalTrafficPolicy: Local`).
    pub health_check_node_port: Option<u16>,
    /// Seconds of client affinity; 0: none.
    pub affinity_timeout_s: u32,
    /// What annotations say; `None`: nothing.
    pub options: Option<Box<ServiceOptions>>,
    /// Seconds since the epoch, for the order of age only; `None` where the source knows none (a file).
    pub created_s: Option<i64>,
}

/// A port of a Service. (port, protocol) is unique in a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty: none.
    pub name: String,
    pub port: u16,
    pub protocol: Protocol,
    /// The port on node addresses, where the service has one.
    pub node_port: Option<u16>,
}
