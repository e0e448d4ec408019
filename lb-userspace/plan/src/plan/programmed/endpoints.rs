//! Programmed entries of `endpoints4/6`: how other nodes find the backends of this one.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::abi;

use super::capacities::PerFamily;
use crate::plan::{BackendId, BackendRecord, Endpoints, named};
use lb_model::Family;

/// Entries of `endpoints4/6` as written, by address and service port id.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointEntries {
    entries: Endpoints,
    counts: PerFamily,
}

impl EndpointEntries {
    pub fn contains(&self, key: &(IpAddr, u32)) -> bool {
        self.entries.contains_key(key)
    }

    pub fn count(&self, family: Family) -> usize {
        self.counts.get(family)
    }

    /// The key of the entry that leads to the backend.
    pub fn key_of(&self, id: BackendId, record: &BackendRecord) -> Option<(IpAddr, u32)> {
        let key = (record.address.ip(), record.service);
        (self.entries.get(&key)?.backend == id.id).then_some(key)
    }

    /// An entry that the tables held already.
    pub fn restore(&mut self, key: (IpAddr, u32), endpoint: abi::Endpoint) {
        if self.entries.insert(key, endpoint).is_none() {
            self.counts.add(Family::of(key.0));
        }
    }

    /// Other nodes find the backend from here on, if it is one of this node.
    pub fn put(&mut self, records: &BTreeMap<BackendId, BackendRecord>, id: BackendId, record: &BackendRecord) {
        if named::put(&mut self.entries, records, id, record) {
            self.counts.add(id.family);
        }
    }

    /// The backend's id is given up: `record` is what it held.
    pub fn forget(&mut self, id: BackendId, record: &BackendRecord) {
        if named::forget(&mut self.entries, id, record) {
            self.counts.subtract(id.family);
        }
    }
}
