//! What planned operations will take that are not carried out yet. Many changes are planned before the first is written, and none may be given the
//! ids, slots or room of another.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::{PerFamily, ProgrammedState};
use crate::{
    model::Family,
    plan::{BackendId, Frontend, Op, Range, named},
};

/// Planned, and not written yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    services: BTreeSet<u32>,
    backends: BTreeSet<BackendId>,
    /// First slots of ranges.
    ranges: BTreeSet<u32>,
    frontends: BTreeSet<Frontend>,
    pub(super) endpoints: BTreeSet<(IpAddr, u32)>,
    sources: BTreeSet<(u32, IpNet)>,
    vips: BTreeSet<IpAddr>,
    frontend_counts: PerFamily,
    endpoint_counts: PerFamily,
    source_counts: PerFamily,
    vip_counts: PerFamily,
}

impl ProgrammedState {
    /// Sets aside what these operations need. Each of them is then either recorded, or given up.
    pub fn reserve(&mut self, ops: &[Op]) {
        let reserved = &mut self.reserved;
        for op in ops {
            if let Some(key) = named::key_of(op).filter(|key| !self.endpoints.contains_key(key))
                && reserved.endpoints.insert(key)
            {
                *reserved.endpoint_counts.slot(Family::of(key.0)) += 1;
            }
            match op {
                Op::WriteName { id, .. } if !self.services.contains_key(id) => {
                    self.service_pool.take(*id);
                    reserved.services.insert(*id);
                }
                Op::WriteBackend { id, .. } if !self.backends.contains_key(id) => {
                    self.pools[usize::from(id.family == Family::V6)].take(id.id);
                    reserved.backends.insert(*id);
                }
                Op::WriteSlots { base, slots } => {
                    self.slots.take(range_of(*base, slots.len()));
                    reserved.ranges.insert(*base);
                    self.generation = slots.first().map_or(self.generation, |slot| slot.generation);
                }
                Op::WriteFrontend { frontend, entry, .. } => {
                    self.generation = self.generation.max(entry.generation);
                    if !self.frontends.contains_key(frontend) && reserved.frontends.insert(*frontend) {
                        *reserved.frontend_counts.slot(Family::of(frontend.address)) += 1;
                    }
                }
                Op::WriteSource { id, network } if reserved.sources.insert((*id, *network)) => {
                    *reserved.source_counts.slot(Family::of(network.addr())) += 1;
                }
                Op::WriteVip { address, .. } if !self.vips.contains_key(address) && reserved.vips.insert(*address) => {
                    *reserved.vip_counts.slot(Family::of(*address)) += 1;
                }
                _ => {}
            }
        }
    }

    /// Gives back what was set aside for an operation that was not carried out.
    pub fn give_up(&mut self, op: &Op) {
        if !self.keep(op) {
            return;
        }
        match op {
            Op::WriteName { id, .. } if !self.services.contains_key(id) => self.service_pool.give_back(*id),
            Op::WriteBackend { id, .. } => self.pool_mut(id.family).give_back(id.id),
            Op::WriteSlots { base, slots } => self.slots.give_back(range_of(*base, slots.len())),
            _ => {}
        }
    }

    /// The operation's needs are no longer merely set aside. True if they were.
    pub(super) fn keep(&mut self, op: &Op) -> bool {
        let reserved = &mut self.reserved;
        if let Some(key) = named::key_of(op).filter(|key| reserved.endpoints.remove(key)) {
            *reserved.endpoint_counts.slot(Family::of(key.0)) -= 1;
        }
        match op {
            Op::WriteName { id, .. } => reserved.services.remove(id),
            Op::WriteBackend { id, .. } => reserved.backends.remove(id),
            Op::WriteSlots { base, .. } => reserved.ranges.remove(base),
            Op::WriteFrontend { frontend, .. } => {
                let was = reserved.frontends.remove(frontend);
                *reserved.frontend_counts.slot(Family::of(frontend.address)) -= u32::from(was);
                was
            }
            Op::WriteSource { id, network } => {
                let was = reserved.sources.remove(&(*id, *network));
                *reserved.source_counts.slot(Family::of(network.addr())) -= u32::from(was);
                was
            }
            Op::WriteVip { address, .. } => {
                let was = reserved.vips.remove(address);
                *reserved.vip_counts.slot(Family::of(*address)) -= u32::from(was);
                was
            }
            _ => false,
        }
    }

    /// How many frontends of a family there are, or will be.
    pub fn frontend_count(&self, family: Family) -> u32 {
        self.frontend_counts.get(family) + self.reserved.frontend_counts.get(family)
    }

    /// How many entries of `endpoints4/6` there are, or will be.
    pub fn endpoint_count(&self, family: Family) -> u32 {
        self.endpoint_counts.get(family) + self.reserved.endpoint_counts.get(family)
    }

    /// How many source ranges of a family there are, or will be.
    pub fn source_count(&self, family: Family) -> u32 {
        self.source_counts.get(family) + self.reserved.source_counts.get(family)
    }

    /// How many addresses of a family there are, or will be.
    pub fn vip_count(&self, family: Family) -> u32 {
        self.vip_counts.get(family) + self.reserved.vip_counts.get(family)
    }

    /// An id for a new service port.
    pub fn free_service_id(&self) -> Option<u32> {
        let room = self.services.len() + self.reserved.services.len() < self.capacities.names as usize;
        room.then(|| self.service_pool.free().next()).flatten()
    }
}

fn range_of(base: u32, count: usize) -> Range {
    Range { base, count: u32::try_from(count).unwrap_or(u32::MAX) }
}
