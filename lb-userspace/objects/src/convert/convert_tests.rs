//! Defaults of absent fields, and what is refused.

use serde_json::{Value, json};

use super::node::PEER_ADDRESSES_MAX;
use super::*;
use crate::lean;
use lb_model::{Node, Service, Slice, TrafficPolicy};

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
fn leading_zeros_are_named_as_such_wherever_an_address_is_read() {
    let read = endpoint_of(&json!({"addresses": ["010.001.001.011"]}));
    let reason = "address \"010.001.001.011\" has leading zeros, by which some programs read octal numbers";
    assert_eq!(read.refusals[0].reason, reason);
    let slice = read.object.expect("the slice is read");
    assert_eq!((slice.endpoints.len(), slice.refused.expect("one").reason.as_str()), (0, reason));
    let read = service_of(&json!({"clusterIPs": ["10.96.00.1"], "ports": [{"port": 80}]}));
    assert!(read.refusals[0].reason.starts_with("clusterIP \"10.96.00.1\" has leading zeros"));
    for other in ["10.0.0", "10.0.0.0256", "web", "010.0.0.x"] {
        let reason = endpoint_of(&json!({"addresses": [other]})).refusals[0].reason.clone();
        assert_eq!(reason, format!("address {other:?}: expected an IPv4 or IPv6 address"));
    }
}

#[test]
fn a_slice_has_the_time_of_its_making() {
    let value = |time: Value| {
        json!({
            "addressType": "IPv4",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}, "creationTimestamp": time},
        })
    };
    let created_s = |time: Value| {
        let read = slice(&serde_json::from_value(value(time)).expect("a slice"));
        read.object.expect("the slice is read").created_s
    };
    assert_eq!(created_s(json!("1970-01-02T00:00:00Z")), Some(86_400));
    assert_eq!(created_s(Value::Null), None);
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
        (json!({"ports": port}), "it has no clusterIP"),
        (json!({"clusterIP": "10.96.0.1"}), "it has no ports"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": 0}]}), "port 0: expected 1 to 65535"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": -1}]}), "port -1: expected 1 to 65535"),
        (json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "tcp"}]}), "expected TCP, UDP or SCTP"),
    ] {
        let read = service_of(&spec);
        assert_eq!(read.object, None);
        let text = read.refusals[0].to_string();
        assert!(text.starts_with("Service default/web: ") && text.contains(reason), "{text}");
    }
}

/// A bad part is refused by name and takes nothing else along.
#[test]
fn of_a_service_with_a_bad_part_the_rest_is_served() {
    let base =
        json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"name": "a", "port": 80}]});
    for (field, value, reason) in [
        ("clusterIPs", json!(["10.96.0.1", "fd00::zz"]), "clusterIP \"fd00::zz\": expected an IPv4 or IPv6 address"),
        ("clusterIPs", json!(["10.96.0.1", "10.96.0.2"]), "clusterIP 10.96.0.2 is the second one of its family"),
        ("externalIPs", json!(["192.0.2.1", "192.0.2"]), "externalIP \"192.0.2\": expected an IPv4 or IPv6 address"),
        ("externalIPs", json!(["127.0.0.1"]), "externalIP 127.0.0.1 is a loopback address"),
        (
            "loadBalancerSourceRanges",
            json!(["10.0.0.0/33"]),
            "loadBalancerSourceRange \"10.0.0.0/33\": expected a network",
        ),
        ("internalTrafficPolicy", json!("Node"), "internalTrafficPolicy \"Node\": expected Cluster or Local"),
        ("externalTrafficPolicy", json!("Node"), "externalTrafficPolicy \"Node\": expected Cluster or Local"),
        ("sessionAffinity", json!("Cookie"), "sessionAffinity \"Cookie\": expected None or ClientIP"),
        ("ports", json!([{"name": "a", "port": 80}, {"name": "b", "port": 80}]), "port 80/TCP is listed twice"),
        ("ports", json!([{"name": "a", "port": 80}, {"name": "a", "port": 81}]), "two ports are named \"a\""),
        ("ports", json!([{"name": "a", "port": 80}, {"name": "b", "port": 0}]), "port 0: expected 1 to 65535"),
        ("ports", json!([{"name": "a", "port": 80, "nodePort": 70_000}]), "nodePort 70000: expected 1 to 65535"),
    ] {
        let mut spec = base.clone();
        spec[field] = value;
        let read = service_of(&spec);
        let text = read.refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(text.starts_with("Service default/web: ") && text.contains(reason), "{text}");
        assert_eq!(read.refusals.len(), 1);
        let read = read.object.unwrap();
        assert_eq!((read.cluster_ips[0].to_string().as_str(), read.ports[0].port), ("10.96.0.1", 80));
    }
    let mut spec = base;
    spec["sessionAffinity"] = json!("ClientIP");
    spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 90_000}});
    let read = service_of(&spec);
    assert!(read.refusals[0].reason.contains("expected 1 to 86400"));
    assert_eq!(read.object.unwrap().affinity_timeout_s, 0);
}

