//! The agent against a Kubernetes API: a real kube-apiserver, or one from memory. Each module is a rung of `cargo xtask test`.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod adopt_kube_proxy;
mod api_faults;
mod differential;
mod fleet;
mod freshness;
mod hand_over;
mod health;
mod incident_b;
mod kube;
mod kube_agent;
mod kube_node;
mod kube_peers;
mod kube_plan;
mod kube_proxy_cleanup;
mod leave_cluster;
mod migrate;
mod migrate_nodes;
