//! Which addresses are cluster IPs, kept with the snapshot: what the plan asks of an address must not cost a look at every service.

use std::{collections::BTreeMap, net::IpAddr};

use imbl::ordmap::DiffItem;

use lb_model::Snapshot;

/// How many services have each cluster IP.
#[derive(Debug, Default)]
pub(super) struct ClusterIps(BTreeMap<IpAddr, usize>);

impl ClusterIps {
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.0.contains_key(address)
    }

    /// Goes from one snapshot to the next. Costs what changed.
    pub fn follow(&mut self, before: &Snapshot, after: &Snapshot) {
        for change in before.services.diff(&after.services) {
            let (old, new) = match change {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            for address in new.into_iter().flat_map(|service| &service.cluster_ips) {
                *self.0.entry(*address).or_default() += 1;
            }
            for address in old.into_iter().flat_map(|service| &service.cluster_ips) {
                self.remove(address);
            }
        }
    }

    fn remove(&mut self, address: &IpAddr) {
        match self.0.get_mut(address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(address)),
        }
    }
}
