//! The agent's book of what the tables hold: changed by an operation only after its write succeeded.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use lb_common::abi::{self, backend_state};

use super::{
    BackendId, BackendRecord, Frontend, Op, PortKey, Range,
    ids::{IdPool, SlotPool},
    op::next_generation,
};
use crate::model::{Family, Monotonic};

/// How much the tables hold, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    pub frontends4: u32,
    pub frontends6: u32,
    pub backends4: u32,
    pub backends6: u32,
    pub slots: u32,
    pub names: u32,
}

impl Capacities {
    pub fn frontends(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.frontends4,
            Family::V6 => self.frontends6,
        }
    }
}

/// One service port as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedService {
    pub key: PortKey,
    /// `None` until written.
    pub name: Option<abi::ServiceName>,
    pub frontends: BTreeSet<Frontend>,
    /// All its records, those that are gone included.
    pub backends: BTreeSet<BackendId>,
    /// The record that counts for each address: never one that is gone while another is there.
    pub current: BTreeMap<SocketAddr, BackendId>,
}

/// What the tables hold.
#[derive(Clone, Debug)]
pub struct Book {
    pub capacities: Capacities,
    pub services: BTreeMap<u32, BookedService>,
    pub service_ids: BTreeMap<PortKey, u32>,
    pub frontends: BTreeMap<Frontend, abi::Service>,
    /// Records in use, by id.
    pub backends: BTreeMap<BackendId, BackendRecord>,
    /// Slot ranges in use or at rest, by first slot.
    pub ranges: BTreeMap<u32, Vec<abi::Slot>>,
    /// Ranges that no frontend leads to any more, and when they may be written again.
    pub resting: BTreeMap<u32, Monotonic>,
    /// The last generation of slots.
    pub generation: u32,
    /// Backends with a deadline, the next one first.
    pub deadlines: BTreeSet<(u32, BackendId)>,
    /// Backends that are gone, and may still be referred to by flows.
    pub gone: BTreeSet<BackendId>,
    pub(super) slots: SlotPool,
    /// How many frontends lead to each range.
    users: BTreeMap<u32, u32>,
    counts: BTreeMap<Family, u32>,
    service_pool: IdPool,
    pools: [IdPool; 2],
    /// Last generation of ids that are free again.
    generations: BTreeMap<BackendId, u32>,
}

impl Book {
    /// The book of empty tables.
    pub fn new(capacities: Capacities) -> Self {
        Self {
            capacities,
            services: BTreeMap::new(),
            service_ids: BTreeMap::new(),
            frontends: BTreeMap::new(),
            backends: BTreeMap::new(),
            ranges: BTreeMap::new(),
            resting: BTreeMap::new(),
            generation: 0,
            deadlines: BTreeSet::new(),
            gone: BTreeSet::new(),
            slots: SlotPool::new(capacities.slots),
            users: BTreeMap::new(),
            counts: BTreeMap::new(),
            service_pool: IdPool::new(u32::MAX),
            pools: [IdPool::new(capacities.backends4), IdPool::new(capacities.backends6)],
            generations: BTreeMap::new(),
        }
    }

    /// Takes a successful operation for the service port `key` down. A range that no frontend leads to rests for `grace`.
    pub fn record(&mut self, key: &PortKey, op: &Op, now: Monotonic, grace: Duration) {
        match op {
            Op::WriteName { id, name } => self.service_mut(*id, key).name = Some(*name),
            Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => self.put_backend(*id, *record, key),
            Op::WriteSlots { base, slots } => {
                // It rests until a frontend leads to it, in case that the write of the frontend fails.
                self.put_range(*base, slots.clone());
                self.resting.insert(*base, now + grace);
            }
            Op::WriteFrontend { frontend, entry } => {
                self.remove_frontend(*frontend, now + grace);
                self.put_frontend(*frontend, *entry, key);
            }
            Op::RemoveFrontend { frontend } => self.remove_frontend(*frontend, now + grace),
            Op::FreeBackend { id, generation } => self.free_backend(*id, *generation),
            Op::ReleaseSlots { range } => {
                self.ranges.remove(&range.base);
                self.resting.remove(&range.base);
                self.slots.give_back(*range);
            }
            Op::ForgetService { id } => self.forget(*id),
            Op::WriteConfig { .. } => {}
        }
    }

    pub(super) fn put_range(&mut self, base: u32, slots: Vec<abi::Slot>) -> bool {
        let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        if !self.slots.take(Range { base, count }) {
            return false;
        }
        self.generation = slots.first().map_or(self.generation, |slot| slot.generation.max(self.generation));
        self.ranges.insert(base, slots);
        true
    }

