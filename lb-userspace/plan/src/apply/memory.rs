//! Tables in memory: for tests, and for a dry run. Refuses what the kernel would refuse, and fails where a test asks for it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    ops,
};

use ipnet::IpNet;
use lb_common::abi;

use super::{Store, StoreError, records};
use crate::plan::{
    self, BackendId, BackendRecord, Capacities, Endpoints, Frontend, Loaded, Op, Part, Range, Stray, config,
};
use lb_model::Family;
use lb_tables::vip_filter;

/// How many old entries readers may hold.
const HELD_MAX: usize = 64;

/// Tables in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    capacities: Capacities,
    pub names: BTreeMap<u32, abi::ServiceName>,
    pub frontends: BTreeMap<Frontend, abi::Service>,
    pub backends: BTreeMap<BackendId, BackendRecord>,
    /// By address and service port id.
    pub endpoints: Endpoints,
    pub slots: BTreeMap<u32, abi::Slot>,
    pub sources: BTreeMap<(u32, IpNet), abi::Source>,
    pub vips: BTreeMap<IpAddr, abi::Vip>,
    /// In words; empty: nobody is held for one.
    pub vip_filter: Vec<u64>,
    /// Revision and time of the last complete run.
    pub programmed: Option<(u64, u32)>,
    /// Backends that some flow refers to.
    pub flows: BTreeSet<BackendId>,
    /// Every operation that was carried out.
    pub log: Vec<Op>,
    /// How many operations are to succeed before one fails, again and again from the front; empty: all succeed.
    pub failures: Vec<usize>,
    /// Addresses of which no entry can be written, whatever is tried.
    pub broken: BTreeSet<IpAddr>,
    /// Look at the tables as a reader would after each write, and panic at what it must never see.
    pub check_each_write: bool,
    /// Entries as they were at some time, the newest last: a reader may hold a copy of one for a while.
    pub(super) held: VecDeque<(Frontend, abi::Service)>,
}

impl MemoryStore {
    /// Empty tables.
    pub fn new(capacities: Capacities) -> Self {
        Self {
            capacities,
            names: BTreeMap::new(),
            frontends: BTreeMap::new(),
            backends: BTreeMap::new(),
            endpoints: Endpoints::new(),
            slots: BTreeMap::new(),
            sources: BTreeMap::new(),
            vips: BTreeMap::new(),
            vip_filter: Vec::new(),
            programmed: None,
            flows: BTreeSet::new(),
            log: Vec::new(),
            failures: Vec::new(),
            broken: BTreeSet::new(),
            check_each_write: false,
            held: VecDeque::new(),
        }
    }

    /// A size for tests: large enough not to matter.
    pub fn roomy() -> Self {
        Self::new(Capacities::all(1000).with(Part::Slots, 10_000))
    }

    /// No reader holds a copy of an entry any more, as when an agent starts: that takes longer than a program runs.
    pub fn end_readers(&mut self) {
        self.held.clear();
    }

