//! Objects read from a list without what nobody here looks at. `managedFields` alone is a third of their text, and most of the
//! small pieces of memory that reading it takes.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, Time},
};
use serde::{Deserialize, de::DeserializeOwned};

/// A kind that lists bring.
pub trait Lean: Sized {
    /// What is read of its text: fields that are not there are skipped, however deep they are.
    type Text: DeserializeOwned + Into<Self>;
}

/// Reads a list.
pub fn read_list<K: Lean>(text: &[u8]) -> serde_json::Result<(ListMeta, Vec<K>)> {
    let list: List<K::Text> = serde_json::from_slice(text)?;
    Ok((list.metadata, list.items.into_iter().flatten().map(Into::into).collect()))
}

#[derive(Deserialize)]
struct List<T> {
    metadata: ListMeta,
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl From<Metadata> for ObjectMeta {
    fn from(read: Metadata) -> Self {
        Self {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels,
            annotations: read.annotations,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
pub struct ServiceText {
    metadata: Metadata,
    spec: Option<core::ServiceSpec>,
    status: Option<core::ServiceStatus>,
}

impl Lean for core::Service {
    type Text = ServiceText;
}

impl From<ServiceText> for core::Service {
    fn from(read: ServiceText) -> Self {
        Self { metadata: read.metadata.into(), spec: read.spec, status: read.status }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceText {
    metadata: Metadata,
    address_type: String,
    endpoints: Option<Vec<discovery::Endpoint>>,
    ports: Option<Vec<discovery::EndpointPort>>,
}

impl Lean for discovery::EndpointSlice {
    type Text = SliceText;
}

impl From<SliceText> for discovery::EndpointSlice {
    fn from(read: SliceText) -> Self {
        Self {
            metadata: read.metadata.into(),
            address_type: read.address_type,
            endpoints: read.endpoints,
            ports: read.ports,
        }
    }
}

#[derive(Deserialize)]
pub struct NodeText {
    metadata: Metadata,
    spec: Option<NodeSpecText>,
    status: Option<NodeStatusText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSpecText {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
    taints: Option<Vec<core::Taint>>,
}

/// The rest of it, with all images that the node holds, is most of a Node.
#[derive(Deserialize)]
struct NodeStatusText {
    addresses: Option<Vec<core::NodeAddress>>,
}

impl Lean for core::Node {
    type Text = NodeText;
}

impl From<NodeText> for core::Node {
    fn from(read: NodeText) -> Self {
        let spec = read.spec.map(|spec| core::NodeSpec {
            pod_cidr: spec.pod_cidr,
            pod_cidrs: spec.pod_cidrs,
            taints: spec.taints,
            ..core::NodeSpec::default()
        });
        let status =
            read.status.map(|status| core::NodeStatus { addresses: status.addresses, ..core::NodeStatus::default() });
        Self { metadata: read.metadata.into(), spec, status }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::convert;

    fn meta() -> serde_json::Value {
        json!({"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u"}],
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:ports": {}}}}]})
    }

    fn without_the_rest(mut meta: ObjectMeta) -> ObjectMeta {
        (meta.managed_fields, meta.owner_references, meta.generation) = (None, None, None);
        meta
    }

    #[test]
    fn a_service_is_read_as_it_stands_but_for_what_nobody_looks_at() {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": meta(),
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "nodePort": 30080}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1", "ipMode": "Proxy"}]}}});
        let text = json!({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [object]}).to_string();
        let (list, read) = read_list::<core::Service>(text.as_bytes()).expect("a list");
        let mut whole: core::Service = serde_json::from_value(object).expect("a service");
        whole.metadata = without_the_rest(whole.metadata);
        assert_eq!((list.resource_version.as_deref(), list.continue_.as_deref()), (Some("9"), Some("more")));
        assert_eq!(read, [whole]);
    }

    #[test]
    fn a_slice_is_read_as_it_stands_but_for_what_nobody_looks_at() {
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta(),
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "nodeName": "n1",
                "hints": {"forZones": [{"name": "z"}]}, "targetRef": {"kind": "Pod", "uid": "p"}}]});
        let text = json!({"metadata": {}, "items": [object]}).to_string();
        let (_, read) = read_list::<discovery::EndpointSlice>(text.as_bytes()).expect("a list");
        let mut whole: discovery::EndpointSlice = serde_json::from_value(object).expect("a slice");
        whole.metadata = without_the_rest(whole.metadata);
        assert_eq!(read, [whole]);
    }

    #[test]
    fn a_node_is_read_with_what_is_converted_of_it() {
        let object = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}, "managedFields": [{"manager": "kubelet"}]},
            "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"], "providerID": "p", "unschedulable": true,
                "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "ExternalIP", "address": "198.51.100.1"}],
                "images": [{"names": ["i"], "sizeBytes": 1}], "conditions": [{"type": "Ready", "status": "True"}]}});
        let text = json!({"metadata": {}, "items": [object]}).to_string();
        let (_, read) = read_list::<core::Node>(text.as_bytes()).expect("a list");
        let whole: core::Node = serde_json::from_value(object).expect("a node");
        assert_eq!(read[0].status.as_ref().and_then(|status| status.images.as_ref()), None);
        assert_eq!(convert::node(&read[0]), convert::node(&whole));
        assert_eq!(convert::peer(&read[0]), convert::peer(&whole));
        assert_eq!(convert::peer(&read[0]).object.expect("a peer").addresses.len(), 2);
    }

    #[test]
    fn what_is_null_is_not_there() {
        let nothing = br#"{"metadata": {"resourceVersion": "9"}, "items": null}"#;
        assert!(read_list::<core::Service>(nothing).expect("a list").1.is_empty());
        let empty = br#"{"metadata": {}, "items": [{"metadata": {}, "addressType": "IPv6", "endpoints": null, "ports": null}]}"#;
        let (_, slices) = read_list::<discovery::EndpointSlice>(empty).expect("a list");
        assert!(slices[0].endpoints.is_none() && slices[0].ports.is_none());
        assert!(read_list::<discovery::EndpointSlice>(b"{\"items\": []}").is_err(), "no list");
    }
}
