//! Programmed backend records: the current one of each address, the next deadline, the number in each state.

use std::net::IpAddr;

use lb_common::abi::{self, backend_state};

use super::ProgrammedState;
use crate::{
    model::Family,
    plan::{BackendId, BackendRecord, PortKey, ids::IdPool, named, op::next_generation},
};

impl ProgrammedState {
    pub(in crate::plan) fn put_backend(&mut self, id: BackendId, record: BackendRecord, key: &PortKey) {
        if let Some(old) = self.backends.insert(id, record) {
            self.uncount(id, &old);
            if (old.service, old.address) != (record.service, record.address) {
                self.leave(id, &old);
            }
        }
        *self.states.entry(record.state).or_default() += 1;
        self.pool_mut(id.family).take(id.id);
        self.generations.remove(&id);
        let gone = record.state == backend_state::GONE;
        if gone {
            self.gone.insert(id);
        } else if record.deadline_ds != 0 {
            self.deadlines.insert((record.deadline_ds, id));
        }
        let service = self.service_mut(record.service, key);
        service.backends.insert(id);
        if !gone || !service.current.contains_key(&record.address) {
            service.current.insert(record.address, id);
        }
        self.settle(record.service);
    }

    pub(super) fn free_backend(&mut self, id: BackendId, generation: u32) {
        self.put_free_generation(id, generation);
        let Some(record) = self.backends.remove(&id) else { return };
        self.pool_mut(id.family).give_back(id.id);
        self.uncount(id, &record);
        self.leave(id, &record);
        if named::forget(&mut self.endpoints, id, &record) {
            *self.endpoint_counts.slot(id.family) -= 1;
        }
    }

    /// An entry of `endpoints4/6` that the tables held already. One that leads to no record of ours is left to the audit.
    pub(in crate::plan) fn put_endpoint(&mut self, key: (IpAddr, u32), endpoint: abi::Endpoint) {
        let id = BackendId { family: Family::of(key.0), id: endpoint.backend };
        let is_ours = |record: &BackendRecord| (record.address.ip(), record.service) == key;
        if self.backends.get(&id).is_some_and(is_ours) && self.endpoints.insert(key, endpoint).is_none() {
            *self.endpoint_counts.slot(id.family) += 1;
        }
    }

    /// Other nodes find the backend from here on, if it is one of this node.
    pub(super) fn name_endpoint(&mut self, id: BackendId, record: &BackendRecord) {
        if named::put(&mut self.endpoints, &self.backends, id, record) {
            *self.endpoint_counts.slot(id.family) += 1;
        }
    }

    /// Whether an entry of `endpoints4/6` is there, or planned.
    pub fn has_endpoint(&self, key: &(IpAddr, u32)) -> bool {
        self.endpoints.contains_key(key) || self.reserved.endpoints.contains(key)
    }

    /// The entry of `endpoints4/6` that leads to the backend.
    pub fn name_of(&self, id: BackendId) -> Option<(IpAddr, u32)> {
        let record = self.backends.get(&id)?;
        let key = (record.address.ip(), record.service);
        (self.endpoints.get(&key)?.backend == id.id).then_some(key)
    }

    fn uncount(&mut self, id: BackendId, record: &BackendRecord) {
        if let Some(count) = self.states.get_mut(&record.state) {
            *count = count.saturating_sub(1);
        }
        self.deadlines.remove(&(record.deadline_ds, id));
        self.gone.remove(&id);
    }

    fn leave(&mut self, id: BackendId, record: &BackendRecord) {
        if let Some(service) = self.services.get_mut(&record.service) {
            service.backends.remove(&id);
            if service.current.get(&record.address) == Some(&id) {
                service.current.remove(&record.address);
            }
        }
        self.settle(record.service);
    }

    /// How many records are in this state, one of [`backend_state`].
    pub fn count_in(&self, state: u8) -> usize {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// Remembers the generation of an id that is not in use.
    pub(in crate::plan) fn put_free_generation(&mut self, id: BackendId, generation: u32) {
        self.generations.insert(id, generation);
    }

    /// Free backend ids, each with the generation that its next use has.
    pub fn free_backends(&self, family: Family) -> impl Iterator<Item = (BackendId, u32)> + '_ {
        self.pool(family).free().map(move |id| {
            let id = BackendId { family, id };
            (id, next_generation(self.generations.get(&id).copied().unwrap_or_default()))
        })
    }

    fn pool(&self, family: Family) -> &IdPool {
        &self.pools[usize::from(family == Family::V6)]
    }

    pub(super) fn pool_mut(&mut self, family: Family) -> &mut IdPool {
        &mut self.pools[usize::from(family == Family::V6)]
    }
}
