//! From the programmed to the desired state: the operations for one service port in order, or the refusal.

mod frontends;

use std::{
    collections::BTreeSet,
    fmt, iter,
    net::{IpAddr, SocketAddr},
};

use lb_common::abi::{self, backend_state};

use super::{
    BackendId, BackendRecord, Desired, DesiredEndpoint, DesiredService, MaglevTables, Op, Part, PlanSettings,
    ProgrammedService, ProgrammedState, Set, SortedMap,
    layout::Member,
    life::{self, DrainLimits, Step},
    named::{self, named},
    order,
    restore::ranges_of,
};
use lb_model::{Family, Monotonic, PortKey, Refusal};
use lb_tables::to_chars;

/// Why the operations of a service port cannot be planned. The old state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A table has no room: the change is refused as a whole.
    NoRoom(Refusal),
    /// What its slots are to hold is computed further when it is asked for again.
    Unfinished,
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::NoRoom(refusal)
    }
}

/// The operations that bring the service port `key` to what is wanted: none if it already is there.
pub fn diff_service(
    key: &PortKey,
    desired: &Desired,
    programmed: &ProgrammedState,
    tables: &mut MaglevTables,
    settings: &PlanSettings,
    now: Monotonic,
) -> Result<Vec<Op>, Obstacle> {
    let wanted = desired.services.get(key);
    let known = programmed.services().id_of(key);
    let id = match (known, wanted) {
        (Some(id), _) => id,
        (None, None) => return Ok(Vec::new()),
        (None, Some(_)) => programmed.free_service_id().ok_or_else(|| full_for(key, Part::Names, programmed))?,
    };
    let mut draft = Draft::new(key, id, wanted, programmed, settings, now);
    if let Some(wanted) = wanted {
        draft.name(wanted);
    }
    let selected = draft.backends(wanted)?;
    draft.check_endpoints()?;
    if let Some(wanted) = wanted {
        draft.frontends(wanted, desired, &selected, tables)?;
    } else {
        tables.keep(key, &BTreeSet::new());
    }
    draft.remove_frontends(wanted.and(Some(desired)));
    draft.sources(wanted, desired)?;
    let mut ops = draft.ops;
    order(&mut ops);
    Ok(ops)
}

/// The operations that need no room, for a change that finds none as a whole. Backends that are to take no more new flows take none, though slots
/// still lead to them, and drains end at their deadline.
pub fn withdrawals(
    key: &PortKey,
    desired: &Desired,
    programmed: &ProgrammedState,
    settings: &PlanSettings,
    now: Monotonic,
) -> Vec<Op> {
    let Some(id) = programmed.services().id_of(key) else { return Vec::new() };
    let Some(service) = programmed.services().get(id) else { return Vec::new() };
    let wanted = desired.services.get(key);
    let mut draft = Draft::new(key, id, wanted, programmed, settings, now);
    let led_to = draft.led_to();
    for (address, id) in &service.current {
        let endpoint = wanted.and_then(|wanted| wanted.endpoints.get(address)).copied();
        let Some(record) = programmed.backends().get(*id).copied() else { continue };
        let is_idle = programmed.drains().is_idle(*id);
        let record = match life::step(Some(&record), is_idle, endpoint, draft.limits, now, settings) {
            Step::Write(after) if !is_selected(endpoint) => after,
            Step::Evict(after) | Step::Replace(after) if !led_to.contains(&id.id) => after,
            // Its generation stays as long as slots lead to it; that it is over, its deadline says.
            Step::Evict(_) if record.is_evictable(now) => continue,
            Step::Evict(_) => record.draining(now.to_tenths(), now.to_tenths()),
            // Another pod at its address serves in its place.
            Step::Replace(_) | Step::Write(_) | Step::Keep | Step::New | Step::Nothing => continue,
        };
        draft.ops.push(Op::RetireBackend { id: *id, record });
    }
    draft.ops
}

/// The operation that brings what becomes of unserved packets to `address` to what is wanted; `None`: it is there.
pub fn diff_vip(address: IpAddr, desired: &Desired, programmed: &ProgrammedState) -> Result<Option<Op>, Refusal> {
    let (wanted, written) = (desired.vips.get(&address).copied(), programmed.vips().get(address).copied());
    let part = Part::Vips(Family::of(address));
    match (wanted, written) {
        (Some(wanted), Some(written)) if wanted == written => Ok(None),
        (Some(_), None) if !has_room(part, 1, programmed) => {
            Err(full(format_args!("address {address}"), part, programmed))
        }
        (Some(vip), _) => Ok(Some(Op::WriteVip { address, vip })),
        (None, Some(_)) => Ok(Some(Op::RemoveVip { address })),
        (None, None) => Ok(None),
    }
}

