//! What planned operations will take that are not carried out yet.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::capacities::Counted;
use crate::plan::op::Added;
use crate::plan::{BackendId, Frontend, Op, named};
use lb_model::Family;

/// Planned, and not written yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    pub(super) services: BTreeSet<u32>,
    pub(super) backends: BTreeSet<BackendId>,
    /// First slots of ranges.
    pub(super) ranges: BTreeSet<u32>,
    pub(super) frontends: Counted<Frontend>,
    /// Keys of `endpoints4/6`.
    pub(super) endpoints: Counted<(IpAddr, u32)>,
    pub(super) sources: Counted<(u32, IpNet)>,
    pub(super) vips: Counted<IpAddr>,
}

impl Reserved {
    pub(super) fn add(&mut self, added: &Added<'_>) {
        match added {
            Added::Name(id) => drop(self.services.insert(*id)),
            Added::Backend(id) => drop(self.backends.insert(*id)),
            Added::Slots(base, _) => drop(self.ranges.insert(*base)),
            Added::Frontend(frontend) => self.frontends.insert(*frontend, Family::of(frontend.address)),
            Added::Source(id, network) => self.sources.insert((*id, *network), Family::of(network.addr())),
            Added::Vip(address) => self.vips.insert(*address, Family::of(*address)),
        }
    }

    pub(super) fn add_endpoint(&mut self, key: (IpAddr, u32)) {
        self.endpoints.insert(key, Family::of(key.0));
    }

    /// The operation's needs are no longer merely set aside. True if they were.
    pub(super) fn remove(&mut self, op: &Op) -> bool {
        if let Some(key) = named::key_of(op) {
            self.endpoints.remove(&key, Family::of(key.0));
        }
        op.added().is_some_and(|added| match added {
            Added::Name(id) => self.services.remove(&id),
            Added::Backend(id) => self.backends.remove(&id),
            Added::Slots(base, _) => self.ranges.remove(&base),
            Added::Frontend(frontend) => self.frontends.remove(&frontend, Family::of(frontend.address)),
            Added::Source(id, network) => self.sources.remove(&(id, network), Family::of(network.addr())),
            Added::Vip(address) => self.vips.remove(&address, Family::of(address)),
        })
    }
}
