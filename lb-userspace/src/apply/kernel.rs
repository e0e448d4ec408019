//! The kernel's maps as a store.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use aya::{
    Pod,
    maps::{Array, MapData},
};
use lb_common::{
    abi::{self, Backend, ServiceKey, Slot, V4, V6, backend_state, map_name, stat_kind},
    outcome::Outcome,
};

use super::{Store, StoreError};
use crate::{
    maps::{Hash, MapError, Pinned, elements},
    model::{Family, Protocol},
    plan::{BackendId, BackendRecord, Capacities, Frontend, Loaded, Op, Range},
};

/// Writes pinned maps.
pub struct KernelStore {
    maps: Pinned,
}

impl KernelStore {
    pub fn new(maps: Pinned) -> Self {
        Self { maps }
    }

    pub fn maps(&self) -> &Pinned {
        &self.maps
    }

    fn write_backend(&mut self, id: BackendId, record: &BackendRecord) -> Result<(), StoreError> {
        let written = match record.address.ip() {
            IpAddr::V4(v4) => self.maps.backends4.set(id.id, to_abi(record, v4.octets()), 0),
            IpAddr::V6(v6) => self.maps.backends6.set(id.id, to_abi(record, v6.octets()), 0),
        };
        written.map_err(|error| failed(backends_name(id.family), "writing", error))
    }

    fn free_backend(&mut self, id: BackendId, generation: u32) -> Result<(), StoreError> {
        let unspecified = match id.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let record = BackendRecord {
            address: SocketAddr::new(unspecified, 0),
            state: backend_state::FREE,
            flags: 0,
            generation,
            service: 0,
            deadline_ds: 0,
            uid_hash: 0,
            weight: 0,
        };
        let kind = if id.family == Family::V4 { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
        self.remove_stats(id.id, kind)?;
        self.write_backend(id, &record)
    }

    fn write_slots(&mut self, base: u32, slots: &[Slot]) -> Result<(), StoreError> {
        for (index, slot) in (base..).zip(slots) {
            self.maps.slots.set(index, slot, 0).map_err(|error| failed(map_name::SLOTS, "writing", error))?;
        }
        Ok(())
    }

    fn write_frontend(&mut self, frontend: Frontend, entry: &abi::Service) -> Result<(), StoreError> {
        let (map, written) = match frontend.address {
            IpAddr::V4(v4) => (map_name::SERVICES4, self.maps.services4.insert(frontend.key(v4.octets()), entry, 0)),
            IpAddr::V6(v6) => (map_name::SERVICES6, self.maps.services6.insert(frontend.key(v6.octets()), entry, 0)),
        };
        written.map_err(|error| failed(map, "writing", error))
    }

    fn remove_frontend(&mut self, frontend: Frontend) -> Result<(), StoreError> {
        match frontend.address {
            IpAddr::V4(v4) => remove(&mut self.maps.services4, map_name::SERVICES4, &frontend.key(v4.octets())),
            IpAddr::V6(v6) => remove(&mut self.maps.services6, map_name::SERVICES6, &frontend.key(v6.octets())),
        }
    }

    /// Counters of an id that is given up, so that its next owner starts at zero.
    fn remove_stats(&mut self, id: u32, kind: u8) -> Result<(), StoreError> {
        for outcome in Outcome::ALL {
            let key = abi::StatKey { id, kind, outcome: outcome as u8, pad: 0 };
            if let Err(error) = self.maps.stats.remove(&key)
                && !is_missing(&error)
            {
                return Err(failed(map_name::STATS, "deleting", error));
            }
        }
        Ok(())
    }

    fn write_config(&mut self, revision: u64, programmed_ds: u32) -> Result<(), StoreError> {
        let low = u32::try_from(revision & u64::from(u32::MAX)).unwrap_or_default();
        let high = u32::try_from(revision >> 32).unwrap_or_default();
        let config =
            abi::Config { abi_version: abi::ABI_VERSION, programmed_ds, revision_low: low, revision_high: high };
        self.maps.config.set(0, config, 0).map_err(|error| failed(map_name::CONFIG, "writing", error))
    }
}

impl Store for KernelStore {
    fn capacities(&self) -> Capacities {
        let capacity = &self.maps.capacity;
        Capacities {
            frontends4: capacity.services4,
            frontends6: capacity.services6,
            backends4: capacity.backends4,
            backends6: capacity.backends6,
            slots: capacity.slots,
            names: capacity.names,
        }
    }

