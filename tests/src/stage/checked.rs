//! A service that load balancers ask about at a health-check node port.

use crate::topology::Node;
use serde_json::json;

/// A Service with a health-check node port, its endpoints (address, node, ready), and this node.
pub fn manifest(node: &Node, port: u16, endpoints: &[(&str, &str, bool)], leaving: bool) -> String {
    let taints =
        if leaving { json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]) } else { json!([]) };
    let endpoints = endpoints.iter().map(|(address, node, ready)| {
        json!({"addresses": [address], "nodeName": node, "conditions": {"ready": ready, "serving": ready}})
    });
    let documents = [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.node_name()}, "spec": {"taints": taints}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "demo", "name": "web"}, "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": port, "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30_080, "protocol": "TCP"}],
        }, "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"port": 8080, "protocol": "TCP"}], "endpoints": endpoints.collect::<Vec<_>>()}),
    ];
    documents.map(|document| format!("---\n{document}\n")).concat()
}
