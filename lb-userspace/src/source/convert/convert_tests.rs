//! Defaults of absent fields, and what is refused.

use k8s_openapi::api::core::v1 as core;

use serde_json::{Value, json};

use super::*;
use crate::model::{Service, Slice};

fn service_of(spec: &Value) -> Converted<Service> {
    let value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec});
    service(&serde_json::from_value(value).unwrap())
}

fn endpoint_of(fields: &Value) -> Converted<Slice> {
    let value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"port": 80}], "endpoints": [fields],
    });
    slice(&serde_json::from_value(value).unwrap())
}

fn conditions(conditions: &Value) -> (bool, bool, bool) {
    let slice = endpoint_of(&json!({"addresses": ["10.0.0.1"], "conditions": conditions})).object.unwrap();
    (slice.endpoints[0].ready, slice.endpoints[0].serving, slice.endpoints[0].terminating)
}

#[test]
fn absent_conditions_mean_ready_serving_as_ready_and_not_terminating() {
    assert_eq!(conditions(&json!({})), (true, true, false));
    assert_eq!(conditions(&json!({"ready": false})), (false, false, false));
    assert_eq!(conditions(&json!({"ready": false, "serving": true, "terminating": true})), (false, true, true));
    assert_eq!(conditions(&json!({"ready": true, "terminating": true})), (true, true, true));
}

#[test]
fn a_service_keeps_what_matters() {
    let read = service_of(&json!({
        "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}],
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    }));
    assert_eq!(read.refusals, []);
    let read = read.object.unwrap();
    assert_eq!(read.name, ObjectName::new("default", "web"));
    assert_eq!(read.cluster_ips.len(), 2);
    assert_eq!(read.ports[0].protocol, Protocol::Udp);
    assert_eq!(read.ports[1].protocol, Protocol::Tcp);
    assert_eq!(read.affinity_timeout_s, 60);
}

#[test]
fn bad_services_are_refused_with_what_was_expected() {
    let port = json!([{"port": 80}]);
    for (spec, reason) in [
        (json!({"clusterIP": "10.96.0", "ports": port}), "expected an IPv4 or IPv6 address"),
        (json!({"clusterIP": "127.0.0.1", "ports": port}), "a loopback address"),
        (json!({"clusterIP": "::", "ports": port}), "the unspecified address"),
        (json!({"clusterIP": "ff02::1", "ports": port}), "a multicast address"),
        (json!({"clusterIP": "::ffff:10.0.0.1", "ports": port}), "an IPv4 address written as IPv6"),
        (json!({"clusterIPs": ["10.0.0.1", "10.0.0.2"], "ports": port}), "two addresses of one family"),
        (json!({"ports": port}), "it has no clusterIP"),
        (json!({"clusterIP": "10.96.0.1"}), "it has no ports"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": 0}]}), "expected 1 to 65535"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": -1}]}), "expected 1 to 65535"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "tcp"}]}), "expected TCP, UDP or SCTP"),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]}),
            "listed twice",
        ),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}, {"port": 81}]}), "two ports are named"),
        (json!({"clusterIP": "10.96.0.1", "ports": port, "sessionAffinity": "Cookie"}), "expected None or ClientIP"),
        (
            json!({"clusterIP": "10.96.0.1", "ports": port, "sessionAffinity": "ClientIP",
                   "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90_000}}}),
            "expected 1 to 86400",
        ),
    ] {
        let read = service_of(&spec);
        assert_eq!(read.object, None);
        let text = read.refusals[0].to_string();
        assert!(text.starts_with("Service default/web: ") && text.contains(reason), "{text}");
    }
}

#[test]
fn hostile_names_are_refused() {
    for name in ["", &"x".repeat(64)] {
        let value = json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
        let mut bad: core::Service =
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "Service", "metadata": {}})).unwrap();
        bad.metadata.name = value["metadata"]["name"].as_str().map(str::to_owned);
        assert_eq!(service(&bad).object, None);
    }
}

#[test]
fn a_port_without_a_number_is_refused_and_the_others_serve() {
    let value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "all"}, {"name": "http", "port": 80}, {"name": "s", "port": 80, "protocol": "SCTP"}], "endpoints": [],
    });
    let read = slice(&serde_json::from_value(value).unwrap());
    assert_eq!(read.refusals.len(), 1);
    assert!(read.refusals[0].to_string().starts_with("EndpointSlice default/web-1 port \"all\": it has no number"));
    assert_eq!(read.object.unwrap().ports.len(), 1);
}

#[test]
fn slices_of_nobody_or_of_names_are_refused() {
    let mut value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1"}, "endpoints": [],
    });
    let refusal = |value: &Value| slice(&serde_json::from_value(value.clone()).unwrap()).refusals[0].reason.clone();
    assert_eq!(refusal(&value), "it has no label kubernetes.io/service-name");
    value["metadata"]["labels"] = json!({"kubernetes.io/service-name": "web"});
    value["addressType"] = json!("FQDN");
    assert_eq!(refusal(&value), "addressType \"FQDN\": expected IPv4 or IPv6");
}
