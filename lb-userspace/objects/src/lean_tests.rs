//! What is read of an object, what is skipped, and what makes it unreadable.

use serde_json::{Value, json};

use super::*;
use crate::convert;

fn read<K: ApiKind>(object: &Value) -> serde_json::Result<K> {
    serde_json::from_str(&object.to_string())
}

#[test]
fn every_field_that_is_used_is_read() {
    let service: Service = read(&json!({
        "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {HEADLESS_LABEL: ""}, "annotations": {"ballast.dev/mode": "dsr"}},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.1"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "loadBalancerSourceRanges": ["192.0.2.0/24"], "healthCheckNodePort": 30081},
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1", "ipMode": "Proxy"}]}},
    }))
    .expect("a service");
    let missing = |text: &String| text.contains("None") || text.contains("[]") || text.contains("{}");
    let shown = format!("{service:?}").replace("deletion_timestamp: None", "");
    assert!(!missing(&shown), "{shown}");
    let slice: EndpointSlice = read(&json!({
        "metadata": {"name": "web-1", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {SERVICE_NAME_LABEL: "web"}, "annotations": {CHANGE_ANNOTATION: "2026-01-01T00:00:00Z"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n1", "zone": "z", "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]},
            "targetRef": {"kind": "Pod", "uid": "p"}}],
    }))
    .expect("a slice");
    let shown = format!("{slice:?}").replace("deletion_timestamp: None", "");
    assert!(!missing(&shown), "{shown}");
    let node: Node = read(&json!({
        "metadata": {"name": "n1", "namespace": "", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {ZONE_LABEL: "z"}, "annotations": {"ballast.dev/x": "y"}},
        "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"], "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }))
    .expect("a node");
    let shown = format!("{node:?}").replace("deletion_timestamp: None", "");
    assert!(!missing(&shown), "{shown}");
}

#[test]
fn what_others_annotate_is_dropped_whatever_it_is() {
    let object = json!({"metadata": {"name": "web", "managedFields": 7, "ownerReferences": "?",
        "labels": {"app": 5, HEADLESS_LABEL: "", "topology.kubernetes.io/zone": null},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(256 * 1024), "n": null, "ballast.dev/mode": "dsr"}}});
    let service: Service = read(&object).expect("a service");
    assert_eq!(service.metadata.labels.keys().collect::<Vec<_>>(), [HEADLESS_LABEL]);
    assert_eq!(service.metadata.annotations.keys().collect::<Vec<_>>(), ["ballast.dev/mode"]);
}

#[test]
fn what_is_null_is_not_there() {
    let absent: Service = read(&json!({})).expect("a service");
    let null = json!({"metadata": null, "spec": null, "status": null});
    assert_eq!(read::<Service>(&null).expect("a service"), absent);
    let null = json!({"metadata": {"name": null, "labels": null, "annotations": null, "creationTimestamp": null}, "spec": {"ports": null}});
    assert_eq!(read::<Service>(&null).expect("a service"), absent);
    let null = json!({"addressType": null, "endpoints": null, "ports": null});
    assert_eq!(read::<EndpointSlice>(&null).expect("a slice"), EndpointSlice::default());
}

#[test]
fn a_field_of_another_type_makes_an_object_unreadable_only_where_it_is_used() {
    assert!(read::<Service>(&json!({"spec": {"ports": "http"}})).is_err());
    assert!(read::<EndpointSlice>(&json!({"endpoints": [{"conditions": {"ready": "yes"}}]})).is_err());
    assert!(
        read::<Service>(&json!({"spec": {"selector": 5}, "status": {"conditions": [{"lastTransitionTime": null}]}}))
            .is_ok()
    );
    let node: Node =
        read(&json!({"metadata": {"name": "n1"}, "status": {"images": "many", "conditions": 1}})).expect("a node");
    assert_eq!(convert::node(&node).object.expect("a node").name, "n1");
}
