//! What is wanted of duplicates and of nodes.

use super::*;
use crate::{
    model::{Endpoint, ServicePort, Slice, SlicePort},
    plan::EndpointState,
};

fn slice(node: &str, ready: bool) -> Slice {
    let endpoint = Endpoint {
        address: "10.0.0.1".parse().unwrap(),
        ready,
        serving: ready,
        terminating: false,
        node: Some(node.into()),
        hint_zones: Vec::new(),
        hint_nodes: Vec::new(),
        uid_hash: 0,
    };
    Slice {
        name: ObjectName::new("default", "web-1"),
        service: "web".into(),
        family: Family::V4,
        ports: vec![SlicePort { name: String::new(), port: 80, protocol: Protocol::Tcp }],
        endpoints: vec![endpoint],
    }
}

fn of(slices: &[&Slice], node: Option<&str>) -> DesiredEndpoint {
    let port = ServicePort { name: String::new(), port: 80, protocol: Protocol::Tcp, node_port: None };
    let found = endpoints::of_port(slices, &port, &BTreeSet::from([Family::V4]), node);
    assert_eq!(found.len(), 1);
    *found.values().next().unwrap()
}

/// kube-proxy: endpointslicecache, "favor a true value" for local.
#[test]
fn of_two_entries_for_one_endpoint_the_local_one_counts_then_the_ready_one() {
    let (here, there) = (slice("n1", false), slice("n2", true));
    for slices in [[&here, &there], [&there, &here]] {
        let found = of(&slices, Some("n1"));
        assert!(found.local && found.state == EndpointState::NotReady && !found.in_cluster_set);
        let found = of(&slices, Some("n3"));
        assert!(!found.local && found.state == EndpointState::Ready && found.in_cluster_set);
    }
}

#[test]
fn without_a_node_name_nothing_is_local() {
    assert!(!of(&[&slice("n1", true)], None).local);
}