fn has_room(part: Part, new: usize, programmed: &ProgrammedState) -> bool {
    programmed.count(part).is_none_or(|count| count + new <= programmed.capacities().of(part) as usize)
}

fn full_for(key: &PortKey, part: Part, programmed: &ProgrammedState) -> Refusal {
    full(format_args!("Service {key}"), part, programmed)
}

fn full(what: impl fmt::Display, part: Part, programmed: &ProgrammedState) -> Refusal {
    let (map, capacity) = (part.name(), programmed.capacities().of(part));
    Refusal::new(
        what.to_string(),
        format!("map {map} is full ({capacity} elements); the old state is kept"),
        "remove services or endpoints, or raise the map's size",
    )
}

/// A backend that takes new flows of some set.
#[derive(Clone, Copy)]
struct Selected {
    id: BackendId,
    generation: u32,
    address: SocketAddr,
    endpoint: DesiredEndpoint,
}

impl From<&Selected> for Member {
    fn from(one: &Selected) -> Self {
        Self { id: one.id, generation: one.generation, address: one.address, weight: one.endpoint.weight }
    }
}

fn is_selected(endpoint: Option<DesiredEndpoint>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.is_in(Set::Cluster) || endpoint.is_in(Set::Local))
}

/// All addresses of both in their order.
fn merged<'a, A, B>(
    one: &'a SortedMap<SocketAddr, A>,
    other: &'a SortedMap<SocketAddr, B>,
) -> impl Iterator<Item = (SocketAddr, Option<&'a A>, Option<&'a B>)> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    iter::from_fn(move || {
        let first = [one.peek().map(|(address, _)| **address), other.peek().map(|(address, _)| **address)];
        let address = first.into_iter().flatten().min()?;
        let of_one = one.next_if(|(at, _)| **at == address).map(|(_, value)| value);
        let of_other = other.next_if(|(at, _)| **at == address).map(|(_, value)| value);
        Some((address, of_one, of_other))
    })
}

struct Draft<'a> {
    key: &'a PortKey,
    id: u32,
    programmed: &'a ProgrammedState,
    settings: &'a PlanSettings,
    limits: DrainLimits,
    now: Monotonic,
    service: Option<&'a ProgrammedService>,
    ops: Vec<Op>,
}

impl<'a> Draft<'a> {
    fn new(
        key: &'a PortKey,
        id: u32,
        wanted: Option<&DesiredService>,
        programmed: &'a ProgrammedState,
        settings: &'a PlanSettings,
        now: Monotonic,
    ) -> Self {
        let own = wanted.map_or_else(|| programmed.services().own_drain_limits(id), |wanted| wanted.drain_limits);
        let limits = own.or(settings.drain_limits);
        Self { key, id, programmed, settings, limits, now, service: programmed.services().get(id), ops: Vec::new() }
    }

    /// The backends that slots of ours lead to. Ids of both families: one of the other family is left for later.
    fn led_to(&self) -> BTreeSet<u32> {
        let frontends = self.service.into_iter().flat_map(|service| &service.frontends);
        let entries = frontends.filter_map(|frontend| self.programmed.frontends().get(frontend));
        let ranges: BTreeSet<u32> = entries.flat_map(ranges_of).map(|range| range.base).collect();
        let slots = ranges.iter().filter_map(|base| self.programmed.slots().get(*base)).flatten();
        slots.map(|slot| slot.backend).collect()
    }

    fn name(&mut self, wanted: &DesiredService) {
        let name = abi::ServiceName {
            namespace: to_chars(&self.key.service.namespace),
            name: to_chars(&self.key.service.name),
            port_name: to_chars(&wanted.port_name),
            port: self.key.port,
            protocol: self.key.protocol.number(),
            pad: 0,
        };
        if self.service.and_then(|service| service.name.as_deref()) != Some(&name) {
            self.ops.push(Op::WriteName { id: self.id, name });
        }
    }

