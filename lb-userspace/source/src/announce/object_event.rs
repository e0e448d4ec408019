//! What an Event says, and about which object.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::ApiError;
use lb_model::PortKey;
use lb_model::{Refusal, uid_hash};

/// The longest note that the API takes.
const NOTE_MAX: usize = 1024;
/// The longest name of an object: the Event's is made of it.
const NAME_MAX: usize = 240;

const NODE: &str = "Node";
/// Where Events about objects without a namespace are, as the API server demands (`ValidateEventCreate`).
const NODES_NAMESPACE: &str = "default";

/// What a Kubernetes Event says of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectEvent {
    /// `Service`, `EndpointSlice` or `Node`.
    pub kind: &'static str,
    /// Empty: of a Node.
    pub namespace: String,
    pub name: String,
    /// One word, as `Refused`.
    pub reason: &'static str,
    pub note: String,
}

impl ObjectEvent {
    /// About a part of the truth that is not served. `None`: it is about no object that an Event can be about.
    pub fn of_refusal(refusal: &Refusal) -> Option<Self> {
        let note = format!("{}: {}; {}", refusal.object, refusal.reason, refusal.remedy);
        Self::about(&refusal.object, "Refused", note)
    }

    /// About a health-check node port that a node could not open.
    pub fn of_health_check(service: &str, node: &str, problem: &str) -> Option<Self> {
        let object = format!("Service {service}");
        Self::about(&object, "HealthCheckNodePortFailed", format!("node {node}: {problem}"))
    }

    /// About an endpoint that the programs found not to answer.
    pub fn of_ejected(service: &PortKey, endpoint: SocketAddr) -> Option<Self> {
        let why = "left a connection unanswered that another backend answered, or refused one";
        Self::about(
            &format!("Service {service}"),
            "BackendEjected",
            format!("{}: {endpoint} {why}; new flows avoid it", port(service)),
        )
    }

    /// About an endpoint whose active checks fail. It says nothing of the answers: a tenant must not read through the node's eyes.
    pub fn of_unhealthy(service: &PortKey, endpoint: SocketAddr) -> Option<Self> {
        let what = "fails its active checks; it gets no new flows";
        Self::about(&format!("Service {service}"), "BackendUnhealthy", format!("{}: {endpoint} {what}", port(service)))
    }

    /// About a service port that has no endpoint, or two where there is one. `family`: in which.
    pub fn of_endpoints(service: &str, port: &str, family: &str, found: &str, remedy: &str) -> Option<Self> {
        Self::about(
            &format!("Service {service}"),
            "EndpointProblem",
            format!("port {port}, {family}: {found}; {remedy}"),
        )
    }

    /// About a node whose agent gets errors from the API in place of what it follows.
    pub fn of_api_error(node: &str, resource: &str, error: ApiError) -> Option<Self> {
        let (reason, what) = match error {
            ApiError::Unauthorized => {
                ("ApiAccessDenied", "does not accept the agent's credentials (401); give it valid ones")
            }
            ApiError::Forbidden => {
                ("ApiAccessDenied", "forbids it (403); grant the agent get, list and watch of this resource")
            }
            ApiError::NotFound => (
                "ApiVersionMissing",
                "does not have it in the version that the agent asks for (404); serve that version, or run an agent that fits",
            ),
            ApiError::Busy => ("ApiBusy", "has too much to do (429); look at its load and its flow control"),
            ApiError::Client => ("ApiError", "refuses the request (4xx); the agent's log and status have its words"),
            ApiError::Server => ("ApiError", "answers with server errors (5xx); look at the API server"),
        };
        let words = format!(
            "node {node} cannot follow {resource}: the API server {what}. What was known last is served until then"
        );
        Self::about(&format!("Node {node}"), reason, words)
    }

    /// `object` begins as `Service default/web` or `Node n1`.
    fn about(object: &str, reason: &'static str, mut note: String) -> Option<Self> {
        let mut words = object.split_whitespace();
        let kind = ["Service", "EndpointSlice", NODE].into_iter().find(|kind| words.clone().next() == Some(kind))?;
        let name = words.nth(1)?;
        let (namespace, rest) = if kind == NODE { ("", name) } else { name.split_once('/')? };
        // A service port follows the name after a colon: no name has one.
        let name = rest.split(':').next()?;
        if namespace.is_empty() != (kind == NODE) || name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let mut end = note.len().min(NOTE_MAX);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        Some(Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), reason, note })
    }

    /// Name of the Event: the same on every node that says the same, so that a thousand nodes make one Event.
    pub fn event_name(&self) -> String {
        format!("{}.ballast-{:08x}", self.name, uid_hash(&format!("{}/{}/{}", self.kind, self.reason, self.note)))
    }

    /// Namespace of the Event.
    pub fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { NODES_NAMESPACE } else { &self.namespace }
    }

    /// The object. A Node's UID is its name, as in the Events of kubelet and kube-proxy: `kubectl describe node` asks for that.
    pub fn regarding(&self) -> ObjectReference {
        let is_node = self.kind == NODE;
        ObjectReference {
            api_version: Some(self.api_version().to_owned()),
            kind: Some(self.kind.to_owned()),
            namespace: (!is_node).then(|| self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: is_node.then(|| self.name.clone()),
            ..ObjectReference::default()
        }
    }

    /// API group and version of the object.
    fn api_version(&self) -> &'static str {
        if self.kind == "EndpointSlice" { "discovery.k8s.io/v1" } else { "v1" }
    }
}

fn port(service: &PortKey) -> String {
    format!("port {}/{}", service.port, service.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_refusals_name_them() {
        for (object, kind, name) in [
            ("Service default/web", "Service", "web"),
            ("Service default/web:80/TCP", "Service", "web"),
            ("EndpointSlice default/web-1 endpoint 3", "EndpointSlice", "web-1"),
            ("Node n1", "Node", "n1"),
        ] {
            let event = ObjectEvent::of_refusal(&Refusal::new(object, "bad", "mend it")).expect("an object");
            assert_eq!((event.kind, event.event_namespace(), event.name.as_str()), (kind, "default", name));
        }
        for object in ["Node", "Service", "Service web", "map services4"] {
            assert!(ObjectEvent::of_refusal(&Refusal::new(object, "bad", "mend it")).is_none(), "{object}");
        }
    }

    #[test]
    fn a_note_is_cut_and_every_node_gives_it_the_same_name() {
        let event = |reason: &str| {
            ObjectEvent::of_refusal(&Refusal::new("Service d/web", reason, "mend it")).expect("an object")
        };
        // Characters of four bytes: a refusal's reason is cut after 300 of them.
        let length = event(&"𝄞".repeat(2000)).note.len();
        assert!((NOTE_MAX - 3..=NOTE_MAX).contains(&length), "{length}");
        assert_eq!(event("bad").event_name(), event("bad").event_name());
        assert_ne!(event("bad").event_name(), event("worse").event_name());
    }

    #[test]
    fn each_error_of_the_api_is_told_with_a_remedy_on_the_node() {
        for error in ApiError::ALL {
            let event = ObjectEvent::of_api_error("n1", "services", *error).expect("a node");
            assert!(event.note.contains(error.as_str()) && event.note.contains("services"), "{}", event.note);
            let node = event.regarding();
            assert_eq!((node.kind.as_deref(), node.name.as_deref(), node.namespace), (Some("Node"), Some("n1"), None));
        }
        let name = |node: &str| {
            ObjectEvent::of_api_error(node, "services", ApiError::Forbidden).map(|event| event.event_name())
        };
        assert_ne!(name("n1"), name("n2"), "each node has its own");
    }
}
