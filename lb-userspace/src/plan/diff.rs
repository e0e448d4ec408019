//! From the book to what is wanted: the operations for one service port, in order, or why they cannot be done.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use lb_common::abi::{self, backend_state};

use super::{
    BackendId, BackendRecord, Book, BookedService, Desired, DesiredEndpoint, DesiredService, Frontend, Kind, Op,
    PlanSettings, PortKey, Range, Ranges, Set, Use,
    ids::SlotPool,
    life::{self, Step},
    order,
};
use crate::{
    maps::to_chars,
    model::{Family, Monotonic, Refusal},
};

/// The operations that bring the service port `key` to what is wanted: none if it already is there. If a table has no room,
/// the change is refused as a whole and the old state is kept.
pub fn diff_service(
    key: &PortKey,
    desired: &Desired,
    book: &Book,
    settings: &PlanSettings,
    now: Monotonic,
) -> Result<Vec<Op>, Refusal> {
    let wanted = desired.services.get(key);
    let known = book.service_ids.get(key).copied();
    let id = match (known, wanted) {
        (Some(id), _) => id,
        (None, None) => return Ok(Vec::new()),
        (None, Some(_)) => book.free_service_id().ok_or_else(|| full(key, "names", book.capacities.names))?,
    };
    let mut draft = Draft { key, id, book, settings, now, service: book.services.get(&id), ops: Vec::new() };
    if let Some(wanted) = wanted {
        draft.name(wanted);
    }
    let selected = draft.backends(wanted)?;
    if let Some(wanted) = wanted {
        draft.frontends(wanted, desired, &selected)?;
    }
    draft.remove_frontends(wanted.and(Some(desired)));
    let mut ops = draft.ops;
    order(&mut ops);
    Ok(ops)
}

/// What comes to its end even if the change as a whole finds no room: drains whose deadline struck. No slot leads to them.
pub fn evictions(key: &PortKey, book: &Book, now: Monotonic) -> Vec<Op> {
    let service = book.service_ids.get(key).and_then(|id| book.services.get(id));
    let backends = service.iter().flat_map(|service| &service.backends);
    let over = backends.filter_map(|id| {
        let record = book.backends.get(id)?;
        let over = record.state == backend_state::DRAINING && record.is_struck(now);
        over.then(|| Op::RetireBackend { id: *id, record: record.gone() })
    });
    over.collect()
}

fn full(key: &PortKey, map: &str, capacity: u32) -> Refusal {
    Refusal::new(
        format!("Service {key}"),
        format!("map {map} is full ({capacity} elements); the old state is kept"),
        "remove services or endpoints, or raise the map's size",
    )
}

/// The backends that take new flows, by address: id and generation.
type Selected = BTreeMap<SocketAddr, (BackendId, u32)>;

struct Draft<'a> {
    key: &'a PortKey,
    id: u32,
    book: &'a Book,
    settings: &'a PlanSettings,
    now: Monotonic,
    service: Option<&'a BookedService>,
    ops: Vec<Op>,
}

