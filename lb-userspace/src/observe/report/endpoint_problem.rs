//! What is the matter with the endpoints of service ports, as the report has it.

use std::fmt;

use serde::{Deserialize, Serialize};

use lb_model::PortKey;
use lb_model::{NAMED_MAX, fair_share};
use lb_plan::plan::{DesiredService, EndpointProblem};

/// What is the matter with the endpoints of a service port in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointProblemReport {
    pub namespace: String,
    /// Of the Service.
    pub name: String,
    pub port: u16,
    pub protocol: String,
    /// Name of the service port; empty: it has none.
    pub port_name: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Name of the cause, as the reference lists them.
    pub cause: String,
    /// What is the matter, in words.
    pub text: String,
    pub remedy: String,
    /// The port that endpoints lack, in words; null: they have it.
    pub lacks: Option<String>,
    /// Other endpoints have that port, so that nothing may be wrong.
    pub partial: bool,
    /// The usual state of a node under the policy of the Service.
    pub usual: bool,
    /// An Event says so, and this node is the one that posts it.
    #[serde(skip)]
    pub is_event: bool,
}

impl EndpointProblemReport {
    fn new(key: &PortKey, port_name: &str, found: &EndpointProblem) -> Self {
        Self {
            namespace: key.service.namespace.to_string(),
            name: key.service.name.to_string(),
            port: key.port,
            protocol: key.protocol.to_string(),
            port_name: port_name.to_owned(),
            family: found.family.to_string(),
            cause: found.cause.name().to_owned(),
            text: found.to_string(),
            remedy: found.cause.remedy().to_owned(),
            lacks: found.lacks.clone(),
            partial: found.is_partial,
            usual: found.cause.is_usual(),
            is_event: found.cause.has_event() && !found.is_partial && found.is_said_here,
        }
    }

    /// One of `demo/web:80/TCP`, of which this node speaks.
    #[cfg(test)]
    pub(crate) fn example(cause: lb_plan::plan::Cause) -> Self {
        let service = lb_model::ObjectName::new("demo", "web");
        let key = PortKey { service, port: 80, protocol: lb_model::Protocol::Tcp };
        let (family, found, lacks) = (lb_model::Family::V4, "the details".to_owned(), None);
        let (is_partial, is_said_here) = (false, true);
        Self::new(&key, "", &EndpointProblem { family, cause, found, lacks, is_partial, is_said_here })
    }

    /// Those of the service ports, what is wrong first, and how many there are. At most [`NAMED_MAX`], of which each namespace has an equal share.
    pub fn list<'a>(ports: impl Iterator<Item = (&'a PortKey, &'a DesiredService)>) -> (Vec<Self>, u64) {
        let all = ports.flat_map(|(key, service)| service.problems.iter().map(move |found| (key, service, found)));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(.., found)| (found.is_partial, found.cause.is_usual()));
        let named = fair_share(&all, NAMED_MAX, |(key, ..)| &key.service.namespace);
        (named.map(|(key, service, found)| Self::new(key, &service.port_name, found)).collect(), all.len() as u64)
    }

    /// Whether it is about this service port.
    pub fn is_of(&self, namespace: &str, name: &str, port: u16, protocol: &str) -> bool {
        (&*self.namespace, &*self.name, self.port, &*self.protocol) == (namespace, name, port, protocol)
    }

    /// The service port, and the family.
    pub fn subject(&self) -> String {
        format!("{}/{}:{}/{}, {}", self.namespace, self.name, self.port, self.protocol, self.family)
    }
}

impl fmt::Display for EndpointProblemReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::{Family, ObjectName, Protocol};
    use lb_plan::plan::Cause;

    fn key(namespace: &str) -> PortKey {
        PortKey { service: ObjectName::new(namespace, "web"), port: 80, protocol: Protocol::Tcp }
    }

    fn service(cause: Cause, is_partial: bool) -> DesiredService {
        let (found, lacks, is_said_here) = (String::new(), None, true);
        let problem = EndpointProblem { family: Family::V4, cause, found, lacks, is_partial, is_said_here };
        DesiredService { problems: vec![problem], ..DesiredService::default() }
    }

    #[test]
    fn what_is_wrong_comes_first_and_each_namespace_has_its_share() {
        let (wrong, usual) = (service(Cause::OtherPort, false), service(Cause::NotLocal, false));
        let partial = service(Cause::OtherPort, true);
        let greedy: Vec<PortKey> = (0..2 * NAMED_MAX).map(|number| key(&format!("n{}", number % 2))).collect();
        let (small, node) = (key("small"), key("node"));
        let ports = greedy.iter().map(|key| (key, &partial)).chain([(&node, &usual), (&small, &wrong)]);
        let (listed, count) = EndpointProblemReport::list(ports);
        assert_eq!((listed.len(), count), (NAMED_MAX, 2 * NAMED_MAX as u64 + 2));
        let first: Vec<_> = listed.iter().take(3).map(|one| (one.namespace.as_str(), one.usual, one.partial)).collect();
        assert_eq!(first, [("small", false, false), ("node", true, false), ("n0", false, true)]);
        assert_eq!(listed[0].subject(), "small/web:80/TCP, IPv4");
        assert_eq!(listed.iter().take(3).map(|one| one.is_event).collect::<Vec<_>>(), [true, false, false]);
    }
}
