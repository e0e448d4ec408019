//! Programmed backend records: their ids, the next deadline, the number in each state.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi::backend_state;

use super::Capacities;
use crate::plan::Part;
use crate::plan::{BackendId, BackendRecord, ids::IdPool, op::next_generation};
use lb_model::Family;

/// Backend records as written.
#[derive(Clone, Debug)]
pub struct Backends {
    /// In use, by id.
    records: BTreeMap<BackendId, BackendRecord>,
    /// With a deadline, the next one first.
    deadlines: BTreeSet<(u32, BackendId)>,
    /// Gone, and maybe still referred to by flows.
    gone: BTreeSet<BackendId>,
    /// Last generation of ids that are free again.
    generations: BTreeMap<BackendId, u32>,
    /// Records by state.
    states: BTreeMap<u8, usize>,
    pools: [IdPool; 2],
}

impl Backends {
    pub(super) fn new(capacities: &Capacities) -> Self {
        Self {
            records: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            gone: BTreeSet::new(),
            generations: BTreeMap::new(),
            states: BTreeMap::new(),
            pools: Family::ALL.map(|family| IdPool::new(capacities.of(Part::Backends(family)))),
        }
    }

    pub fn get(&self, id: BackendId) -> Option<&BackendRecord> {
        self.records.get(&id)
    }

    /// Those in use, by id.
    pub fn records(&self) -> &BTreeMap<BackendId, BackendRecord> {
        &self.records
    }

    /// Those with a deadline, in tenths of a second of the monotonic clock; the next one first.
    pub fn deadlines(&self) -> &BTreeSet<(u32, BackendId)> {
        &self.deadlines
    }

    /// Those that are gone, and that flows may still refer to.
    pub fn gone(&self) -> &BTreeSet<BackendId> {
        &self.gone
    }

    /// Ids that were used and are free again, each with its last generation.
    pub fn generations(&self) -> &BTreeMap<BackendId, u32> {
        &self.generations
    }

    /// How many records are in this state, one of [`backend_state`].
    pub fn count_in(&self, state: u8) -> usize {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// Free ids, each with the generation that its next use has.
    pub fn free(&self, family: Family) -> impl Iterator<Item = (BackendId, u32)> + '_ {
        self.pools[usize::from(family == Family::V6)].free().map(move |id| {
            let id = BackendId { family, id };
            (id, next_generation(self.generations.get(&id).copied().unwrap_or_default()))
        })
    }

    /// Returns the record of before.
    pub(super) fn put(&mut self, id: BackendId, record: BackendRecord) -> Option<BackendRecord> {
        let before = self.records.insert(id, record);
        if let Some(before) = &before {
            self.uncount(id, before);
        }
        *self.states.entry(record.state).or_default() += 1;
        self.set_aside(id);
        self.generations.remove(&id);
        if record.state == backend_state::GONE {
            self.gone.insert(id);
        } else if record.deadline_ds != 0 {
            self.deadlines.insert((record.deadline_ds, id));
        }
        before
    }

    /// Gives the id up; returns the record that it had. The generation is remembered for the next use.
    pub(super) fn release(&mut self, id: BackendId, generation: u32) -> Option<BackendRecord> {
        self.generations.insert(id, generation);
        let record = self.records.remove(&id)?;
        self.give_back(id);
        self.uncount(id, &record);
        Some(record)
    }

    /// No other backend gets the id.
    pub(super) fn set_aside(&mut self, id: BackendId) {
        self.pool_mut(id.family).take(id.id);
    }

    /// The id was set aside for a record that was not written.
    pub(super) fn give_back(&mut self, id: BackendId) {
        self.pool_mut(id.family).give_back(id.id);
    }

    fn uncount(&mut self, id: BackendId, record: &BackendRecord) {
        if let Some(count) = self.states.get_mut(&record.state) {
            *count = count.saturating_sub(1);
        }
        self.deadlines.remove(&(record.deadline_ds, id));
        self.gone.remove(&id);
    }

    fn pool_mut(&mut self, family: Family) -> &mut IdPool {
        &mut self.pools[usize::from(family == Family::V6)]
    }
}
