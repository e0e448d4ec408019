//! Services, slices and Nodes with the fields that are used here and no others, all of them optional.
//!
//! A field that is not here cannot make an object unreadable, and takes no memory. `managedFields` alone is a third of an object's text, and other
//! parties' annotations take up to 256 KiB. A field that is null counts as absent.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};

use serde_json::Value;

use lb_model::{ObjectName, UnreadKind};

/// Label of a Service that another proxy serves.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Label of a Service or slice that no proxy serves.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label of a slice: the Service that it belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label of a Node: the zone that topology hints speak of.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Annotation of a slice: when the pod or Service changed that it was written for.
pub const CHANGE_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// What this load balancer's own annotations begin with.
pub const ANNOTATION_PREFIX: &str = "ballast.dev/";

/// A kind of the Kubernetes API.
pub trait ApiKind: DeserializeOwned + Send + 'static {
    /// As objects name it.
    const NAME: &'static str;
    /// Where all objects of the kind are listed.
    const PATH: &'static str;
    /// Whether an object's name is unique in its namespace only.
    const IS_NAMESPACED: bool = true;

    /// What is not known of services where an object cannot be read; `None`: nothing is missing.
    fn unread(_name: &ObjectName, _owner: &Owner) -> Option<UnreadKind> {
        None
    }
}

/// What an object says of the Service that it belongs to, by its label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Its labels cannot be read.
    #[default]
    Unknown,
    Nobody,
    Service(String),
}

impl Owner {
    /// By the labels of an object.
    pub fn of(labels: &Value) -> Self {
        match (labels, labels.get(SERVICE_NAME_LABEL)) {
            (_, Some(Value::String(name))) if !name.is_empty() => Self::Service(name.clone()),
            (Value::Object(_) | Value::Null, None) => Self::Nobody,
            _ => Self::Unknown,
        }
    }
}

/// What an object says of itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    /// Those that are named above.
    #[serde(deserialize_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Those that are named above.
    #[serde(deserialize_with = "annotations")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: ServiceStatus,
}

impl ApiKind for Service {
    const NAME: &'static str = "Service";
    const PATH: &'static str = "/api/v1/services";

    fn unread(name: &ObjectName, _owner: &Owner) -> Option<UnreadKind> {
        if name.is_unreadable() {
            return Some(UnreadKind::Unknown(format!("Service {name}")));
        }
        Some(UnreadKind::Service(name.clone()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    pub ports: Option<Vec<ServicePort>>,
    pub internal_traffic_policy: Option<String>,
    pub external_traffic_policy: Option<String>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    pub load_balancer_source_ranges: Option<Vec<String>>,
    pub health_check_node_port: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Option<String>,
    pub port: Option<i32>,
    pub protocol: Option<String>,
    pub node_port: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    pub ingress: Option<Vec<Ingress>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: Option<String>,
    pub ip_mode: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    pub address_type: Option<String>,
    pub endpoints: Option<Vec<Endpoint>>,
    pub ports: Option<Vec<EndpointPort>>,
}

impl ApiKind for EndpointSlice {
    const NAME: &'static str = "EndpointSlice";
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";

    fn unread(name: &ObjectName, owner: &Owner) -> Option<UnreadKind> {
        match owner {
            Owner::Unknown => Some(UnreadKind::Unknown(format!("EndpointSlice {name}"))),
            Owner::Nobody => None,
            Owner::Service(service) => {
                let service = ObjectName::new(name.namespace.clone(), service.as_str());
                Some(UnreadKind::Slice { name: name.clone(), service })
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    pub addresses: Option<Vec<String>>,
    pub conditions: Option<Conditions>,
    pub node_name: Option<String>,
    pub zone: Option<String>,
    pub hints: Option<Hints>,
    pub target_ref: Option<TargetRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    pub for_zones: Option<Vec<Hint>>,
    pub for_nodes: Option<Vec<Hint>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Hint {
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    pub name: Option<String>,
    pub port: Option<i32>,
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: NodeStatus,
}

impl ApiKind for Node {
    const NAME: &'static str = "Node";
    const PATH: &'static str = "/api/v1/nodes";
    const IS_NAMESPACED: bool = false;
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceCidrSpec,
}

impl ApiKind for ServiceCidr {
    const NAME: &'static str = "ServiceCIDR";
    const PATH: &'static str = "/apis/networking.k8s.io/v1/servicecidrs";
    const IS_NAMESPACED: bool = false;
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    pub cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
    pub taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: Option<String>,
}

/// The rest of it, with all images that the node holds, is most of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Option<Vec<NodeAddress>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub address: Option<String>,
}

fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn labels<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let used = [PROXY_NAME_LABEL, HEADLESS_LABEL, SERVICE_NAME_LABEL, ZONE_LABEL];
    from.deserialize_option(Used(move |key: &str| used.contains(&key)))
}

fn annotations<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    from.deserialize_option(Used(|key: &str| key.starts_with(ANNOTATION_PREFIX) || key == CHANGE_ANNOTATION))
}

/// Keeps what is used of a map of texts; what others have there may be anything.
struct Used<F>(F);

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Used<F> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a map")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if (self.0)(&key) {
                kept.extend(map.next_value::<Option<String>>()?.map(|value| (key, value)));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept)
    }
}

#[cfg(test)]
#[path = "lean_tests.rs"]
mod tests;