    pub(super) fn put_frontend(&mut self, frontend: Frontend, entry: abi::Service, key: &PortKey) {
        self.service_mut(entry.id, key).frontends.insert(frontend);
        self.generation = self.generation.max(entry.generation);
        self.frontends.insert(frontend, entry);
        *self.counts.entry(Family::of(frontend.address)).or_default() += 1;
        if entry.slot_count > 0 {
            *self.users.entry(entry.slot_base).or_default() += 1;
            self.resting.remove(&entry.slot_base);
        }
    }

    fn remove_frontend(&mut self, frontend: Frontend, rest_until: Monotonic) {
        let Some(entry) = self.frontends.remove(&frontend) else { return };
        *self.counts.entry(Family::of(frontend.address)).or_default() -= 1;
        if let Some(service) = self.services.get_mut(&entry.id) {
            service.frontends.remove(&frontend);
        }
        if entry.slot_count == 0 {
            return;
        }
        let users = self.users.entry(entry.slot_base).or_default();
        *users = users.saturating_sub(1);
        if *users == 0 {
            self.users.remove(&entry.slot_base);
            if self.ranges.contains_key(&entry.slot_base) {
                self.resting.insert(entry.slot_base, rest_until);
            }
        }
    }

    /// How many frontends of a family there are.
    pub fn frontend_count(&self, family: Family) -> u32 {
        self.counts.get(&family).copied().unwrap_or_default()
    }

    /// The service with this id; made if it is new.
    pub(super) fn service_mut(&mut self, id: u32, key: &PortKey) -> &mut BookedService {
        self.services.entry(id).or_insert_with(|| {
            self.service_pool.take(id);
            self.service_ids.insert(key.clone(), id);
            BookedService {
                key: key.clone(),
                name: None,
                frontends: BTreeSet::new(),
                backends: BTreeSet::new(),
                current: BTreeMap::new(),
            }
        })
    }

    fn forget(&mut self, id: u32) {
        if let Some(service) = self.services.remove(&id) {
            self.service_ids.remove(&service.key);
            self.service_pool.give_back(id);
        }
    }

    pub(super) fn put_backend(&mut self, id: BackendId, record: BackendRecord, key: &PortKey) {
        if let Some(old) = self.backends.insert(id, record) {
            self.deadlines.remove(&(old.deadline_ds, id));
        }
        self.pool_mut(id.family).take(id.id);
        self.generations.remove(&id);
        let gone = record.state == backend_state::GONE;
        if record.deadline_ds != 0 && !gone {
            self.deadlines.insert((record.deadline_ds, id));
        }
        if gone {
            self.gone.insert(id);
        }
        let service = self.service_mut(record.service, key);
        service.backends.insert(id);
        let current = service.current.entry(record.address).or_insert(id);
        if !gone {
            *current = id;
        }
    }

    fn free_backend(&mut self, id: BackendId, generation: u32) {
        self.gone.remove(&id);
        self.put_free_generation(id, generation);
        self.pool_mut(id.family).give_back(id.id);
        let Some(record) = self.backends.remove(&id) else { return };
        self.deadlines.remove(&(record.deadline_ds, id));
        if let Some(service) = self.services.get_mut(&record.service) {
            service.backends.remove(&id);
            if service.current.get(&record.address) == Some(&id) {
                service.current.remove(&record.address);
            }
        }
    }

    /// Remembers the generation of an id that is not in use.
    pub(super) fn put_free_generation(&mut self, id: BackendId, generation: u32) {
        self.generations.insert(id, generation);
    }

    /// Free backend ids, each with the generation that its next use has.
    pub fn free_backends(&self, family: Family) -> impl Iterator<Item = (BackendId, u32)> + '_ {
        self.pool(family).free().map(move |id| {
            let id = BackendId { family, id };
            (id, next_generation(self.generations.get(&id).copied().unwrap_or_default()))
        })
    }

    /// An id for a new service port.
    pub fn free_service_id(&self) -> Option<u32> {
        let room = self.services.len() < self.capacities.names as usize;
        room.then(|| self.service_pool.free().next()).flatten()
    }

    fn pool(&self, family: Family) -> &IdPool {
        &self.pools[usize::from(family == Family::V6)]
    }

    fn pool_mut(&mut self, family: Family) -> &mut IdPool {
        &mut self.pools[usize::from(family == Family::V6)]
    }
}
