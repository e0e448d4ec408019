//! What planned operations will take that are not carried out yet. Many changes are planned before the first is written, and none may be given the
//! ids, slots or room of another.

use std::net::IpAddr;

use super::ProgrammedState;
use crate::plan::op::Added;
use crate::plan::{Op, Part, named};

impl ProgrammedState {
    /// Sets aside what these operations need. Each of them is then either recorded, or given up.
    pub fn reserve(&mut self, ops: &[Op]) {
        for op in ops {
            if let Some(key) = named::key_of(op).filter(|key| !self.endpoints.contains(key)) {
                self.reserved.add_endpoint(key);
            }
            if let Some(added) = op.added().filter(|added| self.is_new(added)) {
                self.reserved.add(&added);
                match added {
                    Added::Name(id) => self.services.set_aside(id),
                    Added::Backend(id) => self.backends.set_aside(id),
                    Added::Slots(base, slots) => self.slots.set_aside(base, slots),
                    Added::Frontend(_) | Added::Source(..) | Added::Vip(_) => {}
                }
            }
            if let Op::WriteFrontend { entry, .. } = op {
                self.slots.note_generation(entry.generation);
            }
        }
    }

    /// Whether the tables do not hold it.
    fn is_new(&self, added: &Added<'_>) -> bool {
        match added {
            Added::Name(id) => self.services.get(*id).is_none(),
            Added::Backend(id) => self.backends.get(*id).is_none(),
            Added::Frontend(frontend) => !self.frontends.contains(frontend),
            Added::Vip(address) => self.vips.get(*address).is_none(),
            Added::Slots(..) | Added::Source(..) => true,
        }
    }

    /// Gives back what was set aside for an operation that was not carried out.
    pub fn give_up(&mut self, op: &Op) {
        let Some(added) = op.added().filter(|_| self.reserved.remove(op)) else { return };
        match added {
            Added::Name(id) if self.services.get(id).is_none() => self.services.give_back(id),
            Added::Backend(id) => self.backends.give_back(id),
            Added::Slots(base, slots) => self.slots.give_back(base, slots),
            Added::Name(_) | Added::Frontend(_) | Added::Source(..) | Added::Vip(_) => {}
        }
    }

    /// How many entries the part has, or will have, where it may find no room for more.
    pub fn count(&self, part: Part) -> Option<usize> {
        Some(match part {
            Part::Names => self.services.iter().filter(|(_, service)| service.name.is_some()).count(),
            Part::Backends(family) => self.backends.records().keys().filter(|id| id.family == family).count(),
            Part::Endpoints(family) => self.endpoints.count(family) + self.reserved.endpoints.count(family),
            Part::Slots => self.slots.count(),
            Part::Sources(family) => self.services.source_count(family) + self.reserved.sources.count(family),
            Part::Services(family) => self.frontends.count(family) + self.reserved.frontends.count(family),
            Part::Vips(family) => self.vips.count(family) + self.reserved.vips.count(family),
            Part::VipFilter | Part::Config | Part::Plan => return None,
        })
    }

    /// Whether an entry of `endpoints4/6` is there, or planned.
    pub fn has_endpoint(&self, key: &(IpAddr, u32)) -> bool {
        self.endpoints.contains(key) || self.reserved.endpoints.contains(key)
    }

    /// An id for a new service port.
    pub fn free_service_id(&self) -> Option<u32> {
        let has_room = self.services.len() + self.reserved.services.len() < self.capacities.of(Part::Names) as usize;
        has_room.then(|| self.services.free_id()).flatten()
    }
}
