//! Service ports whose slices have endpoints with other ports, as the report has them.

use std::fmt;

use serde::{Deserialize, Serialize};

use lb_model::PortKey;
use lb_model::{NAMED_MAX, fair_share};
use lb_plan::plan::{DesiredService, PortMismatch};

/// Slices of a Service that have endpoints, but not this port of the Service, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PortMismatchReport {
    pub namespace: String,
    /// Of the Service.
    pub name: String,
    pub port: u16,
    pub protocol: String,
    /// Name of the service port; empty: it has none.
    pub port_name: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Endpoints of the Service's slices of this family, in any state.
    pub endpoints: u64,
    /// Those of them that have the port; 0: the service port has no endpoint.
    pub matching: u64,
    /// Ports of the endpoints that the Service lacks; those of its other ports, if there are no such ones. At most eight.
    pub others: Vec<OtherPortReport>,
    /// How many more other ports there are.
    pub more: u64,
}

/// A port that endpoints have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct OtherPortReport {
    /// Empty: it has none.
    pub name: String,
    pub protocol: String,
    pub endpoints: u64,
}

impl PortMismatchReport {
    fn new(key: &PortKey, service: &DesiredService, found: &PortMismatch) -> Self {
        let others = found.others.iter().map(|other| OtherPortReport {
            name: other.name.clone(),
            protocol: other.protocol.to_string(),
            endpoints: other.endpoints as u64,
        });
        Self {
            namespace: key.service.namespace.to_string(),
            name: key.service.name.to_string(),
            port: key.port,
            protocol: key.protocol.to_string(),
            port_name: service.port_name.clone(),
            family: found.family.to_string(),
            endpoints: found.endpoints as u64,
            matching: found.matching as u64,
            others: others.collect(),
            more: found.more as u64,
        }
    }

    /// Those of the service ports, the ones without any endpoint first, and how many there are. At most [`NAMED_MAX`], of which each namespace has an
    /// equal share.
    pub fn list<'a>(ports: impl Iterator<Item = (&'a PortKey, &'a DesiredService)>) -> (Vec<Self>, u64) {
        let all = ports.flat_map(|(key, service)| service.mismatches.iter().map(move |found| (key, service, found)));
        let (mut all, others): (Vec<_>, Vec<_>) = all.partition(|(.., found)| found.matching == 0);
        all.extend(others);
        let named = fair_share(&all, NAMED_MAX, |(key, ..)| &key.service.namespace);
        (named.map(|(key, service, found)| Self::new(key, service, found)).collect(), all.len() as u64)
    }

    /// The service port has no endpoint in this family.
    pub fn is_total(&self) -> bool {
        self.matching == 0
    }

    /// Whether it is about this service port.
    pub fn is_of(&self, namespace: &str, name: &str, port: u16, protocol: &str) -> bool {
        (&*self.namespace, &*self.name, self.port, &*self.protocol) == (namespace, name, port, protocol)
    }

    /// The service port, and the family.
    pub fn subject(&self) -> String {
        format!("{}/{}:{}/{}, {}", self.namespace, self.name, self.port, self.protocol, self.family)
    }

    /// The port that the slices lack.
    pub fn wanted(&self) -> String {
        self.port_words(&self.port_name, &self.protocol)
    }

    /// A port in words, with its protocol where names alone do not tell the ports apart.
    fn port_words(&self, name: &str, protocol: &str) -> String {
        let is_told = self.others.iter().any(|other| other.protocol != self.protocol);
        match (name, is_told) {
            ("", false) => "a port without a name".to_owned(),
            ("", true) => format!("a {protocol} port without a name"),
            (_, false) => format!("port `{name}`"),
            (_, true) => format!("{protocol} port `{name}`"),
        }
    }
}

/// Which ports the endpoints have, and which they lack: `` 3 endpoints have port `htpp`; none has `http` ``.
impl fmt::Display for PortMismatchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, other) in self.others.iter().enumerate() {
            let (before, noun) = match (index, other.endpoints) {
                (0, 1) => ("", " endpoint has"),
                (0, _) => ("", " endpoints have"),
                (_, 1) => (", ", " has"),
                _ => (", ", " have"),
            };
            write!(f, "{before}{}{noun} {}", other.endpoints, self.port_words(&other.name, &other.protocol))?;
        }
        match (self.others.len(), self.endpoints) {
            (0, 1) => f.write_str("1 endpoint has no port")?,
            (0, count) => write!(f, "{count} endpoints have no port")?,
            _ if self.more > 0 => write!(f, ", and {} more ports", self.more)?,
            _ => {}
        }
        let wanted = self.wanted();
        write!(f, "; none has {}", wanted.strip_prefix("port ").unwrap_or(&wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::{Family, ObjectName, Protocol};
    use lb_plan::plan::OtherPort;

    fn key(namespace: &str) -> PortKey {
        PortKey { service: ObjectName::new(namespace, "web"), port: 80, protocol: Protocol::Tcp }
    }

    fn service(port_name: &str, matching: usize, others: &[(&str, Protocol, usize)]) -> DesiredService {
        let other = |(name, protocol, endpoints): &(&str, Protocol, usize)| OtherPort {
            name: (*name).to_owned(),
            protocol: *protocol,
            endpoints: *endpoints,
        };
        let others = others.iter().map(other).collect();
        let mismatch = PortMismatch { family: Family::V4, endpoints: 3, matching, others, more: 0 };
        DesiredService { port_name: port_name.to_owned(), mismatches: vec![mismatch], ..DesiredService::default() }
    }

    #[test]
    fn the_ports_that_are_there_and_the_one_that_is_not_are_named() {
        let said = |port_name: &str, others: &[(&str, Protocol, usize)]| {
            let service = service(port_name, 0, others);
            PortMismatchReport::new(&key("demo"), &service, &service.mismatches[0]).to_string()
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
        let many = PortMismatchReport { more: 4, ..PortMismatchReport::default() };
        let many = PortMismatchReport { others: vec![OtherPortReport::default()], port_name: "http".into(), ..many };
        assert!(many.to_string().contains(", and 4 more ports; none has `http`"), "{many}");
    }

    #[test]
    fn ports_without_any_endpoint_come_first_and_each_namespace_has_its_share() {
        let (total, partial) = (service("http", 0, &[]), service("http", 1, &[]));
        let greedy: Vec<PortKey> = (0..2 * NAMED_MAX).map(|number| key(&format!("n{}", number % 2))).collect();
        let small = key("small");
        let ports = greedy.iter().map(|key| (key, &partial)).chain([(&small, &total)]);
        let (listed, count) = PortMismatchReport::list(ports);
        assert_eq!((listed.len(), count), (NAMED_MAX, 2 * NAMED_MAX as u64 + 1));
        assert_eq!((listed[0].namespace.as_str(), listed[0].is_total(), listed[1].is_total()), ("small", true, false));
        assert_eq!(listed[0].subject(), "small/web:80/TCP, IPv4");
    }
}
