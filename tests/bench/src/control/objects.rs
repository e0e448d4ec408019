//! Services and slices as the API server stores them, with what controllers and users leave in them.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::store::Entry;

/// Where all objects are.
pub const NAMESPACE: &str = "bench";
/// Port of every service, and that of every backend.
pub const PORT: u16 = 80;
pub const TARGET_PORT: u16 = 8080;
/// Endpoints of each service.
pub const ENDPOINTS: usize = 4;

/// First cluster IP of the many services; below it are those that are probed.
const FIRST_CLUSTER_IP: u32 = u32::from_be_bytes([10, 96, 4, 0]);
/// First address of the endpoints that nobody talks to.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([172, 20, 0, 1]);
const CREATED: &str = "2026-01-01T00:00:00Z";

/// Everything that is stored for the services of these numbers: service, address, slice. Nobody is at their endpoints.
pub fn stored(numbers: std::ops::Range<usize>) -> impl Iterator<Item = Entry> {
    stored_with(numbers, |number| stored_slice(number, 0))
}

/// [`stored`] with the same endpoints for all.
pub fn stored_at(numbers: std::ops::Range<usize>, endpoints: [Ipv4Addr; ENDPOINTS]) -> impl Iterator<Item = Entry> {
    stored_with(numbers, move |number| slice_of(number, 0, &endpoints))
}

fn stored_with(numbers: std::ops::Range<usize>, slice: impl Fn(usize) -> Entry) -> impl Iterator<Item = Entry> {
    numbers.flat_map(move |number| {
        let (name, address) = (name(number), cluster_ip(number));
        let slice = slice(number);
        [
            (format!("/registry/services/specs/{NAMESPACE}/{name}"), stored_service(number)),
            (format!("/registry/ipaddresses/{address}"), stored_address(&name, address, number)),
            slice,
        ]
    })
}

/// The slice of a service. With every other `version` its last endpoint is ready, or not.
pub fn stored_slice(number: usize, version: usize) -> Entry {
    let addresses: [Ipv4Addr; ENDPOINTS] = std::array::from_fn(|index| endpoint_address(number, index));
    slice_of(number, version, &addresses)
}

fn slice_of(number: usize, version: usize, addresses: &[Ipv4Addr]) -> Entry {
    let service = name(number);
    let slice_name = format!("{service}-x{:04x}", number % 0xffff);
    let endpoints: Vec<Value> = (0..)
        .zip(addresses)
        .map(|(index, address)| {
            let ready = index + 1 < addresses.len() || version.is_multiple_of(2);
            endpoint(*address, ready, number * ENDPOINTS + index)
        })
        .collect();
    let mut object = slice(&slice_name, &service, &endpoints);
    let metadata = &mut object["metadata"];
    metadata["uid"] = json!(uid(2, number));
    metadata["creationTimestamp"] = json!(CREATED);
    metadata["generation"] = json!(version + 1);
    metadata["generateName"] = json!(format!("{service}-"));
    metadata["labels"]["app.kubernetes.io/name"] = json!(service);
    metadata["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": CREATED});
    metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Service", "name": service, "uid": uid(1, number),
        "controller": true, "blockOwnerDeletion": true}]);
    metadata["managedFields"] = json!([{"apiVersion": "discovery.k8s.io/v1", "fieldsType": "FieldsV1",
        "manager": "kube-controller-manager", "operation": "Update", "time": CREATED,
        "fieldsV1": {"f:addressType": {}, "f:endpoints": {}, "f:ports": {}, "f:metadata": {"f:generateName": {},
            "f:labels": {".": {}, "f:kubernetes.io/service-name": {}, "f:endpointslice.kubernetes.io/managed-by": {}},
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"x\"}": {}}}}}]);
    (format!("/registry/endpointslices/{NAMESPACE}/{slice_name}"), object)
}

/// A service as a user writes it.
pub fn service(name: &str, cluster_ip: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "ClusterIP", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET_PORT}],
        },
    })
}

/// A slice as a controller writes it.
pub fn slice(name: &str, service: &str, endpoints: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": TARGET_PORT}],
        "endpoints": endpoints,
    })
}

/// An endpoint that a pod serves.
pub fn endpoint(address: Ipv4Addr, ready: bool, number: usize) -> Value {
    json!({
        "addresses": [address],
        "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "nodeName": format!("worker-{}", number % 100),
        "zone": "zone-a",
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("pod-{number}"), "uid": uid(3, number)},
    })
}

/// Cluster IP of a service that is probed.
pub fn probed_cluster_ip(number: usize) -> Ipv4Addr {
    let offset = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from_be_bytes([10, 96, 0, 10]).saturating_add(offset))
}

/// Name of one of the many services.
pub fn name(number: usize) -> String {
    format!("service-{number:06}")
}

/// Its cluster IP.
pub fn cluster_ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_CLUSTER_IP.saturating_add(u32::try_from(number).unwrap_or(u32::MAX)))
}

fn endpoint_address(number: usize, index: usize) -> Ipv4Addr {
    let offset = u32::try_from(number * ENDPOINTS + index).unwrap_or(u32::MAX);
    Ipv4Addr::from(FIRST_ENDPOINT.saturating_add(offset))
}

fn uid(kind: usize, number: usize) -> String {
    format!("0000000{kind}-0000-4000-8000-{number:012x}")
}

fn stored_service(number: usize) -> Value {
    let name = name(number);
    let mut object = service(&name, cluster_ip(number));
    object["metadata"]["uid"] = json!(uid(1, number));
    object["metadata"]["creationTimestamp"] = json!(CREATED);
    object["metadata"]["labels"] = json!({"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "bench"});
    object["metadata"]["managedFields"] = json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubectl",
        "operation": "Update", "time": CREATED, "fieldsV1": {"f:spec": {"f:internalTrafficPolicy": {}, "f:selector": {},
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:targetPort": {}}},
            "f:sessionAffinity": {}, "f:type": {}}}}]);
    object["spec"]["selector"] = json!({"app.kubernetes.io/name": name});
    object["spec"]["sessionAffinity"] = json!("None");
    object["spec"]["internalTrafficPolicy"] = json!("Cluster");
    object["status"] = json!({"loadBalancer": {}});
    object
}

/// What the API server's allocator keeps for a cluster IP; it would make the missing ones itself, meanwhile.
fn stored_address(service: &str, address: Ipv4Addr, number: usize) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address.to_string(), "uid": uid(4, number), "creationTimestamp": CREATED,
            "labels": {"ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": NAMESPACE, "name": service}},
    })
}
