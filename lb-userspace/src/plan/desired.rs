//! Snapshot in, desired tables out: which frontends there are, who owns each, and which endpoints serve them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use lb_common::abi;

use super::{DesiredEndpoint, PlanSettings, Range, endpoints};
use crate::model::{Exposure, Family, ObjectName, Protocol, Refusal, Service, Slice, Snapshot};

/// One (address, port, protocol) that services are reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

impl Frontend {
    /// The entry that leads from here to a slot range, sealed.
    pub fn entry(self, id: u32, generation: u32, range: Range, affinity_timeout_s: u32) -> abi::Service {
        abi::Service {
            id,
            generation,
            slot_base: range.base,
            slot_count: range.count,
            seal: self.seal(id, generation, range),
            affinity_timeout_s,
            scheduler: abi::scheduler::RANDOM,
            flags: 0,
            kind: abi::frontend_kind::CLUSTER_IP,
            pad: 0,
        }
    }

    fn seal(self, id: u32, generation: u32, range: Range) -> u32 {
        match self.address {
            IpAddr::V4(v4) => abi::seal(&self.key(v4.octets()), id, generation, range.base, range.count),
            IpAddr::V6(v6) => abi::seal(&self.key(v6.octets()), id, generation, range.base, range.count),
        }
    }

    /// The key in `services4` or `services6`; `address` is this frontend's own.
    pub fn key<const N: usize>(self, address: [u8; N]) -> abi::ServiceKey<N> {
        abi::ServiceKey { address, port: self.port, protocol: self.protocol.number(), pad: 0 }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.protocol)
    }
}

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

/// What one service port should look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    pub port_name: String,
    pub affinity_timeout_s: u32,
    /// At least one.
    pub frontends: BTreeSet<Frontend>,
    /// Of the families of the frontends.
    pub endpoints: BTreeMap<SocketAddr, DesiredEndpoint>,
}

/// What the tables should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub services: BTreeMap<PortKey, DesiredService>,
    pub owners: BTreeMap<Frontend, PortKey>,
    /// Claims on a frontend that an older service has.
    pub refusals: Vec<Refusal>,
}

/// Plans the whole snapshot.
pub fn plan(snapshot: &Snapshot, settings: &PlanSettings) -> Desired {
    let mut slices: BTreeMap<(&str, &str), Vec<&Slice>> = BTreeMap::new();
    for slice in snapshot.slices.values() {
        slices.entry((&slice.name.namespace, &slice.service)).or_default().push(slice);
    }
    let mut desired = Desired::default();
    for service in by_age(snapshot) {
        let of_service = slices.get(&(service.name.namespace.as_str(), service.name.name.as_str()));
        for port in &service.ports {
            let key = PortKey { service: service.name.clone(), port: port.port, protocol: port.protocol };
            let frontends = claim(&mut desired, service, &key);
            if frontends.is_empty() {
                continue;
            }
            let families: BTreeSet<Family> = frontends.iter().map(|f| Family::of(f.address)).collect();
            let listed = of_service.map(Vec::as_slice).unwrap_or_default();
            let endpoints = endpoints::of_port(listed, port, &families, settings.node_name.as_deref());
            let service = DesiredService {
                port_name: port.name.clone(),
                affinity_timeout_s: service.affinity_timeout_s,
                frontends,
                endpoints,
            };
            desired.services.insert(key, service);
        }
    }
    desired
}

/// The services that are ours, the oldest first: it wins where two claim one frontend. The order is the same after a restart.
fn by_age(snapshot: &Snapshot) -> Vec<&Service> {
    let ours = |service: &&Service| service.exposure == Exposure::Addresses && service.proxy_name.is_none();
    let mut services: Vec<&Service> = snapshot.services.values().map(AsRef::as_ref).filter(ours).collect();
    services.sort_by_key(|service| (service.created_s.unwrap_or(i64::MIN), &service.name));
    services
}

fn claim(desired: &mut Desired, service: &Service, key: &PortKey) -> BTreeSet<Frontend> {
    let mut claimed = BTreeSet::new();
    for address in &service.cluster_ips {
        let frontend = Frontend { address: *address, port: key.port, protocol: key.protocol };
        if let Some(owner) = desired.owners.get(&frontend) {
            desired.refusals.push(Refusal::new(
                format!("Service {}", service.name),
                format!("{frontend} belongs to Service {}, which is older", owner.service),
                "give one of them another address or port",
            ));
        } else {
            desired.owners.insert(frontend, key.clone());
            claimed.insert(frontend);
        }
    }
    claimed
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
