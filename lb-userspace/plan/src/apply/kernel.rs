//! The kernel's maps as a store: what there is much of goes in batches.

use std::{collections::BTreeSet, net::IpAddr, ops};

use aya::Pod;
use lb_common::{
    abi::{self, Slot, map_name, stat_kind},
    map::{self, Prefix},
    outcome::Outcome,
};

use super::{
    Store, StoreError, connect_times,
    elements::{Elements, Results, failed, failed_access},
    endpoints,
    endpoints::Endpoints,
    load, records,
    subject::Released,
};
use crate::plan::{BackendId, BackendRecord, Capacities, Loaded, Op, Part, Range, Stray};
use lb_model::Family;
use lb_tables::{MapError, Pinned, Table};

/// Slots between two ranges that are read along rather than in a call of their own.
const GAP: u32 = 64;
/// Ids that are given up one by one delete each counter that they may have; more at once look which there are.
const FEW: usize = 4;

/// Writes pinned maps.
pub struct KernelStore {
    maps: Pinned,
    /// Ids that were gone when a round of the sweep began, and that it met nowhere.
    unreferred: BTreeSet<BackendId>,
}

impl KernelStore {
    pub fn new(maps: Pinned) -> Self {
        Self { maps, unreferred: BTreeSet::new() }
    }

    /// A round of the sweep began when these ids were gone, and met them nowhere.
    pub fn note_unreferred(&mut self, ids: BTreeSet<BackendId>) {
        self.unreferred = ids;
    }

    pub fn maps(&self) -> &Pinned {
        &self.maps
    }

    /// How many map system calls were made so far.
    pub fn calls(&self) -> u64 {
        self.maps.calls.count()
    }

