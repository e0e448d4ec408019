//! Marks over what the API says: maintenance, unhealthy endpoints, backends that became ejected.

use tokio::time::Instant;

use super::Tables;
use crate::agent::marks::{self, Unhealthy};
use crate::plan::BackendId;

impl Tables {
    /// The active checks of these endpoints fail, and of no others.
    pub fn set_unhealthy(&mut self, endpoints: Unhealthy) {
        if self.facts.marks.unhealthy != endpoints {
            self.facts.marks.unhealthy = endpoints;
            self.sync();
            self.tell_avoided();
        }
    }

    /// An order about maintenance. Answered when the tables hold it.
    pub fn maintain(&mut self, request: marks::Request) {
        let done = self.maintenance.obey(request.order);
        let changed = *done.as_ref().unwrap_or(&false);
        if changed {
            tracing::info!(order = ?request.order, "maintenance");
            self.take_maintenance();
        }
        let error = done.err().map(|error| format!("cannot be written down in the run folder: {error}"));
        self.maintenance.answer_later(request.reply, changed, error);
        if !self.written.waits() {
            self.maintenance.answer(self.programmer.programmed());
        }
    }

    /// What is in maintenance differs from what was planned.
    pub(super) fn take_maintenance(&mut self) {
        self.facts.marks.maintenance.clone_from(self.maintenance.targets());
        self.sync();
    }

    /// A backend became ejected, or is no longer.
    pub fn learn(&mut self, backend: BackendId) {
        let (programmed, sweeper) = (self.programmer.programmed(), &self.sweeper);
        // Told with the next beat: when a node dies, thousands become ejected one by one.
        self.avoided_differ |= self.ejections.update(
            backend,
            programmed,
            |id, generation| sweeper.is_ejected(id, generation),
            Instant::now(),
        );
    }

    /// Which backends new flows avoid, where others shall know.
    pub(super) fn tell_avoided(&mut self) {
        let ejections = self.ejections.known().count() as u64;
        self.progress.send_modify(|progress| progress.tables.ejections = ejections);
        self.object_events.of_avoided(self.ejections.known(), &self.facts.marks.unhealthy);
    }
}
