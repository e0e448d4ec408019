//! What does not hold yet. An entry goes with the fault that it names: one that no longer fails makes the test fail.

use lb_tests::scene::Scene;

use super::Case;

/// A check that fails on some nodes.
#[derive(Debug)]
pub struct Gap {
    check: &'static str,
    on: fn(Case) -> bool,
    /// Part of what the check says: it fails of nothing else.
    pub says: &'static str,
    pub why: &'static str,
}

impl Gap {
    pub fn covers(&self, case: Case, check: &str) -> bool {
        self.check == check && (self.on)(case)
    }
}

pub const GAPS: &[Gap] = &[Gap {
    check: "way_out",
    on: |case| matches!(case.scene, Scene::Firewalld | Scene::Cloud | Scene::NodeLocalDns),
    says: ": udp: ",
    why: "masquerade keeps a pod's source port, and datagrams to the number of a node port are taken for a service's packets",
}];

/// Whether the check fails on some node.
pub fn is_known(check: &str) -> bool {
    GAPS.iter().any(|gap| gap.check == check)
}