    /// Operations of one kind each, in their order; `rest` is done one by one.
    fn sort<'a>(ops: &[&'a Op]) -> Sorted<'a> {
        let mut sorted = Sorted::default();
        for (index, op) in ops.iter().copied().enumerate() {
            match op {
                Op::WriteName { id, name } => sorted.names.push(index, *id, *name),
                Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => {
                    sorted.backend(index, *id, record);
                    sorted.endpoints.push(index, *id, record);
                }
                Op::FreeBackend { id, generation } => {
                    sorted.backend(index, *id, &records::free(id.family, *generation));
                    let kind = if id.family == Family::V4 { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
                    sorted.stats.push((index, id.id, kind));
                }
                Op::ForgetService { id } => {
                    sorted.stats.push((index, *id, stat_kind::SERVICE));
                    sorted.rest.push((index, op));
                }
                Op::WriteSlots { base, slots } => {
                    for (slot, value) in (*base..).zip(slots) {
                        sorted.slots.push(index, slot, *value);
                    }
                }
                Op::WriteFrontend { frontend, entry, .. } => match frontend.address {
                    IpAddr::V4(v4) => sorted.services4.push(index, frontend.key(v4.octets()), *entry),
                    IpAddr::V6(v6) => sorted.services6.push(index, frontend.key(v6.octets()), *entry),
                },
                Op::WriteSource { id, network } => {
                    let value = abi::Source { service: *id };
                    match network.addr() {
                        IpAddr::V4(v4) => {
                            sorted.sources4.push(index, records::source_key(*id, *network, v4.octets()), value);
                        }
                        IpAddr::V6(v6) => {
                            sorted.sources6.push(index, records::source_key(*id, *network, v6.octets()), value);
                        }
                    }
                }
                Op::WriteVip { address, vip } => match address {
                    IpAddr::V4(v4) => sorted.vips4.push(index, abi::VipKey { address: v4.octets() }, *vip),
                    IpAddr::V6(v6) => sorted.vips6.push(index, abi::VipKey { address: v6.octets() }, *vip),
                },
                // The content of released slots stays; it is written over when the range is used again.
                Op::ReleaseSlots { .. } => {}
                Op::RemoveFrontend { .. } | Op::RemoveSource { .. } | Op::RemoveVip { .. } | Op::WriteConfig { .. } => {
                    sorted.rest.push((index, op));
                }
            }
        }
        sorted
    }

    /// What is not done in batches.
    fn single(&mut self, op: &Op) -> Result<(), StoreError> {
        let maps = &mut self.maps;
        match op {
            Op::RemoveFrontend { frontend } => match frontend.address {
                IpAddr::V4(v4) => remove(&maps.of::<map::Services<4>>(), &frontend.key(v4.octets())),
                IpAddr::V6(v6) => remove(&maps.of::<map::Services<16>>(), &frontend.key(v6.octets())),
            },
            Op::RemoveSource { id, network } => match network.addr() {
                IpAddr::V4(v4) => {
                    remove(&maps.of::<map::Sources<4>>(), &records::source_key(*id, *network, v4.octets()))
                }
                IpAddr::V6(v6) => {
                    remove(&maps.of::<map::Sources<16>>(), &records::source_key(*id, *network, v6.octets()))
                }
            },
            Op::RemoveVip { address } => match address {
                IpAddr::V4(v4) => remove(&maps.of::<map::Vips<4>>(), &abi::VipKey { address: v4.octets() }),
                IpAddr::V6(v6) => remove(&maps.of::<map::Vips<16>>(), &abi::VipKey { address: v6.octets() }),
            },
            Op::ForgetService { id } => remove(&maps.of::<map::Names>(), id),
            Op::WriteConfig { revision, programmed_ds } => {
                let config = crate::plan::config(*revision, *programmed_ds);
                let table = maps.of::<map::Config>();
                table.put(&0, &config).map_err(|error| failed(table.name(), "writing", &error))
            }
            // Done in batches.
            Op::WriteName { .. }
            | Op::WriteBackend { .. }
            | Op::RetireBackend { .. }
            | Op::FreeBackend { .. }
            | Op::WriteSlots { .. }
            | Op::ReleaseSlots { .. }
            | Op::WriteFrontend { .. }
            | Op::WriteSource { .. }
            | Op::WriteVip { .. } => Ok(()),
        }
    }

    /// Counters of ids that are given up, so that their next owners start at zero. A table that holds more than these may have is not walked. Each id
    /// that may be there is deleted, which is as much work as there are ids, whatever others have.
    fn remove_stats(&mut self, owners: &[(usize, u32, u8)], results: &mut Results) {
        let each = |(index, id, kind): &(usize, u32, u8)| {
            let (index, id, kind) = (*index, *id, *kind);
            let key = move |outcome: Outcome| abi::StatKey { id, kind, outcome: outcome as u8, pad: 0 };
            Outcome::ALL.into_iter().map(move |outcome| (index, key(outcome)))
        };
        let keys: Vec<(usize, abi::StatKey)> = if owners.len() <= FEW {
            owners.iter().flat_map(each).collect()
        } else {
            let index: std::collections::BTreeMap<(u32, u8), usize> =
                owners.iter().map(|(index, id, kind)| ((*id, *kind), *index)).collect();
            let most = owners.len() * Outcome::ALL.len();
            let there: Vec<abi::StatKey> = self.maps.stats.keys().take(most).flatten().collect();
            if there.len() < most {
                let ours = there.into_iter().filter_map(|key| Some((*index.get(&(key.id, key.kind))?, key)));
                ours.collect()
            } else {
                owners.iter().flat_map(each).collect()
            }
        };
        for (index, key) in keys {
            self.maps.calls.add();
            if let Err(source) = self.maps.stats.remove(&key)
                && !is_missing(&source)
            {
                let error = MapError::Access { map: map_name::STATS, action: "deleting", source };
                results[index] = Err(failed_access(&error));
            }
        }
    }
}

/// Elements to be written, by map, each with the operation that it is of.
#[derive(Default)]
struct Sorted<'a> {
    names: Elements<u32, abi::ServiceName>,
    backends4: Elements<u32, abi::Backend<4>>,
    backends6: Elements<u32, abi::Backend<16>>,
    slots: Elements<u32, Slot>,
    sources4: Elements<Prefix<abi::SourceKey<4>>, abi::Source>,
    sources6: Elements<Prefix<abi::SourceKey<16>>, abi::Source>,
    services4: Elements<abi::ServiceKey<4>, abi::Service>,
    services6: Elements<abi::ServiceKey<16>, abi::Service>,
    endpoints: Endpoints,
    vips4: Elements<abi::VipKey<4>, abi::Vip>,
    vips6: Elements<abi::VipKey<16>, abi::Vip>,
    /// Operation, id and kind.
    stats: Vec<(usize, u32, u8)>,
    rest: Vec<(usize, &'a Op)>,
}

impl Sorted<'_> {
    fn backend(&mut self, index: usize, id: BackendId, record: &BackendRecord) {
        match record.address.ip() {
            IpAddr::V4(v4) => self.backends4.push(index, id.id, records::backend(record, v4.octets())),
            IpAddr::V6(v6) => self.backends6.push(index, id.id, records::backend(record, v6.octets())),
        }
    }
}

impl Store for KernelStore {
    fn capacities(&self) -> Capacities {
        Capacities::new(|part| part.map().map_or(0, |map| self.maps.capacity(map)))
    }

    fn load_part(&self, part: Part, loaded: &mut Loaded) -> Result<(), StoreError> {
        load::load(&self.maps, part, loaded)
    }