    fn load(&self) -> Result<Loaded, StoreError> {
        let capacity = &self.maps.capacity;
        let mut loaded = Loaded {
            names: elements(&self.maps.names, map_name::NAMES, capacity.names).map_err(|error| unreadable(&error))?,
            ..Loaded::default()
        };
        let services = elements(&self.maps.services4, map_name::SERVICES4, capacity.services4)
            .map_err(|error| unreadable(&error))?;
        loaded.frontends.extend(services.iter().filter_map(|(key, entry)| Some((frontend(key)?, *entry))));
        let services = elements(&self.maps.services6, map_name::SERVICES6, capacity.services6)
            .map_err(|error| unreadable(&error))?;
        loaded.frontends.extend(services.iter().filter_map(|(key, entry)| Some((frontend(key)?, *entry))));
        load_backends(&self.maps.backends4, Family::V4, &mut loaded)?;
        load_backends(&self.maps.backends6, Family::V6, &mut loaded)?;
        Ok(loaded)
    }

    fn slots(&self, range: Range) -> Result<Vec<Slot>, StoreError> {
        let indices = range.base..range.base.saturating_add(range.count);
        let read = |index| self.maps.slots.get(&index, 0).map_err(|error| failed(map_name::SLOTS, "reading", error));
        indices.map(read).collect()
    }

    fn apply(&mut self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::WriteName { id, name } => {
                self.maps.names.insert(id, name, 0).map_err(|error| failed(map_name::NAMES, "writing", error))
            }
            Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => self.write_backend(*id, record),
            Op::WriteSlots { base, slots } => self.write_slots(*base, slots),
            Op::WriteFrontend { frontend, entry } => self.write_frontend(*frontend, entry),
            Op::RemoveFrontend { frontend } => self.remove_frontend(*frontend),
            Op::FreeBackend { id, generation } => self.free_backend(*id, *generation),
            // The content stays; it is written over when the range is used again.
            Op::ReleaseSlots { .. } => Ok(()),
            Op::ForgetService { id } => {
                self.remove_stats(*id, stat_kind::SERVICE)?;
                remove(&mut self.maps.names, map_name::NAMES, id)
            }
            Op::WriteConfig { revision, programmed_ds } => self.write_config(*revision, *programmed_ds),
        }
    }

    fn referred(&self, ids: &BTreeSet<BackendId>) -> Result<BTreeSet<BackendId>, StoreError> {
        let maps = &self.maps;
        let mut found = BTreeSet::new();
        let v4 = Asked { ids, family: Family::V4 };
        let v6 = Asked { ids, family: Family::V6 };
        v4.scan(&maps.flows4, map_name::FLOWS4, maps.capacity.flows4, |flow| flow.backend, &mut found)?;
        v6.scan(&maps.flows6, map_name::FLOWS6, maps.capacity.flows6, |flow| flow.backend, &mut found)?;
        v4.scan(&maps.sockets4, map_name::SOCKETS4, maps.capacity.sockets4, |peer| peer.backend, &mut found)?;
        v6.scan(&maps.sockets6, map_name::SOCKETS6, maps.capacity.sockets6, |peer| peer.backend, &mut found)?;
        Ok(found)
    }
}

/// The ids of one family that are looked for.
struct Asked<'a> {
    ids: &'a BTreeSet<BackendId>,
    family: Family,
}

