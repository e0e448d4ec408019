//! Odd objects: complete Services, EndpointSlices and Nodes of which one field at a time is null, of another type, huge, empty,
//! unknown or removed.

use serde_json::{Map, Value, json};

use super::stub::ResourceKind;

/// A stub puts the object's version here, unless the field is the odd one.
pub const VERSION: &str = "@version";
/// Characters of a huge text.
const HUGE_TEXT: usize = 20_000;
/// Elements of a huge list, and fields of a huge object.
const HUGE_COUNT: usize = 300;

/// An odd object.
#[derive(Clone, Debug)]
pub struct OddObject {
    pub kind: ResourceKind,
    /// Which field is odd (RFC 6901), and in which way.
    pub what: String,
    pub object: Value,
}

impl OddObject {
    /// Whether the odd field is in the object's status, which an API server takes in a request of its own.
    pub fn is_of_status(&self) -> bool {
        self.what.starts_with("/status")
    }
}

/// All of them; each has a name of its own that begins with `odd-`, unless its name is odd.
pub fn odd_objects() -> Vec<OddObject> {
    let mut all = Vec::new();
    for (kind, whole) in
        [(ResourceKind::Service, service()), (ResourceKind::Slice, slice()), (ResourceKind::Node, node())]
    {
        let mut pointers = Vec::new();
        point(&whole, "", &mut pointers);
        for pointer in pointers {
            for (how, odd) in oddities(&whole, &pointer) {
                let mut object = odd;
                if object.pointer("/metadata/name").is_some_and(|name| *name == "odd") {
                    object["metadata"]["name"] = format!("odd-{}", all.len()).into();
                    object["metadata"]["uid"] = format!("uid-{}", all.len()).into();
                }
                all.push(OddObject { kind, what: format!("{pointer} {how}"), object });
            }
        }
    }
    all
}

/// The pointers to everything in a value, but for what says which kind it is of.
fn point(value: &Value, pointer: &str, to: &mut Vec<String>) {
    if !pointer.is_empty() && pointer != "/kind" && pointer != "/apiVersion" {
        to.push(pointer.to_owned());
    }
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| point(value, &format!("{pointer}/{}", escape(key)), to));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| point(item, &format!("{pointer}/{at}"), to));
        }
        _ => {}
    }
}

/// The object with the value at `pointer` replaced in every way.
fn oddities(whole: &Value, pointer: &str) -> Vec<(&'static str, Value)> {
    let good = whole.pointer(pointer).expect("a pointer of this object");
    let mut odd = vec![("null", Value::Null)];
    odd.extend(other_types(good).into_iter().map(|value| ("of another type", value)));
    odd.push(("huge", huge(good)));
    odd.push(("empty", empty(good)));
    odd.push(("unknown", unknown(good)));
    let replaced = |value: Value| {
        let mut object = whole.clone();
        *object.pointer_mut(pointer).expect("a pointer of this object") = value;
        object
    };
    let mut all: Vec<_> =
        odd.into_iter().filter(|(_, value)| value != good).map(|(how, value)| (how, replaced(value))).collect();
    all.push(("removed", removed(whole, pointer)));
    all
}

fn other_types(good: &Value) -> Vec<Value> {
    let all = [
        json!("odd"),
        json!(7),
        json!(-1.5),
        json!(true),
        json!([]),
        json!({}),
        json!([[null]]),
        json!({"odd": [null]}),
    ];
    let is_other = |value: &Value| std::mem::discriminant(value) != std::mem::discriminant(good);
    all.into_iter().filter(is_other).collect()
}

fn huge(good: &Value) -> Value {
    match good {
        Value::Array(items) => items.iter().cycle().take(HUGE_COUNT).cloned().collect(),
        Value::Object(fields) => {
            let more = (0..HUGE_COUNT).map(|number| (format!("odd{number}"), json!("odd")));
            fields.clone().into_iter().chain(more).collect::<Map<_, _>>().into()
        }
        Value::Number(_) => json!(9_223_372_036_854_775_807_i64),
        _ => "x".repeat(HUGE_TEXT).into(),
    }
}

fn empty(good: &Value) -> Value {
    match good {
        Value::Array(_) => json!([]),
        Value::Object(_) => json!({}),
        Value::Number(_) => json!(0),
        Value::Bool(_) => json!(false),
        _ => json!(""),
    }
}