    fn load_backends(&self, family: Family, ids: ops::Range<u32>, loaded: &mut Loaded) -> Result<(), StoreError> {
        load::load_backends(&self.maps, family, ids, loaded)
    }

    fn remove_stray(&mut self, stray: &Stray) -> Result<(), StoreError> {
        load::remove_stray(&self.maps, stray)
    }

    fn slots(&self, ranges: &[Range]) -> Result<Vec<Vec<Slot>>, StoreError> {
        let mut read = Vec::with_capacity(ranges.len());
        let mut rest = ranges;
        while let Some(first) = rest.first() {
            // Ranges that lie close to each other are read together.
            let (mut end, mut together) = (first.end(), 1);
            while let Some(next) = rest.get(together)
                && next.base >= first.base
                && next.base <= end.saturating_add(GAP)
            {
                end = end.max(next.end());
                together += 1;
            }
            let slots = self.maps.of::<map::Slots>().read_range(first.base, end - first.base);
            let slots = slots.map_err(|error| failed(map_name::SLOTS, "reading", &error))?;
            for range in &rest[..together] {
                let from = (range.base - first.base) as usize;
                let part = slots.get(from..from + range.count as usize);
                read.push(part.ok_or(StoreError::Full(map_name::SLOTS))?.to_vec());
            }
            rest = &rest[together..];
        }
        Ok(read)
    }

    fn apply(&mut self, op: &Op) -> Result<(), StoreError> {
        self.apply_all(&[op]).pop().unwrap_or(Ok(()))
    }

    fn write_vip_filter(&mut self, words: &[u64]) {
        if let Some(vip_filter) = &self.maps.vip_filter {
            vip_filter.write(words);
        }
    }

    fn apply_all(&mut self, ops: &[&Op]) -> Results {
        if let Some(vip_filter) = &self.maps.vip_filter {
            ops.iter().filter_map(|op| op.address()).for_each(|address| vip_filter.know(address));
        }
        let sorted = Self::sort(ops);
        let mut results: Results = ops.iter().map(|_| Ok(())).collect();
        if !sorted.stats.is_empty() {
            self.remove_stats(&sorted.stats, &mut results);
        }
        for (op, result) in ops.iter().zip(&mut results) {
            let times = match Released::by(op) {
                Some(Released::Backend(id)) => {
                    self.unreferred.remove(&id);
                    endpoints::forget(&self.maps, id);
                    connect_times::retire(&self.maps, id)
                }
                Some(Released::Service(id)) => connect_times::forget(&self.maps, id),
                Some(Released::Slots(_)) | None => Ok(()),
            };
            if let Err(error) = times {
                *result = Err(failed(map_name::CONNECT_TIMES, "changing", &error));
            }
        }
        sorted.names.write(&self.maps.of::<map::Names>(), &mut results);
        sorted.backends4.write(&self.maps.of::<map::Backends<4>>(), &mut results);
        sorted.backends6.write(&self.maps.of::<map::Backends<16>>(), &mut results);
        sorted.endpoints.write(&self.maps, &mut results);
        sorted.slots.write(&self.maps.of::<map::Slots>(), &mut results);
        sorted.sources4.write(&self.maps.of::<map::Sources<4>>(), &mut results);
        sorted.sources6.write(&self.maps.of::<map::Sources<16>>(), &mut results);
        sorted.services4.write(&self.maps.of::<map::Services<4>>(), &mut results);
        sorted.services6.write(&self.maps.of::<map::Services<16>>(), &mut results);
        sorted.vips4.write(&self.maps.of::<map::Vips<4>>(), &mut results);
        sorted.vips6.write(&self.maps.of::<map::Vips<16>>(), &mut results);
        for (index, op) in sorted.rest {
            if results[index].is_ok() {
                results[index] = self.single(op);
            }
        }
        results
    }

    /// By what the last round of the sweep saw. Of an id that is given up nothing more is known: it may be given away again.
    fn referred(&mut self, ids: &BTreeSet<BackendId>) -> Result<BTreeSet<BackendId>, StoreError> {
        Ok(ids - &self.unreferred)
    }
}

fn remove<K: Pod, V: Pod>(table: &Table<K, V>, key: &K) -> Result<(), StoreError> {
    // An operation that is repeated finds its work done.
    table.remove(key).map(drop).map_err(|error| failed(table.name(), "deleting", &error))
}

fn is_missing(error: &aya::maps::MapError) -> bool {
    use aya::maps::MapError as Aya;
    matches!(error, Aya::KeyNotFound | Aya::ElementNotFound)
        || matches!(error, Aya::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOENT))
}
