//! The programmed state: what the tables hold. An operation changes it only after its write succeeded.
//!
//! Counts and next deadlines are maintained at each change, so no query walks the whole state.

mod backends;
mod drains;
mod ranges;
mod reserve;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use lb_common::abi;

use super::{
    BackendId, BackendRecord, Endpoints, Frontend, Op, PortKey, SortedMap, SortedSet, Use,
    ids::{IdPool, SlotPool},
    life::OwnDrainLimits,
};
use crate::model::{Family, Monotonic};
pub use drains::{DrainEnds, Drains};
use reserve::Reserved;

/// How much the tables hold, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    pub frontends4: u32,
    pub frontends6: u32,
    pub backends4: u32,
    pub backends6: u32,
    pub endpoints4: u32,
    pub endpoints6: u32,
    pub slots: u32,
    pub names: u32,
    pub sources4: u32,
    pub sources6: u32,
    pub vips4: u32,
    pub vips6: u32,
}

impl Capacities {
    /// The same room in every table.
    pub const fn all(count: u32) -> Self {
        Self {
            frontends4: count,
            frontends6: count,
            backends4: count,
            backends6: count,
            endpoints4: count,
            endpoints6: count,
            slots: count,
            names: count,
            sources4: count,
            sources6: count,
            vips4: count,
            vips6: count,
        }
    }

    pub fn frontends(&self, family: Family) -> u32 {
        of(family, self.frontends4, self.frontends6)
    }

    pub fn backends(&self, family: Family) -> u32 {
        of(family, self.backends4, self.backends6)
    }

    pub fn endpoints(&self, family: Family) -> u32 {
        of(family, self.endpoints4, self.endpoints6)
    }

    pub fn sources(&self, family: Family) -> u32 {
        of(family, self.sources4, self.sources6)
    }

    pub fn vips(&self, family: Family) -> u32 {
        of(family, self.vips4, self.vips6)
    }
}

fn of(family: Family, v4: u32, v6: u32) -> u32 {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

/// One number for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerFamily([u32; 2]);

impl PerFamily {
    pub fn get(self, family: Family) -> u32 {
        of(family, self.0[0], self.0[1])
    }

    pub fn slot(&mut self, family: Family) -> &mut u32 {
        &mut self.0[usize::from(family == Family::V6)]
    }
}

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
    fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.backends.is_empty() && self.sources.is_empty()
    }
}

/// What the tables hold.
#[derive(Clone, Debug)]
pub struct ProgrammedState {
    pub capacities: Capacities,
    pub services: BTreeMap<u32, ProgrammedService>,
    pub service_ids: BTreeMap<PortKey, u32>,
    pub frontends: BTreeMap<Frontend, abi::Service>,
    /// How each frontend uses its service port.
    pub uses: BTreeMap<Frontend, Use>,
    /// Records in use, by id.
    pub backends: BTreeMap<BackendId, BackendRecord>,
    /// How other nodes find the backends of this one.
    endpoints: Endpoints,
    /// Slot ranges, unused ones included, by first slot.
    pub ranges: BTreeMap<u32, Vec<abi::Slot>>,
    /// Ranges that no frontend leads to any more, by when they may be written again.
    pub unused_ranges: BTreeSet<(Monotonic, u32)>,
    pub vips: BTreeMap<IpAddr, abi::Vip>,
    /// What was noted last.
    pub config: Option<abi::Config>,
    /// The last generation of slots.
    pub generation: u32,
    /// Backends with a deadline, the next one first.
    pub deadlines: BTreeSet<(u32, BackendId)>,
    pub drains: Drains,
    /// What Services say of drains, as last wanted: it holds for what is deleted, too.
    drain_limits: BTreeMap<u32, OwnDrainLimits>,
    /// Backends that are gone, and may still be referred to by flows.
    pub gone: BTreeSet<BackendId>,
    /// Service ports that have nothing left.
    pub empty: BTreeSet<u32>,
    /// Last generation of ids that are free again.
    pub generations: BTreeMap<BackendId, u32>,
    slots: SlotPool,
    /// When each unused range may be written again.
    reusable_at: BTreeMap<u32, Monotonic>,
    /// How many frontends lead to each range.
    users: BTreeMap<u32, u32>,
    /// Count and first slot of each range that frontends lead to.
    sizes: BTreeSet<(u32, u32)>,
    /// Records by state.
    states: BTreeMap<u8, usize>,
    /// Service ports with a frontend.
    served: usize,
    frontend_counts: PerFamily,
    endpoint_counts: PerFamily,
    source_counts: PerFamily,
    vip_counts: PerFamily,
    service_pool: IdPool,
    pools: [IdPool; 2],
    reserved: Reserved,
}

impl ProgrammedState {
    /// The programmed state of empty tables.
    pub fn new(capacities: Capacities) -> Self {
        Self {
            capacities,
            services: BTreeMap::new(),
            service_ids: BTreeMap::new(),
            frontends: BTreeMap::new(),
            uses: BTreeMap::new(),
            backends: BTreeMap::new(),
            endpoints: Endpoints::new(),
            ranges: BTreeMap::new(),
            unused_ranges: BTreeSet::new(),
            vips: BTreeMap::new(),
            config: None,
            generation: 0,
            deadlines: BTreeSet::new(),
            drains: Drains::default(),
            drain_limits: BTreeMap::new(),
            gone: BTreeSet::new(),
            empty: BTreeSet::new(),
            generations: BTreeMap::new(),
            slots: SlotPool::new(capacities.slots),
            reusable_at: BTreeMap::new(),
            users: BTreeMap::new(),
            sizes: BTreeSet::new(),
            states: BTreeMap::new(),
            served: 0,
            frontend_counts: PerFamily::default(),
            endpoint_counts: PerFamily::default(),
            source_counts: PerFamily::default(),
            vip_counts: PerFamily::default(),
            service_pool: IdPool::new(u32::MAX),
            pools: [IdPool::new(capacities.backends4), IdPool::new(capacities.backends6)],
            reserved: Reserved::default(),
        }
    }