/// kube-proxy: `TestNewServiceInfo`-like cases of ingress modes (KEP-1860), white space in source ranges.
#[test]
fn the_external_side_of_a_service_is_kept() {
    let value = json!({
        "metadata": {"name": "web"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.9", "192.0.2.9"],
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "SCTP"}],
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "loadBalancerSourceRanges": [" 10.1.2.3/8 ", "fd00::/8\t", "10.0.0.0/8"],
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "192.0.2.1", "ipMode": "VIP"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"ip": "192.0.2.3"},
            {"hostname": "example.org"},
        ]}},
    });
    let mut raw: lean::Service = serde_json::from_value(value).unwrap();
    let read = service(&raw);
    assert_eq!(read.refusals, []);
    let read = read.object.unwrap();
    let text = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(text(&read.external_ips), ["192.0.2.9"]);
    assert_eq!(text(&read.load_balancer_ips), ["192.0.2.1", "192.0.2.3"]);
    assert_eq!((read.internal_policy, read.external_policy), (TrafficPolicy::Local, TrafficPolicy::Local));
    assert_eq!((read.ports[0].protocol, read.ports[0].node_port), (Protocol::Sctp, Some(30080)));
    assert_eq!(read.health_check_node_port, Some(32000));
    let ranges: Vec<String> = read.source_ranges.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/8", "fd00::/8"]);
    // What is left in a Service that has become another type does not count.
    raw.spec.type_ = Some("ClusterIP".into());
    let read = service(&raw);
    assert!(read.refusals[0].reason.contains("nodePort 30080 of a service of another type"));
    let read = read.object.unwrap();
    assert!(read.load_balancer_ips.is_empty() && read.ports[0].node_port.is_none());
    assert_eq!(read.health_check_node_port, None);
}

/// 256 KiB, which an annotation may have, hold this many bad weights.
#[test]
fn an_annotation_full_of_mistakes_makes_few_refusals() {
    let weights = "x,".repeat(128 * 1024);
    let value = json!({
        "metadata": {"name": "web", "annotations": {"ballast.dev/weights": weights}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    });
    let read = service(&serde_json::from_value(value).unwrap());
    assert!(read.object.is_some());
    assert_eq!(read.refusals.len(), 9);
    let last = read.refusals.last().unwrap().to_string();
    assert!(last.starts_with("Service default/web: 131064 more problems"), "{last}");
    assert!(read.refusals.iter().all(|refusal| refusal.to_string().len() < 1000));
}

#[test]
fn ranges_that_are_given_but_all_bad_admit_nobody() {
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "loadBalancerSourceRanges": ["everybody"]});
    let read = service_of(&spec);
    assert_eq!(read.refusals.len(), 1);
    assert_eq!(read.object.unwrap().source_ranges, Some(Vec::new()));
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "loadBalancerSourceRanges": []});
    assert_eq!(service_of(&spec).object.unwrap().source_ranges, None);
}

