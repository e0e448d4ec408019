//! Programmed VIPs: what becomes of packets to each that no frontend serves.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::abi;

use super::capacities::PerFamily;
use lb_model::Family;

/// VIPs as written.
#[derive(Clone, Debug, Default)]
pub struct Vips {
    entries: BTreeMap<IpAddr, abi::Vip>,
    counts: PerFamily,
}

impl Vips {
    pub fn get(&self, address: IpAddr) -> Option<&abi::Vip> {
        self.entries.get(&address)
    }

    /// All of them, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &abi::Vip)> {
        self.entries.iter().map(|(address, vip)| (*address, vip))
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.entries.keys().copied()
    }

    pub(super) fn count(&self, family: Family) -> usize {
        self.counts.get(family)
    }

    pub(super) fn put(&mut self, address: IpAddr, vip: abi::Vip) {
        if self.entries.insert(address, vip).is_none() {
            self.counts.add(Family::of(address));
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        if self.entries.remove(&address).is_some() {
            self.counts.subtract(Family::of(address));
        }
    }
}
