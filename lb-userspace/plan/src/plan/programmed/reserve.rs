//! What planned operations will take that are not carried out yet. Many changes are planned before the first is written, and none may be given the
//! ids, slots or room of another.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::{ProgrammedState, capacities::Counted};
use crate::plan::{BackendId, Frontend, Op, named};
use lb_model::Family;

/// Planned, and not written yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    services: BTreeSet<u32>,
    backends: BTreeSet<BackendId>,
    /// First slots of ranges.
    ranges: BTreeSet<u32>,
    frontends: Counted<Frontend>,
    /// Keys of `endpoints4/6`.
    endpoints: Counted<(IpAddr, u32)>,
    sources: Counted<(u32, IpNet)>,
    vips: Counted<IpAddr>,
}

impl Reserved {
    fn add(&mut self, op: &Op) {
        match op {
            Op::WriteName { id, .. } => drop(self.services.insert(*id)),
            Op::WriteBackend { id, .. } => drop(self.backends.insert(*id)),
            Op::WriteSlots { base, .. } => drop(self.ranges.insert(*base)),
            Op::WriteFrontend { frontend, .. } => self.frontends.insert(*frontend, Family::of(frontend.address)),
            Op::WriteSource { id, network } => self.sources.insert((*id, *network), Family::of(network.addr())),
            Op::WriteVip { address, .. } => self.vips.insert(*address, Family::of(*address)),
            _ => {}
        }
    }

    fn add_endpoint(&mut self, key: (IpAddr, u32)) {
        self.endpoints.insert(key, Family::of(key.0));
    }

    /// The operation's needs are no longer merely set aside. True if they were.
    pub(super) fn remove(&mut self, op: &Op) -> bool {
        if let Some(key) = named::key_of(op) {
            self.endpoints.remove(&key, Family::of(key.0));
        }
        match op {
            Op::WriteName { id, .. } => self.services.remove(id),
            Op::WriteBackend { id, .. } => self.backends.remove(id),
            Op::WriteSlots { base, .. } => self.ranges.remove(base),
            Op::WriteFrontend { frontend, .. } => self.frontends.remove(frontend, Family::of(frontend.address)),
            Op::WriteSource { id, network } => self.sources.remove(&(*id, *network), Family::of(network.addr())),
            Op::WriteVip { address, .. } => self.vips.remove(address, Family::of(*address)),
            _ => false,
        }
    }
}

impl ProgrammedState {
    /// Sets aside what these operations need. Each of them is then either recorded, or given up.
    pub fn reserve(&mut self, ops: &[Op]) {
        for op in ops {
            if let Some(key) = named::key_of(op).filter(|key| !self.endpoints.contains(key)) {
                self.reserved.add_endpoint(key);
            }
            if self.is_new(op) {
                self.reserved.add(op);
                match op {
                    Op::WriteName { id, .. } => self.services.set_aside(*id),
                    Op::WriteBackend { id, .. } => self.backends.set_aside(*id),
                    Op::WriteSlots { base, slots } => self.slots.set_aside(*base, slots),
                    _ => {}
                }
            }
            if let Op::WriteFrontend { entry, .. } = op {
                self.slots.note_generation(entry.generation);
            }
        }
    }

    /// Whether the operation adds something that the tables do not hold.
    fn is_new(&self, op: &Op) -> bool {
        match op {
            Op::WriteName { id, .. } => self.services.get(*id).is_none(),
            Op::WriteBackend { id, .. } => self.backends.get(*id).is_none(),
            Op::WriteFrontend { frontend, .. } => !self.frontends.contains(frontend),
            Op::WriteVip { address, .. } => self.vips.get(*address).is_none(),
            Op::WriteSlots { .. } | Op::WriteSource { .. } => true,
            _ => false,
        }
    }

    /// Gives back what was set aside for an operation that was not carried out.
    pub fn give_up(&mut self, op: &Op) {
        if !self.reserved.remove(op) {
            return;
        }
        match op {
            Op::WriteName { id, .. } if self.services.get(*id).is_none() => self.services.give_back(*id),
            Op::WriteBackend { id, .. } => self.backends.give_back(*id),
            Op::WriteSlots { base, slots } => self.slots.give_back(*base, slots),
            _ => {}
        }
    }

    /// How many frontends of a family there are, or will be.
    pub fn frontend_count(&self, family: Family) -> u32 {
        self.frontends.count(family) + self.reserved.frontends.count(family)
    }

    /// How many entries of `endpoints4/6` there are, or will be.
    pub fn endpoint_count(&self, family: Family) -> u32 {
        self.endpoints.count(family) + self.reserved.endpoints.count(family)
    }

    /// How many source ranges of a family there are, or will be.
    pub fn source_count(&self, family: Family) -> u32 {
        self.services.source_count(family) + self.reserved.sources.count(family)
    }

    /// How many addresses of a family there are, or will be.
    pub fn vip_count(&self, family: Family) -> u32 {
        self.vips.count(family) + self.reserved.vips.count(family)
    }

    /// Whether an entry of `endpoints4/6` is there, or planned.
    pub fn has_endpoint(&self, key: &(IpAddr, u32)) -> bool {
        self.endpoints.contains(key) || self.reserved.endpoints.contains(key)
    }

    /// An id for a new service port.
    pub fn free_service_id(&self) -> Option<u32> {
        let has_room = self.services.len() + self.reserved.services.len() < self.capacities.names as usize;
        has_room.then(|| self.services.free_id()).flatten()
    }
}
