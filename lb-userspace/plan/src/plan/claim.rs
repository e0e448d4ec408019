//! The order of claims on a frontend, or on something of a whole service.

use super::{Frontend, FrontendKind};
use lb_model::{ObjectName, PortKey, Protocol, Service};

/// A claim on a frontend. A cluster IP yields to nothing; then the older service comes first, then the one first by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    is_external: bool,
    created_s: i64,
    pub service: ObjectName,
    pub kind: FrontendKind,
    pub port: u16,
    pub protocol: Protocol,
}

impl Claim {
    /// The claim of a port of `service` on `frontend`.
    pub fn new(service: &Service, frontend: &Frontend, kind: FrontendKind, port: u16) -> Self {
        Self {
            is_external: kind != FrontendKind::ClusterIp,
            created_s: age(service),
            service: service.name.clone(),
            kind,
            port,
            protocol: frontend.protocol,
        }
    }

    /// The claim of a port that the tables hold: it is older than any other one.
    pub fn of_held(key: &PortKey, kind: FrontendKind) -> Self {
        Self {
            is_external: kind != FrontendKind::ClusterIp,
            created_s: i64::MIN,
            service: key.service.clone(),
            kind,
            port: key.port,
            protocol: key.protocol,
        }
    }

    pub fn key(&self) -> PortKey {
        PortKey { service: self.service.clone(), port: self.port, protocol: self.protocol }
    }
}

/// A claim of a whole service on something: the older service comes first.
pub(super) type ServiceClaim = (i64, ObjectName);

pub(super) fn service_claim(service: &Service) -> ServiceClaim {
    (age(service), service.name.clone())
}

/// Less is older. A source that knows no age makes all equally old: the name decides.
fn age(service: &Service) -> i64 {
    service.created_s.unwrap_or(i64::MIN)
}
