//! Endpoints whose slices lack a port of their Service: they have ports of other names or protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_model::{Family, Protocol, ServicePort, Slice};

/// So many other ports are kept by name.
const OTHERS_MAX: usize = 8;

/// Slices of a Service that have endpoints, but not this port of the Service, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMismatch {
    pub family: Family,
    /// The endpoints of the slices, in any state.
    pub endpoints: usize,
    /// Those of them that have the port; 0: the service port has no endpoint.
    pub matching: usize,
    /// Ports of the endpoints that the Service lacks, by name; those of its other ports, if there are no such ones. At most eight.
    pub others: Vec<OtherPort>,
    /// How many more other ports there are.
    pub more: usize,
}

/// A port that endpoints have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPort {
    /// Empty: none.
    pub name: String,
    pub protocol: Protocol,
    pub endpoints: usize,
}

/// The endpoints of a Service's slices of one family, and how many of them have each port.
#[derive(Debug)]
pub(super) struct Census<'a> {
    endpoints: usize,
    by_port: BTreeMap<(&'a str, Protocol), usize>,
    /// The ports that no port of the Service takes.
    left: BTreeSet<(&'a str, Protocol)>,
}

impl<'a> Census<'a> {
    pub fn of(slices: &[&'a Slice], family: Family, ports: &[ServicePort]) -> Self {
        let taken: BTreeSet<_> = ports.iter().map(|port| (port.name.as_str(), port.protocol)).collect();
        let mut all: BTreeSet<IpAddr> = BTreeSet::new();
        let mut own: BTreeMap<_, BTreeSet<IpAddr>> = BTreeMap::new();
        let mut others: BTreeMap<_, usize> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice.family == family && !slice.endpoints.is_empty()) {
            let addresses = || slice.endpoints.iter().map(|endpoint| endpoint.address);
            all.extend(addresses());
            for port in &slice.ports {
                let port = (port.name.as_str(), port.protocol);
                if taken.contains(&port) {
                    own.entry(port).or_default().extend(addresses());
                } else {
                    // A slice may have thousands of them, so that no address is compared: one in two slices counts twice.
                    *others.entry(port).or_default() += slice.endpoints.len();
                }
            }
        }
        let endpoints = all.len();
        let left = others.keys().copied().collect();
        let own = own.into_iter().map(|(port, addresses)| (port, addresses.len()));
        let by_port = others.into_iter().map(|(port, count)| (port, count.min(endpoints))).chain(own).collect();
        Self { endpoints, by_port, left }
    }

    pub fn mismatch(&self, port: &ServicePort, family: Family) -> Option<PortMismatch> {
        let own = (port.name.as_str(), port.protocol);
        let matching = self.by_port.get(&own).copied().unwrap_or_default();
        if matching == self.endpoints {
            return None;
        }
        let is_other = |other| if self.left.is_empty() { other != own } else { self.left.contains(&other) };
        let others = || self.by_port.iter().filter(|(other, _)| is_other(**other));
        let kept = others().take(OTHERS_MAX);
        let kept = kept.map(|((name, protocol), endpoints)| OtherPort {
            name: (*name).to_owned(),
            protocol: *protocol,
            endpoints: *endpoints,
        });
        let others_count = others().count();
        Some(PortMismatch {
            family,
            endpoints: self.endpoints,
            matching,
            others: kept.collect(),
            more: others_count.saturating_sub(OTHERS_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Listed, Needs};
    use super::*;
    use lb_model::{Endpoint, ObjectName, SlicePort};

    fn slice(family: Family, addresses: &[&str], ports: &[(&str, Protocol)]) -> Slice {
        let endpoint = |address: &&str| Endpoint {
            address: address.parse().expect("an address"),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            zone: None,
            hints: None,
            uid_hash: 0,
        };
        let port =
            |(name, protocol): &(&str, Protocol)| SlicePort { name: (*name).into(), port: 80, protocol: *protocol };
        Slice {
            name: ObjectName::new("demo", "web-1"),
            service: "web".into(),
            family,
            ports: ports.iter().map(port).collect(),
            endpoints: addresses.iter().map(endpoint).collect(),
            changed_at: None,
        }
    }

    /// Family, endpoints that have the port `http` of all, and the other ports.
    fn found(slices: &[Slice]) -> Vec<String> {
        let port = |name: &str, port| ServicePort { name: name.into(), port, protocol: Protocol::Tcp, node_port: None };
        let (ports, needs) = ([port("http", 80), port("metrics", 81)], [Needs { cluster: true, local: false }; 2]);
        let found = Listed::new(slices.iter().collect()).mismatches(&ports[0], &ports, needs);
        let other = |other: &OtherPort| format!(", {} {}/{}", other.endpoints, other.name, other.protocol);
        let words = |one: &PortMismatch| {
            let others: String = one.others.iter().map(other).collect();
            format!("{} {} of {}{others}", one.family, one.matching, one.endpoints)
        };
        found.iter().map(words).collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn endpoints_with_another_port_name_or_protocol_lack_the_port() {
        let three = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let (http, htpp) = (("http", Protocol::Tcp), ("htpp", Protocol::Tcp));
        let of = |ports: &[(&str, Protocol)]| found(&[slice(Family::V4, &three, ports)]);
        assert_eq!(of(&[http, htpp]), NONE);
        assert_eq!(of(&[htpp, ("", Protocol::Udp)]), ["IPv4 0 of 3, 3 /UDP, 3 htpp/TCP"]);
        assert_eq!(of(&[("http", Protocol::Udp)]), ["IPv4 0 of 3, 3 http/UDP"]);
        assert_eq!(of(&[]), ["IPv4 0 of 3"]);
        // Another port of the Service takes it: it is named where there is no other.
        let metrics = ("metrics", Protocol::Tcp);
        assert_eq!(of(&[htpp, metrics]), ["IPv4 0 of 3, 3 htpp/TCP"]);
        assert_eq!(of(&[metrics]), ["IPv4 0 of 3, 3 metrics/TCP"]);
        // Each family counts for itself.
        let both = [slice(Family::V4, &three, &[http]), slice(Family::V6, &["fd00::1"], &[htpp])];
        assert_eq!(found(&both), ["IPv6 0 of 1, 1 htpp/TCP"]);
    }

    #[test]
    fn endpoints_count_once_and_slices_without_any_not_at_all() {
        let (http, htpp) = (("http", Protocol::Tcp), ("htpp", Protocol::Tcp));
        let one = slice(Family::V4, &["10.0.0.1"], &[htpp]);
        assert_eq!(found(&[one.clone(), one.clone()]), ["IPv4 0 of 1, 1 htpp/TCP"]);
        // The endpoint has the port by another slice.
        assert_eq!(found(&[one.clone(), slice(Family::V4, &["10.0.0.1"], &[http])]), NONE);
        assert_eq!(found(&[one, slice(Family::V4, &["10.0.0.2"], &[http])]), ["IPv4 1 of 2, 1 htpp/TCP"]);
        assert_eq!(found(&[slice(Family::V4, &[], &[htpp])]), NONE);
        assert_eq!(found(&[]), NONE);
    }

    #[test]
    fn few_of_many_ports_are_named() {
        let names: Vec<String> = (10..30).map(|number| format!("p{number}")).collect();
        let ports: Vec<(&str, Protocol)> = names.iter().map(|name| (name.as_str(), Protocol::Tcp)).collect();
        let slice = slice(Family::V4, &["10.0.0.1"], &ports);
        let port = ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp, node_port: None };
        let found = Listed::new(vec![&slice]).mismatches(&port, &[], [Needs { cluster: true, local: true }; 2]);
        assert_eq!((found[0].others.len(), found[0].more), (OTHERS_MAX, 20 - OTHERS_MAX));
    }
}
