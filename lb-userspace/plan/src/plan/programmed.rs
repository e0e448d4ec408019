//! The programmed state: what the tables hold. An operation changes it only after its write succeeded.
//!
//! Each part keeps its own counts and next deadlines at each change, so no query walks the whole state.

mod backends;
mod capacities;
mod drains;
mod endpoints;
mod frontends;
mod reserve;
mod reserved;
mod services;
mod slots;
mod vips;

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ipnet::IpNet;
use lb_common::abi;

use super::{BackendId, BackendRecord, Frontend, Op, Part, Use, life::OwnDrainLimits};
pub use backends::Backends;
pub use capacities::Capacities;
pub use drains::{DrainEnds, Drains};
use endpoints::EndpointEntries;
pub use frontends::Frontends;
use lb_model::{Family, Monotonic, PortKey};
use reserved::Reserved;
pub use services::{ProgrammedService, Services};
pub use slots::SlotRanges;
pub use vips::Vips;

/// What the tables hold.
#[derive(Clone, Debug)]
pub struct ProgrammedState {
    capacities: Capacities,
    services: Services,
    frontends: Frontends,
    slots: SlotRanges,
    backends: Backends,
    endpoints: EndpointEntries,
    drains: Drains,
    vips: Vips,
    config: Option<abi::Config>,
    reserved: Reserved,
}

impl ProgrammedState {
    /// The programmed state of empty tables.
    pub fn new(capacities: Capacities) -> Self {
        Self {
            capacities,
            services: Services::new(),
            frontends: Frontends::default(),
            slots: SlotRanges::new(capacities.of(Part::Slots)),
            backends: Backends::new(&capacities),
            endpoints: EndpointEntries::default(),
            drains: Drains::default(),
            vips: Vips::default(),
            config: None,
            reserved: Reserved::default(),
        }
    }

    pub fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    pub fn services(&self) -> &Services {
        &self.services
    }

    pub fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    pub fn slots(&self) -> &SlotRanges {
        &self.slots
    }

    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    pub fn vips(&self) -> &Vips {
        &self.vips
    }

    /// What was noted last of the whole.
    pub fn config(&self) -> Option<abi::Config> {
        self.config
    }

    /// The entry of `endpoints4/6` that leads to the backend.
    pub fn name_of(&self, id: BackendId) -> Option<(IpAddr, u32)> {
        self.endpoints.key_of(id, self.backends.get(id)?)
    }

