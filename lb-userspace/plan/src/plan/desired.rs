//! What the tables should hold: which frontends there are, who owns each, and which endpoints serve them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use lb_common::abi;

use super::{DesiredEndpoint, EndpointProblem, Frontend, OwnDrainLimits, Ranges, SortedMap, Use};
use lb_model::{Check, ObjectName, PortKey, RateLimit, Refused, Scheduler};

impl Frontend {
    /// The entry that leads from here to the slot ranges, sealed.
    pub fn entry(self, id: u32, generation: u32, uses: Use, ranges: Ranges, service: &DesiredService) -> abi::Service {
        let (inside, outside) = (ranges.of(uses.inside), ranges.of(uses.outside));
        let entry = abi::Service {
            id,
            generation,
            slot_base: inside.base,
            slot_count: inside.count,
            external_base: outside.base,
            external_count: outside.count,
            seal: 0,
            affinity_timeout_s: service.affinity_timeout_s,
            scheduler: service.scheduler.number(),
            flags: uses.flags,
            kind: uses.kind.number(),
            pad: 0,
            rate: service.rate_limit.rate,
            burst: service.rate_limit.burst,
        };
        abi::Service { seal: self.seal(&entry), ..entry }
    }
}

/// What one service port should look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredService {
    pub port_name: String,
    pub affinity_timeout_s: u32,
    pub scheduler: Scheduler,
    pub rate_limit: RateLimit,
    /// Slots of a Maglev table; `None`: by the number of endpoints.
    pub maglev_size: Option<u32>,
    /// Slots of each set at most: its part of the service's share. `None`: as many as it needs.
    pub slots_max: Option<u32>,
    pub drain_limits: OwnDrainLimits,
    /// How this node checks its endpoints; `None`: it does not.
    pub check: Option<Box<Check>>,
    /// Those that it may not check: they are in no network that checks may go to.
    pub unchecked: BTreeSet<SocketAddr>,
    /// At least one.
    pub frontends: SortedMap<Frontend, Use>,
    /// Of the families of the frontends.
    pub endpoints: SortedMap<SocketAddr, DesiredEndpoint>,
    /// Networks that may pass the frontends with [`abi::service_flags::SOURCE_RANGES`]; of the families of the frontends.
    pub sources: BTreeSet<IpNet>,
    /// Why it has no endpoint, and what else is the matter with its endpoints. It changes no table.
    pub problems: Vec<EndpointProblem>,
}

/// What the tables should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub services: BTreeMap<PortKey, DesiredService>,
    pub owners: BTreeMap<Frontend, PortKey>,
    /// Addresses that are no node's own, and what becomes of packets that no frontend serves.
    pub vips: BTreeMap<IpAddr, abi::Vip>,
    /// What of the services is not served, and why.
    pub refusals: Refused,
    /// Ports on which load balancers ask whether this node has endpoints (`healthCheckNodePort`).
    pub health_checks: BTreeMap<u16, HealthCheck>,
}

/// What is answered on a health-check node port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub service: ObjectName,
    /// Endpoints of this node that are ready, as distinct addresses of the family that has more of them: a pod of both
    /// families counts once.
    pub local_ready: usize,
}