    /// The backends that take new flows afterwards, in the order of their addresses.
    fn backends(&mut self, wanted: Option<&DesiredService>) -> Result<Vec<Selected>, Refusal> {
        let (no_endpoints, no_records) = (SortedMap::default(), SortedMap::default());
        let endpoints = wanted.map_or(&no_endpoints, |wanted| &wanted.endpoints);
        let current = self.service.map_or(&no_records, |service| &service.current);
        let programmed = self.programmed;
        let mut free = Family::ALL.map(|family| programmed.backends().free(family));
        let mut selected = Vec::new();
        for (address, endpoint, record) in merged(endpoints, current) {
            let endpoint = endpoint.copied();
            let record = record.and_then(|id| Some((*id, *programmed.backends().get(*id)?)));
            let pool = &mut free[usize::from(Family::of(address.ip()) == Family::V6)];
            let stays = self.backend(address, record, endpoint, pool)?;
            if let (Some((id, generation)), Some(endpoint)) =
                (stays, endpoint.filter(|listed| is_selected(Some(*listed))))
            {
                selected.push(Selected { id, generation, address, endpoint });
            }
        }
        self.retire_superseded();
        self.rename_others();
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
        let is_idle = record.is_some_and(|(id, _)| self.programmed.drains().is_idle(id));
        let current = record.as_ref().map(|(_, record)| record);
        let step = life::step(current, is_idle, endpoint, self.limits, self.now, self.settings);
        match (step, record, endpoint) {
            (Step::Keep, Some((id, record)), _) => Ok(Some((id, record.generation))),
            (Step::Write(record), Some((id, _)), _) => {
                // What new flows may be sent to is written before they are, and what not after they no longer are.
                self.ops.push(if is_selected(endpoint) {
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
            return Err(full_for(self.key, Part::Backends(Family::of(address.ip())), self.programmed));
        };
        let blank = BackendRecord {
            address,
            state: backend_state::FREE,
            flags: 0,
            generation,
            service: self.id,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        let record = life::describe(&blank, endpoint, self.now, self.settings);
        self.ops.push(Op::WriteBackend { id, record });
        Ok((id, generation))
    }

    /// Whether other nodes can name all backends of this node that are written.
    fn check_endpoints(&self) -> Result<(), Refusal> {
        let written = self.ops.iter().filter_map(named::key_of);
        let new: BTreeSet<(IpAddr, u32)> = written.filter(|key| !self.programmed.has_endpoint(key)).collect();
        Family::ALL.into_iter().try_for_each(|family| {
            let new = new.iter().filter(|(address, _)| Family::of(*address) == family).count();
            self.check_room(Part::Endpoints(family), new)
        })
    }

    /// Refuses so many new entries if there is no room for them.
    fn check_room(&self, part: Part, new: usize) -> Result<(), Refusal> {
        let is_fine = new == 0 || has_room(part, new, self.programmed);
        if is_fine { Ok(()) } else { Err(full_for(self.key, part, self.programmed)) }
    }

    /// Other nodes name a backend without its port. Where the name leads to one that is retired here, another one of the same address gets it,
    /// unless its record is written anyway.
    fn rename_others(&mut self) {
        let Some(service) = self.service else { return };
        let keeps = |id, record: &BackendRecord| named(id, record).is_some_and(|named| !named.yields);
        let (mut lost, mut written) = (BTreeSet::new(), BTreeSet::new());
        for op in &self.ops {
            if let Op::WriteBackend { id, record } | Op::RetireBackend { id, record } = op {
                written.insert(*id);
                lost.extend(self.programmed.name_of(*id).filter(|_| !keeps(*id, record)));
            }
        }
        if lost.is_empty() {
            return;
        }
        let others = service.current.values().filter(|id| !written.contains(id));
        let others = others.filter_map(|id| Some((*id, *self.programmed.backends().get(*id)?)));
        let takes = |(id, record): &(BackendId, BackendRecord)| {
            keeps(*id, record) && lost.contains(&(record.address.ip(), record.service))
        };
        let writes: Vec<Op> = others.filter(takes).map(|(id, record)| Op::WriteBackend { id, record }).collect();
        self.ops.extend(writes);
    }

    /// Records that another one has taken the place of, where the write of their end failed before.
    fn retire_superseded(&mut self) {
        let Some(service) = self.service else { return };
        for id in &service.backends {
            if let Some(record) = self.programmed.backends().get(*id)
                && record.state != backend_state::GONE
                && service.current.get(&record.address) != Some(id)
            {
                self.ops.push(Op::RetireBackend { id: *id, record: record.gone() });
            }
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
