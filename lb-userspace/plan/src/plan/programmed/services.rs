//! Programmed service ports: their ids and names, and what belongs to each.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use ipnet::IpNet;
use lb_common::abi::{self, backend_state};

use super::capacities::PerFamily;
use crate::plan::{BackendId, BackendRecord, Frontend, SortedMap, SortedSet, ids::IdPool, life::OwnDrainLimits};
use lb_model::{Family, PortKey};

/// One service port as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgrammedService {
    pub key: PortKey,
    /// `None` until written.
    pub name: Option<Box<abi::ServiceName>>,
    pub frontends: SortedSet<Frontend>,
    /// All its records, those that are gone included.
    pub backends: SortedSet<BackendId>,
    /// The record that counts for each address: never one that is gone while another is there.
    pub current: SortedMap<SocketAddr, BackendId>,
    /// Networks that it admits where a frontend asks for it.
    pub sources: BTreeSet<IpNet>,
}

impl ProgrammedService {
    fn new(key: PortKey) -> Self {
        Self {
            key,
            name: None,
            frontends: SortedSet::default(),
            backends: SortedSet::default(),
            current: SortedMap::default(),
            sources: BTreeSet::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.backends.is_empty() && self.sources.is_empty()
    }
}

/// Service ports as written.
#[derive(Clone, Debug)]
pub struct Services {
    by_id: BTreeMap<u32, ProgrammedService>,
    ids: BTreeMap<PortKey, u32>,
    /// Those that have nothing left.
    empty: BTreeSet<u32>,
    /// How many have a frontend.
    served: usize,
    source_counts: PerFamily,
    /// What Services say of drains, as last wanted: it holds for what is deleted, too.
    drain_limits: BTreeMap<u32, OwnDrainLimits>,
    pool: IdPool,
}

impl Services {
    pub(super) fn new() -> Self {
        Self {
            by_id: BTreeMap::new(),
            ids: BTreeMap::new(),
            empty: BTreeSet::new(),
            served: 0,
            source_counts: PerFamily::default(),
            drain_limits: BTreeMap::new(),
            pool: IdPool::new(u32::MAX),
        }
    }

    pub fn get(&self, id: u32) -> Option<&ProgrammedService> {
        self.by_id.get(&id)
    }

    pub fn by_key(&self, key: &PortKey) -> Option<&ProgrammedService> {
        self.by_id.get(self.ids.get(key)?)
    }

    pub fn id_of(&self, key: &PortKey) -> Option<u32> {
        self.ids.get(key).copied()
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &ProgrammedService)> {
        self.by_id.iter().map(|(id, service)| (*id, service))
    }

    /// The id of each.
    pub fn ids(&self) -> &BTreeMap<PortKey, u32> {
        &self.ids
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Those that have nothing left.
    pub fn empty(&self) -> &BTreeSet<u32> {
        &self.empty
    }

    /// How many have a frontend.
    pub fn served(&self) -> usize {
        self.served
    }

    /// What the service port says of drains.
    pub fn own_drain_limits(&self, id: u32) -> OwnDrainLimits {
        self.drain_limits.get(&id).copied().unwrap_or_default()
    }

    /// How many source ranges of a family all of them have.
    pub(super) fn source_count(&self, family: Family) -> usize {
        self.source_counts.get(family)
    }

    /// The lowest id that is not in use.
    pub(super) fn free_id(&self) -> Option<u32> {
        self.pool.free().next()
    }

    /// No other service port gets the id.
    pub(super) fn set_aside(&mut self, id: u32) {
        self.pool.take(id);
    }

    /// The id was set aside for a name that was not written.
    pub(super) fn give_back(&mut self, id: u32) {
        self.pool.give_back(id);
    }

    pub(super) fn put_name(&mut self, id: u32, key: &PortKey, name: abi::ServiceName) {
        self.get_or_add(id, key).name = Some(Box::new(name));
    }

    pub(super) fn put_drain_limits(&mut self, key: &PortKey, limits: OwnDrainLimits) {
        let Some(id) = self.ids.get(key) else { return };
        if limits == OwnDrainLimits::default() {
            self.drain_limits.remove(id);
        } else {
            self.drain_limits.insert(*id, limits);
        }
    }

    pub(super) fn add_frontend(&mut self, id: u32, key: &PortKey, frontend: Frontend) {
        let frontends = &mut self.get_or_add(id, key).frontends;
        let is_first = frontends.is_empty();
        frontends.insert(frontend);
        self.served += usize::from(is_first);
        self.note_empty(id);
    }

    pub(super) fn remove_frontend(&mut self, id: u32, frontend: Frontend) {
        if let Some(service) = self.by_id.get_mut(&id) {
            service.frontends.remove(&frontend);
            self.served -= usize::from(service.frontends.is_empty());
        }
        self.note_empty(id);
    }

    pub(super) fn add_backend(&mut self, id: BackendId, record: &BackendRecord, key: &PortKey) {
        let service = self.get_or_add(record.service, key);
        service.backends.insert(id);
        if record.state != backend_state::GONE || !service.current.contains_key(&record.address) {
            service.current.insert(record.address, id);
        }
        self.note_empty(record.service);
    }

    pub(super) fn remove_backend(&mut self, id: BackendId, record: &BackendRecord) {
        if let Some(service) = self.by_id.get_mut(&record.service) {
            service.backends.remove(&id);
            if service.current.get(&record.address) == Some(&id) {
                service.current.remove(&record.address);
            }
        }
        self.note_empty(record.service);
    }

    pub(super) fn add_source(&mut self, id: u32, key: &PortKey, network: IpNet) {
        if self.get_or_add(id, key).sources.insert(network) {
            self.source_counts.add(Family::of(network.addr()));
        }
        self.note_empty(id);
    }

    pub(super) fn remove_source(&mut self, id: u32, network: IpNet) {
        if self.by_id.get_mut(&id).is_some_and(|service| service.sources.remove(&network)) {
            self.source_counts.subtract(Family::of(network.addr()));
        }
        self.note_empty(id);
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(service) = self.by_id.remove(&id) {
            self.empty.remove(&id);
            self.drain_limits.remove(&id);
            self.ids.remove(&service.key);
            self.pool.give_back(id);
        }
    }

    fn get_or_add(&mut self, id: u32, key: &PortKey) -> &mut ProgrammedService {
        self.by_id.entry(id).or_insert_with(|| {
            self.pool.take(id);
            self.ids.insert(key.clone(), id);
            self.empty.insert(id);
            ProgrammedService::new(key.clone())
        })
    }

    /// Notes whether the service port has anything left.
    fn note_empty(&mut self, id: u32) {
        if self.by_id.get(&id).is_some_and(ProgrammedService::is_empty) {
            self.empty.insert(id);
        } else {
            self.empty.remove(&id);
        }
    }
}
