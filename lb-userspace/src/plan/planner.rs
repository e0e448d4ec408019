//! Keeps what is wanted at the last snapshot, and says what a new one changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{Desired, PlanSettings, PortKey, desired::plan_all};
use crate::model::{Protocol, Snapshot};

/// What the node itself knows, beside the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses of its links; no loopback, no link-local ones.
    pub addresses: BTreeSet<IpAddr>,
    /// What no service may take: the API server, the kubelet, ports of our own. An unspecified address means every address of
    /// the node.
    pub reserved: BTreeSet<(IpAddr, u16, Protocol)>,
}

/// What is wanted otherwise than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub services: BTreeSet<PortKey>,
    pub vips: BTreeSet<IpAddr>,
}

/// What is wanted for the last snapshot.
#[derive(Debug)]
pub struct Planner {
    settings: PlanSettings,
    desired: Desired,
}

impl Planner {
    pub fn new(settings: PlanSettings) -> Self {
        Self { settings, desired: Desired::default() }
    }

    /// Plans the snapshot, and says what differs from the one before.
    pub fn update(&mut self, snapshot: &Snapshot, facts: &NodeFacts) -> Changes {
        let before = std::mem::replace(&mut self.desired, plan_all(snapshot, facts, &self.settings));
        Changes {
            services: differing(&before.services, &self.desired.services),
            vips: differing(&before.vips, &self.desired.vips),
        }
    }

    pub fn desired(&self) -> &Desired {
        &self.desired
    }
}

/// Plans the whole snapshot.
pub fn plan(snapshot: &Snapshot, facts: &NodeFacts, settings: &PlanSettings) -> Desired {
    let mut planner = Planner::new(settings.clone());
    planner.update(snapshot, facts);
    planner.desired
}

fn differing<K: Ord + Clone, V: PartialEq>(before: &BTreeMap<K, V>, after: &BTreeMap<K, V>) -> BTreeSet<K> {
    before.keys().chain(after.keys()).filter(|key| before.get(key) != after.get(key)).cloned().collect()
}