impl Draft<'_> {
    fn name(&mut self, wanted: &DesiredService) {
        let name = abi::ServiceName {
            namespace: to_chars(&self.key.service.namespace),
            name: to_chars(&self.key.service.name),
            port_name: to_chars(&wanted.port_name),
            port: self.key.port,
            protocol: self.key.protocol.number(),
            pad: 0,
        };
        if self.service.and_then(|service| service.name) != Some(name) {
            self.ops.push(Op::WriteName { id: self.id, name });
        }
    }

    fn backends(&mut self, wanted: Option<&DesiredService>) -> Result<Selected, Refusal> {
        let none = BTreeMap::new();
        let endpoints = wanted.map_or(&none, |wanted| &wanted.endpoints);
        let current = self.service.map(|service| service.current.clone()).unwrap_or_default();
        let addresses: BTreeSet<SocketAddr> = endpoints.keys().chain(current.keys()).copied().collect();
        let book = self.book;
        let mut free = Family::BOTH.map(|family| book.free_backends(family));
        let mut selected = Selected::new();
        for address in addresses {
            let endpoint = endpoints.get(&address).copied();
            let record = current.get(&address).and_then(|id| Some((*id, *book.backends.get(id)?)));
            let is_selected = endpoint.is_some_and(|endpoint| endpoint.in_cluster_set);
            let pool = &mut free[usize::from(Family::of(address.ip()) == Family::V6)];
            let stays = self.backend(address, record, endpoint, pool)?;
            if let Some(stays) = stays.filter(|_| is_selected) {
                selected.insert(address, stays);
            }
        }
        self.retire_superseded();
        Ok(selected)
    }

    /// Carries out the next step of the backend at `address`; returns id and generation if it can take flows afterwards.
    fn backend(
        &mut self,
        address: SocketAddr,
        record: Option<(BackendId, BackendRecord)>,
        endpoint: Option<DesiredEndpoint>,
        free: &mut impl Iterator<Item = (BackendId, u32)>,
    ) -> Result<Option<(BackendId, u32)>, Refusal> {
        let step = life::step(record.as_ref().map(|(_, record)| record), endpoint, self.now, self.settings);
        match (step, record, endpoint) {
            (Step::Keep, Some((id, record)), _) => Ok(Some((id, record.generation))),
            (Step::Write(record), Some((id, _)), _) => {
                // What new flows may be sent to is written before they are, and what not after they no longer are.
                self.ops.push(if endpoint.is_some_and(|endpoint| endpoint.in_cluster_set) {
                    Op::WriteBackend { id, record }
                } else {
                    Op::RetireBackend { id, record }
                });
                Ok(Some((id, record.generation)))
            }
            (Step::Evict(record), Some((id, _)), _) => {
                self.ops.push(Op::RetireBackend { id, record });
                Ok(None)
            }
            (Step::Replace(record), Some((id, _)), Some(endpoint)) => {
                self.ops.push(Op::RetireBackend { id, record });
                self.allocate(address, endpoint, free.next()).map(Some)
            }
            (Step::New, _, Some(endpoint)) => self.allocate(address, endpoint, free.next()).map(Some),
            _ => Ok(None),
        }
    }

    fn allocate(
        &mut self,
        address: SocketAddr,
        endpoint: DesiredEndpoint,
        free: Option<(BackendId, u32)>,
    ) -> Result<(BackendId, u32), Refusal> {
        let Some((id, generation)) = free else {
            return Err(match Family::of(address.ip()) {
                Family::V4 => full(self.key, "backends4", self.book.capacities.backends4),
                Family::V6 => full(self.key, "backends6", self.book.capacities.backends6),
            });
        };
        let blank = BackendRecord {
            address,
            state: backend_state::FREE,
            flags: 0,
            generation,
            service: self.id,
            deadline_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        let record = life::describe(&blank, endpoint, self.now, self.settings);
        self.ops.push(Op::WriteBackend { id, record });
        Ok((id, generation))
    }

    /// Records that another one has taken the place of, where the write of their end failed before.
    fn retire_superseded(&mut self) {
        let Some(service) = self.service else { return };
        for id in &service.backends {
            if let Some(record) = self.book.backends.get(id)
                && record.state != backend_state::GONE
                && service.current.get(&record.address) != Some(id)
            {
                self.ops.push(Op::RetireBackend { id: *id, record: record.gone() });
            }
        }
    }

    fn frontends(&mut self, wanted: &DesiredService, desired: &Desired, selected: &Selected) -> Result<(), Refusal> {
        // Taken out of a copy, made when the first range is needed: the second must not be the same.
        let mut pool = None;
        let mut generation = self.book.generation;
        for family in Family::BOTH {
            // Also those that are ours until another service takes them over: they must not lead to what we retire.
            let ours = self.service.map(|service| service.frontends.clone()).unwrap_or_default();
            let ours = ours.into_iter().filter(|frontend| desired.owners.contains_key(frontend));
            let all: BTreeSet<Frontend> = wanted.frontends.keys().copied().chain(ours).collect();
            let frontends: Vec<Frontend> = all.into_iter().filter(|f| Family::of(f.address) == family).collect();
            if frontends.is_empty() {
                continue;
            }
            self.check_room(family, &frontends)?;
            let targets: Vec<(u32, u32)> = selected
                .iter()
                .filter(|(address, _)| Family::of(address.ip()) == family)
                .map(|(_, (id, generation))| (id.id, *generation))
                .collect();
            let (range, generation) = if let Some(written) = self.written_range(family, &targets) {
                written
            } else {
                generation = generation.checked_add(1).unwrap_or(1);
                let count = u32::try_from(targets.len()).unwrap_or(u32::MAX);
                (self.write_slots(&mut pool, count, generation, &targets)?, generation)
            };
            for frontend in frontends {
                let uses = wanted.frontends.get(&frontend).copied().unwrap_or(Use {
                    kind: Kind::ClusterIp,
                    inside: Set::Cluster,
                    outside: Set::Cluster,
                    flags: 0,
                });
                let ranges = Ranges { cluster: range, local: Range::default() };
                let entry = frontend.entry(self.id, generation, uses, ranges, wanted.affinity_timeout_s);
                if self.book.frontends.get(&frontend) != Some(&entry) {
                    self.ops.push(Op::WriteFrontend { frontend, entry });
                }
            }
        }
        Ok(())
    }

    fn check_room(&self, family: Family, frontends: &[Frontend]) -> Result<(), Refusal> {
        let new = frontends.iter().filter(|frontend| !self.book.frontends.contains_key(frontend)).count();
        let capacity = self.book.capacities.frontends(family);
        if new > 0 && self.book.frontend_count(family) as usize + new > capacity as usize {
            let map = if family == Family::V4 { "services4" } else { "services6" };
            return Err(full(self.key, map, capacity));
        }
        Ok(())
    }

    /// The range that already holds these targets, and that one of our frontends leads to.
    fn written_range(&self, family: Family, targets: &[(u32, u32)]) -> Option<(Range, u32)> {
        let ours = self.service?.frontends.iter().filter(|frontend| Family::of(frontend.address) == family);
        ours.filter_map(|frontend| self.book.frontends.get(frontend)).find_map(|entry| {
            let range = Range { base: entry.slot_base, count: entry.slot_count };
            if range.count == 0 {
                return (targets.is_empty() && range.base == 0).then_some((range, entry.generation));
            }
            let slots = self.book.ranges.get(&range.base).filter(|slots| slots.len() == targets.len())?;
            let same = slots.iter().zip(targets).all(|(slot, (backend, backend_generation))| {
                let wanted = abi::Slot {
                    backend: *backend,
                    backend_generation: *backend_generation,
                    service: self.id,
                    generation: entry.generation,
                };
                *slot == wanted
            });
            (same && range.count as usize == targets.len()).then_some((range, entry.generation))
        })
    }

    fn write_slots(
        &mut self,
        pool: &mut Option<SlotPool>,
        count: u32,
        generation: u32,
        targets: &[(u32, u32)],
    ) -> Result<Range, Refusal> {
        if count == 0 {
            return Ok(Range::default());
        }
        let pool = pool.get_or_insert_with(|| self.book.slots.clone());
        let range = pool.find(count).ok_or_else(|| full(self.key, "slots", self.book.capacities.slots))?;
        pool.take(range);
        let slot = |(backend, backend_generation): &(u32, u32)| abi::Slot {
            backend: *backend,
            backend_generation: *backend_generation,
            service: self.id,
            generation,
        };
        self.ops.push(Op::WriteSlots { base: range.base, slots: targets.iter().map(slot).collect() });
        Ok(range)
    }

    /// Frontends of ours that nobody wants, or all if we are not wanted.
    fn remove_frontends(&mut self, desired: Option<&Desired>) {
        let Some(service) = self.service else { return };
        for frontend in &service.frontends {
            if desired.is_none_or(|desired| !desired.owners.contains_key(frontend)) {
                self.ops.push(Op::RemoveFrontend { frontend: *frontend });
            }
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
