//! What is wanted of duplicates, of hints and of nodes.

use super::*;
use crate::plan::Marks;
use lb_model::PortKey;
use lb_model::{ObjectName, SlicePort};

fn endpoint(node: &str, ready: bool) -> Endpoint {
    Endpoint {
        address: "10.0.0.1".parse().unwrap(),
        ready,
        serving: ready,
        terminating: false,
        node: Some(node.into()),
        zone: None,
        hints: None,
        uid_hash: 0,
    }
}

fn slice(endpoint: Endpoint) -> Slice {
    Slice {
        changed_at: None,
        created_s: None,
        refused: None,
        name: ObjectName::new("default", "web-1"),
        service: "web".into(),
        family: Family::V4,
        ports: vec![SlicePort { name: String::new(), port: 80, protocol: Protocol::Tcp }],
        endpoints: vec![endpoint],
    }
}

fn of(slices: &[&Slice], node_name: Option<&str>) -> DesiredEndpoint {
    let port = ServicePort { name: String::new(), port: 80, protocol: Protocol::Tcp, node_port: None };
    let context = NodeContext { node_name: node_name.map(str::to_owned), ..NodeContext::default() };
    let needs = [Needs { cluster: true, local: true }, Needs::default()];
    let key = PortKey { service: ObjectName::new("default", "web"), port: 80, protocol: Protocol::Tcp };
    let marks = Marks::default();
    let (found, _) = Listed::new(slices.to_vec()).of_port(&port, needs, None, &context, &marks.of_port(&key));
    assert_eq!(found.len(), 1);
    *found.values().next().unwrap()
}

/// A pod's address is used again, by a pod on another node: each order of the slices, seen from this node and from a third one.
#[test]
fn of_two_entries_for_one_endpoint_the_ready_one_serves() {
    let (here, there) = (slice(endpoint("n1", false)), slice(endpoint("n2", true)));
    for slices in [[&here, &there], [&there, &here]] {
        for node in ["n1", "n3"] {
            let found = of(&slices, Some(node));
            assert!(!found.local && found.state == EndpointState::Ready && found.in_cluster_set && !found.in_local_set);
        }
    }
}

#[test]
fn of_two_entries_that_are_as_ready_the_local_one_counts() {
    for ready in [true, false] {
        let (here, there) = (slice(endpoint("n1", ready)), slice(endpoint("n2", ready)));
        for slices in [[&here, &there], [&there, &here]] {
            let found = of(&slices, Some("n1"));
            assert_eq!((found.local, found.in_cluster_set, found.in_local_set), (true, ready, ready));
        }
    }
}

/// Where both are as ready, the newer slice counts, wherever its endpoint is; without a time a slice is older than any.
#[test]
fn of_two_entries_that_are_as_ready_the_newer_slice_counts() {
    for ready in [true, false] {
        let here = Slice { created_s: Some(1), ..slice(endpoint("n1", ready)) };
        let there = Slice { created_s: Some(2), ..slice(endpoint("n2", ready)) };
        let timeless = slice(endpoint("n1", ready));
        for slices in [[&here, &there], [&there, &here], [&timeless, &there], [&there, &timeless]] {
            assert!(!of(&slices, Some("n1")).local);
        }
    }
    let ready = Slice { created_s: Some(1), ..slice(endpoint("n2", true)) };
    let newer = Slice { created_s: Some(2), ..slice(endpoint("n1", false)) };
    for slices in [[&ready, &newer], [&newer, &ready]] {
        assert_eq!(of(&slices, Some("n1")).state, EndpointState::Ready);
    }
}

/// kube-proxy: endpointslicecache, "prefer the running pod over the terminating one" where a pod's address is used again. Both are ready if
/// the service publishes addresses that are not ready; else neither is.
#[test]
fn a_pod_that_runs_counts_before_one_that_ends_at_the_same_address() {
    for ready in [true, false] {
        let ends = Endpoint { serving: true, terminating: true, uid_hash: 1, ..endpoint("n1", ready) };
        let runs = Endpoint { uid_hash: 2, ..endpoint("n1", ready) };
        let (ends, runs) = (slice(ends), slice(runs));
        for slices in [[&ends, &runs], [&runs, &ends]] {
            assert_eq!(of(&slices, Some("n1")).uid_hash, 2);
        }
    }
}

#[test]
fn without_a_node_name_nothing_is_local() {
    let found = of(&[&slice(endpoint("n1", true))], None);
    assert!(!found.local && found.in_cluster_set && !found.in_local_set);
}

/// As the endpoints of the Service `kubernetes`, which name no node.
#[test]
fn an_address_of_this_node_is_its_own_and_no_part_of_its_set() {
    let unnamed = Endpoint { node: None, ..endpoint("n1", true) };
    let here = NodeContext { addresses: [unnamed.address].into(), ..NodeContext::default() };
    for (context, own) in [(here, true), (NodeContext::default(), false)] {
        let slice = slice(unnamed.clone());
        let found = Candidate::new(&unnamed, &slice, 80, None, &context).endpoint;
        assert_eq!((found.local, found.own_address), (false, own));
    }
    let found = of(&[&slice(unnamed)], Some("n1"));
    assert!(!found.local && found.in_cluster_set && !found.in_local_set);
}

#[test]
fn a_set_that_no_frontend_uses_is_empty() {
    let port = ServicePort { name: String::new(), port: 80, protocol: Protocol::Tcp, node_port: None };
    let context = NodeContext { node_name: Some("n1".into()), ..NodeContext::default() };
    let slice = slice(endpoint("n1", true));
    let listed = Listed::new(vec![&slice]);
    let in_sets = |needs| {
        let key = PortKey { service: ObjectName::new("default", "web"), port: 80, protocol: Protocol::Tcp };
        let marks = Marks::default();
        let needs = [needs, Needs::default()];
        let (found, _) = listed.of_port(&port, needs, None, &context, &marks.of_port(&key));
        found.values().map(|endpoint| (endpoint.in_cluster_set, endpoint.in_local_set)).collect::<Vec<_>>()
    };
    assert_eq!(in_sets(Needs { cluster: true, local: false }), [(true, false)]);
    assert_eq!(in_sets(Needs { cluster: false, local: true }), [(false, true)]);
    assert_eq!(in_sets(Needs::default()), []);
}
