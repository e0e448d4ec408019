//! Marks over what the API says: maintenance, unhealthy endpoints, backends that became ejected.

use tokio::time::Instant;

use super::TableOwner;
use crate::agent::marks::{self, Unhealthy};
use crate::agent::ring::Learnt;
use crate::observe::maintenance::Answer;

impl TableOwner {
    /// The active checks of these endpoints fail, and of no others.
    pub fn set_unhealthy(&mut self, endpoints: Unhealthy) {
        if self.facts.marks.unhealthy != endpoints {
            self.facts.marks.unhealthy = endpoints;
            self.sync();
            self.report_avoided();
        }
    }

    /// An order about maintenance. Answered when the tables hold it, or do not in time.
    pub fn maintain(&mut self, request: marks::Request) {
        let changed = match self.beside.maintenance.obey(request.order) {
            Ok(changed) => changed,
            Err(error) => {
                let error = Some(format!("cannot be written down in the run folder: {error}"));
                // Who asked may have gone away.
                let _ = request.reply.send(Answer { error, ..Answer::default() });
                return;
            }
        };
        if changed {
            tracing::info!(order = ?request.order, "maintenance");
            self.take_maintenance();
        }
        let now = Instant::now();
        self.beside.maintenance.answer_later(request, changed, now);
        self.beside.maintenance.answer(&self.programmer, now);
    }

    /// What is in maintenance differs from what was planned.
    pub(super) fn take_maintenance(&mut self) {
        self.facts.marks.maintenance.clone_from(self.beside.maintenance.targets());
        self.sync();
    }

    /// What an event says is reported with the next beat: when a node dies, thousands of backends become ejected one by one.
    pub fn learn(&mut self, learnt: Learnt) {
        let (programmed, now) = (self.programmer.programmed(), Instant::now());
        match learnt {
            Learnt::Ejection(backend) => {
                let sweeper = &self.beside.sweeper;
                let is_ejected = |id, generation| sweeper.is_ejected(id, generation);
                self.ejections.update(backend, programmed, is_ejected, now);
            }
            Learnt::Shortage { outcome, service, client } => {
                if let Some(record) = programmed.services().get(service) {
                    self.shortages.refused(outcome, &record.key, client, now);
                }
            }
        }
    }

    /// Which backends new flows avoid, where others shall know.
    pub(super) fn report_avoided(&mut self) {
        self.reports.avoided(&self.ejections, &self.facts.marks.unhealthy);
    }
}
