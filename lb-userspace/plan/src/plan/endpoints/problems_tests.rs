//! Each cause, by manifests, and what is no cause.

use super::*;
use crate::plan::{Marks, NodeFacts, PlanSettings, plan};
use lb_model::PortKey;
use lb_objects::manifest::snapshot;

const READY: &str = "addresses: [10.0.0.1], nodeName: n1, conditions: {ready: true}, targetRef: {kind: Pod, uid: a}";
const UNREADY: &str = "addresses: [10.0.0.1], nodeName: n2, conditions: {ready: false}, targetRef: {kind: Pod, uid: b}";
const ENDED: &str =
    "addresses: [10.0.0.1], nodeName: n1, conditions: {ready: false, serving: false, terminating: true}";
const ENDING: &str =
    "addresses: [10.0.0.1], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}";
const ELSEWHERE: &str = "addresses: [10.0.0.1], nodeName: n2";
const ZEROS: &str = "addresses: [\"010.001.001.011\"], nodeName: n1";
const V6: &str = "addresses: [\"fd00::1\"], nodeName: n1";

fn slice(name: &str, family: &str, port: &str, endpoints: &[&str]) -> String {
    let listed: Vec<String> = endpoints.iter().map(|endpoint| format!("{{{endpoint}}}")).collect();
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: {family}\nports: [{{name: {port}, port: 8080}}]\nendpoints: [{}]\n",
        listed.join(", ")
    )
}

fn web(endpoints: &[&str]) -> String {
    slice("web-1", "IPv4", "http", endpoints)
}

/// The problems of the Service `web` on the node n1, with the slices in this text.
fn found(spec: &str, slices: &str, maintained: &str) -> Vec<EndpointProblem> {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{clusterIP: 10.96.0.1, {spec} ports: [{{name: http, port: 80}}]}}\n{slices}"
    );
    let maintenance = maintained.parse().into_iter().collect();
    let facts = NodeFacts { marks: Marks { maintenance, ..Marks::default() }, ..NodeFacts::default() };
    let settings = PlanSettings { node_name: Some("n1".into()), ..PlanSettings::default() };
    let desired = plan(&snapshot(&text), &facts, &settings);
    let key =
        PortKey { service: lb_model::ObjectName::new("default", "web"), port: 80, protocol: lb_model::Protocol::Tcp };
    desired.services[&key].problems.clone()
}

#[test]
fn each_cause_is_found_and_none_where_it_is_not() {
    let zone = "addresses: [10.0.0.1], nodeName: n2, hints: {forZones: [{name: other}]}";
    let local = "internalTrafficPolicy: Local,";
    let cases = [
        ("", String::new(), vec!["no slice names the Service"]),
        (
            "",
            slice("web-1", "IPv6", "http", &[V6]),
            vec!["its slices have endpoints of the other family only: 1 endpoint"],
        ),
        ("", web(&[]), vec!["its slices list no endpoint"]),
        (
            "",
            web(&[ZEROS]),
            vec![
                "its endpoints are refused: EndpointSlice default/web-1: address \"010.001.001.011\" has leading zeros, by \
             which some programs read octal numbers",
            ],
        ),
        (
            "",
            web(&[V6, ZEROS]),
            vec![
                "its endpoints are refused: 2 of them; EndpointSlice default/web-1: address fd00::1 is not of the slice's addressType",
            ],
        ),
        (
            "",
            slice("web-1", "IPv4", "htpp", &[READY]),
            vec!["no endpoint has the port: 1 endpoint has port `htpp`; none has `http`"],
        ),
        ("", web(&[UNREADY]), vec!["no endpoint is ready: 1 endpoint"]),
        ("", web(&[ENDED]), vec!["all endpoints are terminating, and none serves any more: 1 endpoint"]),
        (
            local,
            web(&[ELSEWHERE]),
            vec!["no endpoint of this node can serve, and the traffic policy is Local: internalTrafficPolicy"],
        ),
        // It serves.
        ("", web(&[READY]), vec![]),
        ("", web(&[ENDING]), vec![]),
        ("", web(&[ELSEWHERE]), vec![]),
        ("", web(&[READY, ZEROS]), vec![]),
        (local, web(&[READY]), vec![]),
        // Hints never leave a port without an endpoint.
        ("", web(&[zone]), vec![]),
    ];
    for (spec, slices, expected) in cases {
        let said: Vec<String> = found(spec, &slices, "").iter().map(ToString::to_string).collect();
        assert_eq!(said, expected, "{spec} {slices}");
    }
    let maintained = found("", &web(&[READY]), "10.0.0.1");
    assert_eq!(maintained[0].to_string(), "all endpoints that could serve are in maintenance: 1 endpoint");
    assert_eq!(found("", &web(&[UNREADY]), "10.0.0.1")[0].cause, Cause::NotReady);
}

#[test]
fn two_entries_with_one_address_are_both_named_in_either_order() {
    let (ready, unready) =
        (|name| slice(name, "IPv4", "http", &[READY]), |name| slice(name, "IPv4", "http", &[UNREADY]));
    let said = |slices: String| -> Vec<(String, bool)> {
        found("", &slices, "").iter().map(|problem| (problem.to_string(), problem.is_said_here)).collect()
    };
    let both = |serves: &str, other: &str| {
        format!(
            "two entries have one address: 10.0.0.1:8080 of EndpointSlice default/{serves} (ready, on n1) serves, that of \
             EndpointSlice default/{other} (unready, on n2) does not"
        )
    };
    assert_eq!(said(ready("a") + &unready("b")), [(both("a", "b"), true)]);
    assert_eq!(said(unready("a") + &ready("b")), [(both("b", "a"), true)]);
    // One pod in two slices, as while the API's controller moves it, is no second one.
    assert_eq!(said(ready("a") + &ready("b")), []);
}

#[test]
fn one_node_speaks_of_endpoints_that_all_nodes_see() {
    let there = "addresses: [10.0.0.0], nodeName: n2, conditions: {ready: false}";
    let here = UNREADY.replace("n2", "n1");
    let said_here = |endpoints: &[&str]| found("", &web(endpoints), "")[0].is_said_here;
    assert!(said_here(&[&here]));
    assert!(!said_here(&[&here, there]));
    assert!(!said_here(&[]));
}