    /// The addresses by which services are reached, some more than once.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.frontends.iter().map(|(frontend, ..)| frontend.address).chain(self.vips.addresses())
    }

    /// Records a successful operation for the service port `key`, which [`Self::reserve`] has seen before. A range that no frontend
    /// leads to is not written again for `grace`.
    pub fn record(&mut self, key: &PortKey, op: &Op, now: Monotonic, grace: Duration) {
        self.reserved.remove(op);
        match op {
            Op::WriteName { id, name } => self.put_name(*id, key, *name),
            Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => {
                self.drains.note(*id, self.backends.get(*id), record, now);
                self.put_backend(*id, *record, key);
                self.endpoints.put(self.backends.records(), *id, record);
            }
            Op::WriteSlots { base, slots } => self.slots.put(*base, slots.clone(), now + grace),
            Op::WriteSource { id, network } => self.put_source(*id, *network, key),
            Op::WriteFrontend { frontend, entry, uses } => {
                self.remove_frontend(*frontend, now + grace);
                self.put_frontend(*frontend, *entry, *uses, key);
            }
            Op::RemoveFrontend { frontend } => self.remove_frontend(*frontend, now + grace),
            Op::RemoveSource { id, network } => self.services.remove_source(*id, *network),
            Op::FreeBackend { id, generation } => self.put_free_generation(*id, *generation),
            Op::ReleaseSlots { range } => self.slots.release(*range),
            Op::ForgetService { id } => self.services.remove(*id),
            Op::WriteVip { .. } | Op::RemoveVip { .. } | Op::WriteConfig { .. } => self.record_global(op),
        }
    }

    /// Takes down what is no service port's.
    pub fn record_global(&mut self, op: &Op) {
        self.reserved.remove(op);
        match op {
            Op::WriteVip { address, vip } => self.put_vip(*address, *vip),
            Op::RemoveVip { address } => self.vips.remove(*address),
            Op::WriteConfig { revision, programmed_ds } => {
                self.put_config(Some(super::op::config(*revision, *programmed_ds)));
            }
            Op::WriteName { .. }
            | Op::WriteBackend { .. }
            | Op::WriteSlots { .. }
            | Op::WriteSource { .. }
            | Op::WriteFrontend { .. }
            | Op::RemoveFrontend { .. }
            | Op::RetireBackend { .. }
            | Op::RemoveSource { .. }
            | Op::FreeBackend { .. }
            | Op::ReleaseSlots { .. }
            | Op::ForgetService { .. } => {}
        }
    }

    /// Takes down what the service port says of drains.
    pub fn put_drain_limits(&mut self, key: &PortKey, limits: OwnDrainLimits) {
        self.services.put_drain_limits(key, limits);
    }

    /// Takes down which of the backends that drain have no flow left.
    pub fn note_idle(&mut self, idle: &BTreeSet<BackendId>) {
        self.drains.note_idle(idle);
    }

    /// Drains that went on before this agent: each is taken to have begun its period before the end of that.
    pub fn guess_drains(&mut self, period: Duration) {
        self.drains.guess(self.backends.records(), period);
    }

    pub(super) fn put_name(&mut self, id: u32, key: &PortKey, name: abi::ServiceName) {
        self.services.put_name(id, key, name);
    }

    /// A range that the tables held already. One that overlaps another stays out.
    pub(super) fn restore_slots(&mut self, base: u32, slots: Vec<abi::Slot>) {
        self.slots.restore(base, slots);
    }

    pub(super) fn put_frontend(&mut self, frontend: Frontend, entry: abi::Service, uses: Use, key: &PortKey) {
        self.services.add_frontend(entry.id, key, frontend);
        self.frontends.put(frontend, entry, uses);
        self.slots.add_user(&entry);
    }

    fn remove_frontend(&mut self, frontend: Frontend, reusable_at: Monotonic) {
        if let Some(entry) = self.frontends.remove(&frontend) {
            self.services.remove_frontend(entry.id, frontend);
            self.slots.remove_user(&entry, reusable_at);
        }
    }

    pub(super) fn put_backend(&mut self, id: BackendId, record: BackendRecord, key: &PortKey) {
        let is_moved = |old: &BackendRecord| (old.service, old.address) != (record.service, record.address);
        if let Some(old) = self.backends.put(id, record).filter(is_moved) {
            self.services.remove_backend(id, &old);
        }
        self.services.add_backend(id, &record, key);
    }

    /// The id is not in use, or no more. Its generation is remembered.
    pub(super) fn put_free_generation(&mut self, id: BackendId, generation: u32) {
        if let Some(record) = self.backends.release(id, generation) {
            self.services.remove_backend(id, &record);
            self.endpoints.forget(id, &record);
        }
    }

    /// An entry of `endpoints4/6` that the tables held already. One that leads to no record of ours is left to the audit.
    pub(super) fn restore_endpoint(&mut self, key: (IpAddr, u32), endpoint: abi::Endpoint) {
        let record = self.backends.get(BackendId { family: Family::of(key.0), id: endpoint.backend });
        if record.is_some_and(|record| (record.address.ip(), record.service) == key) {
            self.endpoints.restore(key, endpoint);
        }
    }

    pub(super) fn put_source(&mut self, id: u32, network: IpNet, key: &PortKey) {
        self.services.add_source(id, key, network);
    }

    pub(super) fn put_vip(&mut self, address: IpAddr, vip: abi::Vip) {
        self.vips.put(address, vip);
    }

    pub(super) fn put_config(&mut self, config: Option<abi::Config>) {
        self.config = config;
    }
}