    /// Records a successful operation for the service port `key`, which [`Self::reserve`] has seen before. A range that no frontend
    /// leads to is not written again for `grace`.
    pub fn record(&mut self, key: &PortKey, op: &Op, now: Monotonic, grace: Duration) {
        self.keep(op);
        match op {
            Op::WriteName { id, name } => self.service_mut(*id, key).name = Some(Box::new(*name)),
            Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => {
                self.note_drain(*id, record, now);
                self.put_backend(*id, *record, key);
                self.name_endpoint(*id, record);
            }
            Op::WriteSlots { base, slots } => {
                // It is unused until a frontend leads to it, in case that the write of the frontend fails.
                self.ranges.insert(*base, slots.clone());
                self.mark_unused(*base, now + grace);
            }
            Op::WriteSource { id, network } => self.put_source(*id, *network, key),
            Op::WriteFrontend { frontend, entry, uses } => {
                self.remove_frontend(*frontend, now + grace);
                self.put_frontend(*frontend, *entry, *uses, key);
            }
            Op::RemoveFrontend { frontend } => self.remove_frontend(*frontend, now + grace),
            Op::RemoveSource { id, network } => self.remove_source(*id, *network),
            Op::FreeBackend { id, generation } => self.free_backend(*id, *generation),
            Op::ReleaseSlots { range } => self.release(*range),
            Op::ForgetService { id } => self.forget(*id),
            Op::WriteVip { .. } | Op::RemoveVip { .. } | Op::WriteConfig { .. } => self.record_global(op),
        }
    }

    /// Takes down what is no service port's.
    pub fn record_global(&mut self, op: &Op) {
        self.keep(op);
        match op {
            Op::WriteVip { address, vip } => self.put_vip(*address, *vip),
            Op::RemoveVip { address } => self.remove_vip(*address),
            Op::WriteConfig { revision, programmed_ds } => {
                self.config = Some(super::op::config(*revision, *programmed_ds));
            }
            _ => {}
        }
    }

    /// The service with this id; made if it is new.
    pub(super) fn service_mut(&mut self, id: u32, key: &PortKey) -> &mut ProgrammedService {
        self.services.entry(id).or_insert_with(|| {
            self.service_pool.take(id);
            self.service_ids.insert(key.clone(), id);
            self.empty.insert(id);
            ProgrammedService {
                key: key.clone(),
                name: None,
                frontends: SortedSet::default(),
                backends: SortedSet::default(),
                current: SortedMap::default(),
                sources: BTreeSet::new(),
            }
        })
    }

    /// Notes whether the service port has anything left.
    fn settle(&mut self, id: u32) {
        if self.services.get(&id).is_some_and(ProgrammedService::is_empty) {
            self.empty.insert(id);
        } else {
            self.empty.remove(&id);
        }
    }

    fn forget(&mut self, id: u32) {
        if let Some(service) = self.services.remove(&id) {
            self.empty.remove(&id);
            self.drain_limits.remove(&id);
            self.service_ids.remove(&service.key);
            self.service_pool.give_back(id);
        }
    }

    pub(super) fn put_source(&mut self, id: u32, network: IpNet, key: &PortKey) {
        if self.service_mut(id, key).sources.insert(network) {
            *self.source_counts.slot(Family::of(network.addr())) += 1;
        }
        self.settle(id);
    }

    fn remove_source(&mut self, id: u32, network: IpNet) {
        if self.services.get_mut(&id).is_some_and(|service| service.sources.remove(&network)) {
            *self.source_counts.slot(Family::of(network.addr())) -= 1;
        }
        self.settle(id);
    }

    pub(super) fn put_vip(&mut self, address: IpAddr, vip: abi::Vip) {
        if self.vips.insert(address, vip).is_none() {
            *self.vip_counts.slot(Family::of(address)) += 1;
        }
    }

    fn remove_vip(&mut self, address: IpAddr) {
        if self.vips.remove(&address).is_some() {
            *self.vip_counts.slot(Family::of(address)) -= 1;
        }
    }

    /// Takes down what the service port says of drains.
    pub fn put_drain_limits(&mut self, key: &PortKey, limits: OwnDrainLimits) {
        let Some(id) = self.service_ids.get(key) else { return };
        if limits == OwnDrainLimits::default() {
            self.drain_limits.remove(id);
        } else {
            self.drain_limits.insert(*id, limits);
        }
    }

    /// What the service port says of drains.
    pub fn own_drain_limits(&self, id: u32) -> OwnDrainLimits {
        self.drain_limits.get(&id).copied().unwrap_or_default()
    }

    /// The addresses by which services are reached, some more than once.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.frontends.keys().map(|frontend| frontend.address).chain(self.vips.keys().copied())
    }

    /// How many service ports have a frontend.
    pub fn served(&self) -> usize {
        self.served
    }
}