fn unknown(good: &Value) -> Value {
    match good {
        Value::Array(items) => items.iter().cloned().chain([json!({"odd": {"odd": [1]}})]).collect(),
        Value::Object(fields) => fields.clone().into_iter().chain([("odd".to_owned(), json!({"odd": [1]}))]).collect(),
        Value::Number(_) => json!(-1),
        Value::Bool(good) => json!(!good),
        _ => json!("\u{0}é\u{200b}\"},{"),
    }
}

fn removed(whole: &Value, pointer: &str) -> Value {
    let mut object = whole.clone();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer begins with a slash");
    let key = key.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&key)),
        Some(Value::Array(items)) => drop(items.remove(key.parse().expect("a number"))),
        _ => unreachable!("the parent of a value is an object or a list"),
    }
    object
}

fn metadata() -> Value {
    json!({
        "name": "odd", "namespace": "default", "uid": "uid", "resourceVersion": VERSION, "generation": 3,
        "generateName": "odd-", "selfLink": "", "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 30,
        "finalizers": ["example.com/finalizer"],
        "labels": {"app": "odd", "topology.kubernetes.io/zone": "z1", "kubernetes.io/service-name": "odd"},
        "annotations": {"example.com/a": "b", "ballast.dev/scheduler": "maglev", "ballast.dev/weights": "10.0.0.1=3,zone:a=2",
            "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u", "controller": true, "blockOwnerDeletion": true}],
        "managedFields": [{"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ports": {}}}}],
    })
}

fn condition() -> Value {
    json!({"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Fine", "message": "fine"})
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(),
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7", "fd00:96::77"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack", "selector": {"app": "odd"},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "appProtocol": "http", "targetPort": 8080, "nodePort": 30877},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns", "nodePort": 30878}],
            "externalIPs": ["192.0.2.77"], "externalName": "", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster",
            "healthCheckNodePort": 30879, "loadBalancerIP": "198.51.100.77", "loadBalancerClass": "example.com/lb",
            "loadBalancerSourceRanges": ["192.0.2.0/24"], "allocateLoadBalancerNodePorts": true, "publishNotReadyAddresses": false,
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "trafficDistribution": "PreferSameZone",
        },
        "status": {
            "conditions": [condition()],
            "loadBalancer": {"ingress": [{"ip": "198.51.100.77", "ipMode": "VIP", "hostname": "lb.example.com",
                "ports": [{"port": 80, "protocol": "TCP", "error": "None"}]}]},
        },
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata(), "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "http"}],
        "endpoints": [{
            "addresses": ["10.244.7.7"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "odd-0", "nodeName": "n1", "zone": "z1",
            "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]}, "deprecatedTopology": {"a": "b"},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "odd-0", "uid": "p", "apiVersion": "v1",
                "resourceVersion": "5", "fieldPath": "spec"},
        }],
    })
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata(),
        "spec": {
            "podCIDR": "10.245.7.0/24", "podCIDRs": ["10.245.7.0/24", "fd00:45::/64"], "providerID": "example://n", "unschedulable": true,
            "externalID": "e", "configSource": {"configMap": {"name": "c", "namespace": "default", "kubeletConfigKey": "k"}},
            "taints": [{"key": "example.com/taint", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.17"}, {"type": "Hostname", "address": "n"}],
            "capacity": {"cpu": "4", "memory": "8Gi"}, "allocatable": {"cpu": "4"}, "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "KubeletReady", "message": "ready"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "6.12", "osImage": "Linux",
                "containerRuntimeVersion": "containerd://2", "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64"},
            "images": [{"names": ["example.com/image:1"], "sizeBytes": 1000}], "volumesInUse": ["v"],
            "volumesAttached": [{"name": "v", "devicePath": "/dev/v"}], "runtimeHandlers": [{"name": "runc", "features": {"userNamespaces": true}}],
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_field_is_odd_in_every_way_and_no_two_objects_are_the_same() {
        let all = odd_objects();
        assert!(all.len() > 1500, "{}", all.len());
        for what in [
            "/status/conditions/0/lastTransitionTime null",
            "/spec/ports/1/port huge",
            "/metadata/labels/app removed",
            "/endpoints/0/conditions/ready of another type",
            "/status/addresses/0/address empty",
            "/metadata unknown",
        ] {
            assert!(all.iter().any(|odd| odd.what == what), "{what}");
        }
        let texts: BTreeSet<String> = all.iter().map(|odd| odd.object.to_string()).collect();
        assert!(texts.len() * 10 > all.len() * 9, "{} of {}", texts.len(), all.len());
    }
}