#[test]
fn a_range_of_everybody_alone_opens_both_families() {
    let ranges = |ranges: &[&str]| {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "loadBalancerSourceRanges": ranges});
        service_of(&spec).object.unwrap().source_ranges.map(|ranges| ranges.len())
    };
    for open in [&["0.0.0.0/0"][..], &["::/0"], &[" 0.0.0.0/0 "], &["0.0.0.0/0", "::/0"], &["::/0", "::/0"]] {
        assert_eq!(ranges(open), None, "{open:?}");
    }
    // A list that holds anything else is taken as written.
    for (written, read) in
        [(&["0.0.0.0/0", "192.0.2.0/24"][..], 2), (&["::/0", "10.0.0.0/8"], 2), (&["0.0.0.0/0", "everybody"], 1)]
    {
        assert_eq!(ranges(written), Some(read), "{written:?}");
    }
}

#[test]
fn a_node_keeps_what_matters() {
    let value = json!({
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd01::/64", "all"]},
        "status": {"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "ExternalIP", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": "10.0.0.2"}, {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "InternalIP", "address": "fd02::2"},
        ]},
    });
    let mut raw: lean::Node = serde_json::from_value(value).unwrap();
    let read = node(&raw);
    let reasons: Vec<&str> = read.refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["InternalIP 127.0.0.1 is a loopback address", "podCIDR \"all\": expected a network, as 192.0.2.0/24"]
    );
    let read = read.object.unwrap();
    assert_eq!((read.name.as_str(), read.zone.as_deref(), read.is_leaving), ("n1", Some("a"), false));
    let own = |read: &Node| read.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(own(&read), ["10.0.0.2", "fd02::2"], "the external one is not needed");
    assert_eq!(read.pod_cidrs.len(), 2);
    let other = peer(&raw);
    assert_eq!(other.refusals[0].reason, "InternalIP 127.0.0.1 is a loopback address");
    let texts: Vec<String> = other.object.unwrap().addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["192.0.2.1", "10.0.0.2", "fd02::2"]);
    let status = &mut raw.status;
    let external = status.addresses.as_ref().unwrap()[1].clone();
    status.addresses = Some(vec![external; PEER_ADDRESSES_MAX + 1]);
    let many = peer(&raw);
    assert_eq!(many.refusals[0].reason, "9 addresses: expected at most 8; the first ones count");
    assert_eq!(many.object.unwrap().addresses.len(), PEER_ADDRESSES_MAX);
    assert_eq!(own(&node(&raw).object.unwrap()), vec!["192.0.2.1"; PEER_ADDRESSES_MAX + 1], "there is no internal one");
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    raw.spec.taints = serde_json::from_value(taint).unwrap();
    assert!(node(&raw).object.unwrap().is_leaving);
    raw.spec.taints = None;
    raw.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(node(&raw).object.unwrap().is_leaving);
}

#[test]
fn hints_are_kept() {
    let read = endpoint_of(&json!({
        "addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "n1"}]},
    }));
    let read = &read.object.unwrap().endpoints[0];
    assert_eq!((read.hint_zones().join(" "), read.hint_nodes().join(" ")), ("a b".into(), "n1".into()));
}

#[test]
fn a_slice_of_a_headless_service_is_left_alone() {
    let value = json!({
        "addressType": "FQDN", "endpoints": [],
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}},
    });
    assert_eq!(slice(&serde_json::from_value(value).unwrap()), Converted { object: None, refusals: Vec::new() });
}

#[test]
fn hostile_names_are_refused() {
    for name in ["", &"x".repeat(64)] {
        let value = json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
        let mut bad: lean::Service =
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
    let ports = read.object.unwrap().ports;
    assert_eq!(ports.iter().map(|port| port.protocol).collect::<Vec<_>>(), [Protocol::Tcp, Protocol::Sctp]);
}

#[test]
fn the_second_port_of_one_name_is_refused() {
    let value = json!({
        "addressType": "IPv4", "endpoints": [],
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "a", "port": 80}, {"name": "a", "port": 81}, {"name": "a", "port": 80, "protocol": "UDP"}],
    });
    let read = slice(&serde_json::from_value(value).unwrap());
    assert!(read.refusals[0].to_string().starts_with("EndpointSlice default/web-1 port \"a\": two TCP ports"));
    let ports: Vec<_> = read.object.unwrap().ports.iter().map(|port| (port.port, port.protocol)).collect();
    assert_eq!(ports, [(80, Protocol::Tcp), (80, Protocol::Udp)]);
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