impl Asked<'_> {
    fn scan<K: Pod, V: Pod>(
        &self,
        map: &Hash<K, V>,
        name: &'static str,
        capacity: u32,
        backend: impl Fn(&V) -> u32,
        found: &mut BTreeSet<BackendId>,
    ) -> Result<(), StoreError> {
        if !self.ids.iter().any(|id| id.family == self.family) {
            return Ok(());
        }
        let read = elements(map, name, capacity).map_err(|error| unreadable(&error))?;
        if read.len() >= 2 * capacity as usize {
            // It changed faster than it could be read: any of them may be there.
            found.extend(self.ids.iter().filter(|id| id.family == self.family));
            return Ok(());
        }
        let ids = read.iter().map(|(_, value)| BackendId { family: self.family, id: backend(value) });
        found.extend(ids.filter(|id| self.ids.contains(id)));
        Ok(())
    }
}

fn load_backends<const N: usize>(
    map: &Array<MapData, Backend<N>>,
    family: Family,
    loaded: &mut Loaded,
) -> Result<(), StoreError>
where
    Backend<N>: Pod,
{
    for (id, record) in (0..).zip(map.iter()) {
        let record = record.map_err(|error| failed(backends_name(family), "reading", error))?;
        // Id 0 is never used; generation 0 means that this one never was.
        if id != 0
            && record.generation != 0
            && let Some(address) = address(&record.address)
        {
            loaded.backends.push((BackendId { family, id }, from_abi(&record, address)));
        }
    }
    Ok(())
}

fn to_abi<const N: usize>(record: &BackendRecord, address: [u8; N]) -> Backend<N> {
    Backend {
        address,
        port: record.address.port(),
        state: record.state,
        flags: record.flags,
        generation: record.generation,
        service: record.service,
        deadline_ds: record.deadline_ds,
        uid_hash: record.uid_hash,
        weight: record.weight,
        pad: 0,
    }
}

fn from_abi<const N: usize>(record: &Backend<N>, address: IpAddr) -> BackendRecord {
    BackendRecord {
        address: SocketAddr::new(address, record.port),
        state: record.state,
        flags: record.flags,
        generation: record.generation,
        service: record.service,
        deadline_ds: record.deadline_ds,
        uid_hash: record.uid_hash,
        weight: record.weight,
    }
}

fn frontend<const N: usize>(key: &ServiceKey<N>) -> Option<Frontend> {
    let protocol = Protocol::from_number(key.protocol)?;
    Some(Frontend { address: address(&key.address)?, port: key.port, protocol })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        V4 => Some(IpAddr::from(<[u8; V4]>::try_from(octets).ok()?)),
        V6 => Some(IpAddr::from(<[u8; V6]>::try_from(octets).ok()?)),
        _ => None,
    }
}

fn backends_name(family: Family) -> &'static str {
    match family {
        Family::V4 => map_name::BACKENDS4,
        Family::V6 => map_name::BACKENDS6,
    }
}

fn remove<K: Pod, V: Pod>(map: &mut Hash<K, V>, name: &'static str, key: &K) -> Result<(), StoreError> {
    match map.remove(key) {
        // An operation that is repeated finds its work done.
        Err(error) if is_missing(&error) => Ok(()),
        result => result.map_err(|error| failed(name, "deleting", error)),
    }
}

fn is_missing(error: &aya::maps::MapError) -> bool {
    use aya::maps::MapError as Aya;
    match error {
        Aya::KeyNotFound | Aya::ElementNotFound => true,
        Aya::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

fn failed(map: &'static str, action: &'static str, source: aya::maps::MapError) -> StoreError {
    let error = MapError::Access { map, action, source };
    if error.is_full() { StoreError::Full(map) } else { StoreError::Failed(error.to_string()) }
}

fn unreadable(error: &MapError) -> StoreError {
    StoreError::Failed(error.to_string())
}