    fn fail_if_told(&mut self) -> Result<(), StoreError> {
        match self.failures.first_mut() {
            Some(0) => {
                self.failures.remove(0);
                Err(StoreError::Failed("fails as the test asks".into()))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn check_room(&self, part: Part, used: usize) -> Result<(), StoreError> {
        let has_room = used < self.capacities.of(part) as usize;
        if has_room { Ok(()) } else { Err(StoreError::Full(part.name())) }
    }

    fn put_frontend(&mut self, frontend: Frontend, entry: abi::Service) -> Result<(), StoreError> {
        let family = Family::of(frontend.address);
        if !self.frontends.contains_key(&frontend) {
            let others = self.frontends.keys().filter(|other| Family::of(other.address) == family);
            self.check_room(Part::Services(family), others.count())?;
        }
        self.frontends.insert(frontend, entry);
        self.held.push_back((frontend, entry));
        if self.held.len() > HELD_MAX {
            self.held.pop_front();
        }
        Ok(())
    }

    /// As the kernel's map: at its capacity it takes no new key, and what is there can be written over.
    fn put_endpoint(&mut self, id: BackendId, record: &BackendRecord) -> Result<(), StoreError> {
        if plan::named(id, record).is_some_and(|named| !self.endpoints.contains_key(&named.key)) {
            let others = self.endpoints.keys().filter(|(address, _)| Family::of(*address) == id.family);
            self.check_room(Part::Endpoints(id.family), others.count())?;
        }
        plan::put_endpoint(&mut self.endpoints, &self.backends, id, record);
        Ok(())
    }

    fn put_source(&mut self, id: u32, network: IpNet) -> Result<(), StoreError> {
        let family = Family::of(network.addr());
        if !self.sources.contains_key(&(id, network)) {
            let others = self.sources.keys().filter(|(_, other)| Family::of(other.addr()) == family);
            self.check_room(Part::Sources(family), others.count())?;
        }
        self.sources.insert((id, network), abi::Source { service: id });
        Ok(())
    }

    fn put_vip(&mut self, address: IpAddr, vip: abi::Vip) -> Result<(), StoreError> {
        let family = Family::of(address);
        if !self.vips.contains_key(&address) {
            let others = self.vips.keys().filter(|other| Family::of(**other) == family);
            self.check_room(Part::Vips(family), others.count())?;
        }
        self.vips.insert(address, vip);
        Ok(())
    }
}

impl Store for MemoryStore {
    fn capacities(&self) -> Capacities {
        self.capacities
    }

    fn load_part(&self, part: Part, loaded: &mut Loaded) -> Result<(), StoreError> {
        match part {
            Part::Names => loaded.names = self.names.iter().map(|(id, name)| (*id, *name)).collect(),
            Part::Services(family) => {
                let of_family = self.frontends.iter().filter(|(frontend, _)| Family::of(frontend.address) == family);
                loaded.frontends.extend(of_family.map(|(frontend, entry)| (*frontend, *entry)));
            }
            Part::Backends(family) => self.load_backends(family, 0..u32::MAX, loaded)?,
            Part::Endpoints(family) => {
                let of_family = self.endpoints.iter().filter(|((address, _), _)| Family::of(*address) == family);
                loaded.endpoints.extend(of_family.map(|(key, endpoint)| (*key, *endpoint)));
            }
            Part::Sources(family) => {
                let of_family = self.sources.iter().filter(|((_, network), _)| Family::of(network.addr()) == family);
                loaded.sources.extend(of_family.map(|((id, network), source)| (*id, *network, *source)));
            }
            Part::Vips(family) => {
                let of_family = self.vips.iter().filter(|(address, _)| Family::of(**address) == family);
                loaded.vips.extend(of_family.map(|(address, vip)| (*address, *vip)));
            }
            Part::VipFilter => loaded.vip_filter.clone_from(&self.vip_filter),
            Part::Config => {
                let (revision, programmed_ds) = self.programmed.unwrap_or_default();
                loaded.config = Some(config(revision, programmed_ds));
            }
            Part::Slots | Part::Plan => {}
        }
        Ok(())
    }

    fn load_backends(&self, family: Family, ids: ops::Range<u32>, loaded: &mut Loaded) -> Result<(), StoreError> {
        let ids = BackendId { family, id: ids.start }..BackendId { family, id: ids.end };
        let used = self.backends.range(ids).filter(|(_, record)| record.generation != 0);
        loaded.backends.extend(used.map(|(id, record)| (*id, *record)));
        Ok(())
    }

    fn write_vip_filter(&mut self, words: &[u64]) {
        self.vip_filter = words.to_vec();
    }

    /// None of the keys here can be one.
    fn remove_stray(&mut self, _: &Stray) -> Result<(), StoreError> {
        Ok(())
    }

    fn slots(&self, ranges: &[Range]) -> Result<Vec<Vec<abi::Slot>>, StoreError> {
        let slot = |index| self.slots.get(&index).copied().unwrap_or_default();
        Ok(ranges.iter().map(|range| (range.base..range.end()).map(slot).collect()).collect())
    }

    fn apply(&mut self, op: &Op) -> Result<(), StoreError> {
        if let Some(address) = op.address() {
            vip_filter::know(&mut self.vip_filter, address);
        }
        self.fail_if_told()?;
        if op.address().is_some_and(|address| self.broken.contains(&address)) {
            return Err(StoreError::Failed("it is broken".into()));
        }
        match op {
            Op::WriteName { id, name } => {
                self.names.insert(*id, *name);
            }
            Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => {
                self.backends.insert(*id, *record);
                self.put_endpoint(*id, record)?;
            }
            Op::WriteSlots { base, slots } => {
                self.slots.extend((*base..).zip(slots.iter().copied()));
            }
            Op::WriteSource { id, network } => self.put_source(*id, *network)?,
            Op::RemoveSource { id, network } => {
                self.sources.remove(&(*id, *network));
            }
            Op::WriteVip { address, vip } => self.put_vip(*address, *vip)?,
            Op::RemoveVip { address } => {
                self.vips.remove(address);
            }
            Op::WriteFrontend { frontend, entry, .. } => self.put_frontend(*frontend, *entry)?,
            Op::RemoveFrontend { frontend } => {
                self.frontends.remove(frontend);
            }
            Op::FreeBackend { id, generation } => {
                if let Some(record) = self.backends.insert(*id, records::free(id.family, *generation)) {
                    plan::forget_endpoint(&mut self.endpoints, *id, &record);
                }
            }
            // The kernel's slots keep their content, too.
            Op::ReleaseSlots { .. } => {}
            Op::ForgetService { id } => {
                self.names.remove(id);
            }
            Op::WriteConfig { revision, programmed_ds } => self.programmed = Some((*revision, *programmed_ds)),
        }
        self.log.push(op.clone());
        if self.check_each_write {
            let problems = self.problems();
            assert!(problems.is_empty(), "after {op}: {problems:?}\n{}", self.dump());
        }
        Ok(())
    }

    fn referred(&mut self, ids: &BTreeSet<BackendId>) -> Result<BTreeSet<BackendId>, StoreError> {
        Ok(ids.intersection(&self.flows).copied().collect())
    }
}
