//! What keeps endpoints from new flows beside the API: a hand, or an active check.

use std::{
    collections::BTreeSet,
    fmt,
    net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use lb_model::{ObjectName, PortKey, Slice, Snapshot};

/// What is in maintenance. As text: an address, or an address and a port (`10.0.0.1:80`, `[2001:db8::1]:80`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Every endpoint at this address.
    Address(IpAddr),
    Endpoint(SocketAddr),
}

impl Target {
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Address(ip) => ip,
            Self::Endpoint(at) => at.ip(),
        }
    }

    /// Whether the endpoint is meant.
    pub fn holds(self, endpoint: SocketAddr) -> bool {
        match self {
            Self::Address(ip) => ip == endpoint.ip(),
            Self::Endpoint(at) => at == endpoint,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Endpoint(at) => at.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse().map(Self::Address).or_else(|_| text.parse().map(Self::Endpoint))
    }
}

/// Marks that lie over what the API says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub maintenance: BTreeSet<Target>,
    /// Endpoints whose active checks fail.
    pub unhealthy: BTreeSet<(PortKey, SocketAddr)>,
}

/// The mark of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    #[default]
    None,
    /// Takes no new flows, unless all of its set are unhealthy.
    Unhealthy,
    /// Takes no new flows.
    Maintenance,
}

impl Marks {
    /// The marks of the endpoints of one service port.
    pub(super) fn of_port(&self, key: &PortKey) -> PortMarks<'_> {
        let mut unhealthy = BTreeSet::new();
        if !self.unhealthy.is_empty() {
            let first = (key.clone(), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
            let own = self.unhealthy.range(first..).take_while(|(port, _)| port == key);
            unhealthy.extend(own.map(|(_, endpoint)| *endpoint));
        }
        PortMarks { maintenance: &self.maintenance, unhealthy }
    }

    /// Whether the endpoint is in maintenance.
    pub fn maintains(&self, endpoint: SocketAddr) -> bool {
        is_maintained(&self.maintenance, endpoint)
    }

    /// Services whose endpoints are marked otherwise than by `before`. A hand is rare, so for it all slices are looked through;
    /// for checks only what changed.
    pub(super) fn differing(&self, before: &Self, snapshot: &Snapshot) -> BTreeSet<ObjectName> {
        let unhealthy = self.unhealthy.symmetric_difference(&before.unhealthy);
        let mut services: BTreeSet<ObjectName> = unhealthy.map(|(port, _)| port.service.clone()).collect();
        let maintained = self.maintenance.symmetric_difference(&before.maintenance);
        let addresses: BTreeSet<IpAddr> = maintained.map(|target| target.ip()).collect();
        if !addresses.is_empty() {
            let has = |slice: &Slice| slice.endpoints.iter().any(|endpoint| addresses.contains(&endpoint.address));
            let slices = snapshot.slices.iter().filter(|(_, slice)| has(slice));
            services.extend(slices.map(|(key, _)| ObjectName::new(key.namespace.clone(), key.service.clone())));
        }
        services
    }
}

/// The marks of the endpoints of one service port.
#[derive(Debug)]
pub(super) struct PortMarks<'a> {
    maintenance: &'a BTreeSet<Target>,
    unhealthy: BTreeSet<SocketAddr>,
}

impl PortMarks<'_> {
    pub fn of(&self, endpoint: SocketAddr) -> Mark {
        if is_maintained(self.maintenance, endpoint) {
            Mark::Maintenance
        } else if self.unhealthy.contains(&endpoint) {
            Mark::Unhealthy
        } else {
            Mark::None
        }
    }
}

fn is_maintained(maintenance: &BTreeSet<Target>, endpoint: SocketAddr) -> bool {
    !maintenance.is_empty()
        && (maintenance.contains(&Target::Address(endpoint.ip())) || maintenance.contains(&Target::Endpoint(endpoint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::Protocol;

    #[test]
    fn a_target_is_an_address_with_or_without_a_port() {
        for text in ["10.0.0.1", "10.0.0.1:80", "2001:db8::1", "[2001:db8::1]:80"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert!("web".parse::<Target>().is_err());
        let target: Target = "10.0.0.1".parse().unwrap();
        assert!(target.holds("10.0.0.1:80".parse().unwrap()) && !target.holds("10.0.0.2:80".parse().unwrap()));
    }

    #[test]
    fn a_port_has_its_own_marks_and_a_hand_counts_more_than_a_check() {
        let key = |port| PortKey { service: ObjectName::new("ns", "web"), port, protocol: Protocol::Tcp };
        let (one, two): (SocketAddr, SocketAddr) =
            ("10.0.0.1:80".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap());
        let marks = Marks {
            maintenance: [Target::Endpoint(two)].into(),
            unhealthy: [(key(80), one), (key(80), two), (key(81), one)].into(),
        };
        let of = |port, endpoint| marks.of_port(&key(port)).of(endpoint);
        assert_eq!((of(80, one), of(80, two)), (Mark::Unhealthy, Mark::Maintenance));
        assert_eq!((of(81, one), of(81, two), of(79, one)), (Mark::Unhealthy, Mark::Maintenance, Mark::None));
    }
}
