//! Endpoints whose slices lack a port of their Service: they have ports of other names or protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_model::{Family, Protocol, ServicePort, Slice};

/// So many other ports are kept by name.
const OTHERS_MAX: usize = 8;

/// Slices of a Service that have endpoints, but not this port of the Service, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortMismatch {
    /// The endpoints of the slices, in any state.
    pub endpoints: usize,
    /// Those of them that have the port; 0: the service port has no endpoint.
    pub matching: usize,
    /// Ports of the endpoints that the Service lacks, by name; those of its other ports, if there are no such ones. At most eight.
    others: Vec<OtherPort>,
    /// How many more other ports there are.
    more: usize,
}

/// A port that endpoints have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OtherPort {
    /// Empty: none.
    name: String,
    protocol: Protocol,
    endpoints: usize,
}

impl PortMismatch {
    /// The port that the slices lack, in words.
    pub fn wanted(&self, port: &ServicePort) -> String {
        self.words(&port.name, port.protocol, port.protocol)
    }

    /// Which ports the endpoints have, and which they lack: `` 3 endpoints have port `htpp`; none has `http` ``.
    pub fn found(&self, port: &ServicePort) -> String {
        let one = |(index, other): (usize, &OtherPort)| {
            let noun = match (index, other.endpoints) {
                (0, 1) => " endpoint has",
                (0, _) => " endpoints have",
                (_, 1) => " has",
                _ => " have",
            };
            format!("{}{noun} {}", other.endpoints, self.words(&other.name, other.protocol, port.protocol))
        };
        let mut found: Vec<String> = self.others.iter().enumerate().map(one).collect();
        match (self.others.len(), self.endpoints) {
            (0, 1) => found.push("1 endpoint has no port".to_owned()),
            (0, count) => found.push(format!("{count} endpoints have no port")),
            _ if self.more > 0 => found.push(format!("and {} more ports", self.more)),
            _ => {}
        }
        let wanted = self.wanted(port);
        format!("{}; none has {}", found.join(", "), wanted.strip_prefix("port ").unwrap_or(&wanted))
    }

    /// A port in words, with its protocol where names alone do not tell the ports apart.
    fn words(&self, name: &str, protocol: Protocol, own: Protocol) -> String {
        let is_told = self.others.iter().any(|other| other.protocol != own);
        match (name, is_told) {
            ("", false) => "a port without a name".to_owned(),
            ("", true) => format!("a {protocol} port without a name"),
            (_, false) => format!("port `{name}`"),
            (_, true) => format!("{protocol} port `{name}`"),
        }
    }
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

    pub fn mismatch(&self, port: &ServicePort) -> Option<PortMismatch> {
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
            endpoints: self.endpoints,
            matching,
            others: kept.collect(),
            more: others_count.saturating_sub(OTHERS_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
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
            created_s: None,
            refused: None,
        }
    }

    fn port(name: &str, port: u16) -> ServicePort {
        ServicePort { name: name.into(), port, protocol: Protocol::Tcp, node_port: None }
    }

    /// Family, endpoints that have the port `http` of all, and the other ports.
    fn found(slices: &[Slice]) -> Vec<String> {
        let ports = [port("http", 80), port("metrics", 81)];
        let slices: Vec<&Slice> = slices.iter().collect();
        let other = |other: &OtherPort| format!(", {} {}/{}", other.endpoints, other.name, other.protocol);
        let words = |family| {
            let one = Census::of(&slices, family, &ports).mismatch(&ports[0])?;
            let others: String = one.others.iter().map(other).collect();
            Some(format!("{family} {} of {}{others}", one.matching, one.endpoints))
        };
        Family::ALL.into_iter().filter_map(words).collect()
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
        let found = Census::of(&[&slice], Family::V4, &[]).mismatch(&port("http", 80)).expect("no port `http`");
        assert_eq!((found.others.len(), found.more), (OTHERS_MAX, 20 - OTHERS_MAX));
        assert!(found.found(&port("http", 80)).ends_with(", and 12 more ports; none has `http`"));
    }

    #[test]
    fn the_ports_that_are_there_and_the_one_that_is_not_are_named() {
        let said = |name: &str, others: &[(&str, Protocol, usize)]| {
            let other = |(name, protocol, endpoints): &(&str, Protocol, usize)| OtherPort {
                name: (*name).to_owned(),
                protocol: *protocol,
                endpoints: *endpoints,
            };
            let others = others.iter().map(other).collect();
            PortMismatch { endpoints: 3, matching: 0, others, more: 0 }.found(&port(name, 80))
        };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        assert_eq!(said("http", &[("htpp", tcp, 3)]), "3 endpoints have port `htpp`; none has `http`");
        assert_eq!(
            said("http", &[("htpp", tcp, 1), ("metrics", tcp, 2), ("more", tcp, 1)]),
            "1 endpoint has port `htpp`, 2 have port `metrics`, 1 has port `more`; none has `http`"
        );
        assert_eq!(said("", &[("http", tcp, 3)]), "3 endpoints have port `http`; none has a port without a name");
        assert_eq!(said("http", &[("", tcp, 3)]), "3 endpoints have a port without a name; none has `http`");
        assert_eq!(said("dns", &[("dns", udp, 3)]), "3 endpoints have UDP port `dns`; none has TCP port `dns`");
        assert_eq!(
            said("", &[("", udp, 3)]),
            "3 endpoints have a UDP port without a name; none has a TCP port without a name"
        );
        assert_eq!(said("http", &[]), "3 endpoints have no port; none has `http`");
    }
}
