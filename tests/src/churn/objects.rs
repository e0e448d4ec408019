//! The Services and EndpointSlices of the stub API.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// Where its objects live.
const NAMESPACE: &str = "churn";
/// The backends' port.
pub const PORT: u16 = 8080;

/// A service of one TCP port, 80.
pub fn service(name: &str, cluster_ip: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ipFamilies": ["IPv4"], "type": "ClusterIP",
            "ports": [{"name": "p", "protocol": "TCP", "port": 80, "targetPort": PORT}]},
    })
}

/// Its slice: each endpoint with the number of its pod.
pub fn slice(service: &str, endpoints: impl Iterator<Item = (Ipv4Addr, u64)>) -> Value {
    let endpoint = |(address, pod): (Ipv4Addr, u64)| {
        let pod = format!("{service}-{address}-{pod}");
        json!({"addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod, "uid": pod}})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": NAMESPACE, "name": format!("{service}-4"), "uid": format!("{service}-4"),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "p", "protocol": "TCP", "port": PORT}],
        "endpoints": endpoints.map(endpoint).collect::<Vec<_>>(),
    })
}
