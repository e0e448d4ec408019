//! Reads back all that the plan owns.

use std::{net::IpAddr, ops::Range};

use aya::Pod;
use lb_common::{
    abi::{Backend, Endpoint, EndpointKey, Service, ServiceKey, Source, SourceKey, V4, V6, Vip, VipKey},
    map::{self, Map, MapId, Prefix},
};

use super::{StoreError, elements::failed, records};
use crate::plan::{BackendId, Loaded, Part, Stray};
use lb_model::Family;
use lb_tables::{Pinned, Table, VipFilter, bytes_of};

/// Elements of an array that are read together.
const READ_TOGETHER: u32 = 4_096;

/// Adds what one part holds.
pub(super) fn load(maps: &Pinned, part: Part, loaded: &mut Loaded) -> Result<(), StoreError> {
    match part {
        Part::Names => loaded.names = read(&maps.of::<map::Names>())?,
        Part::Services(Family::V4) => services(&maps.of::<map::Services<4>>(), loaded)?,
        Part::Services(Family::V6) => services(&maps.of::<map::Services<16>>(), loaded)?,
        Part::Backends(family) => load_backends(maps, family, 0..u32::MAX, loaded)?,
        Part::Endpoints(Family::V4) => endpoints(&maps.of::<map::Endpoints<4>>(), loaded)?,
        Part::Endpoints(Family::V6) => endpoints(&maps.of::<map::Endpoints<16>>(), loaded)?,
        Part::Sources(Family::V4) => sources(&maps.of::<map::Sources<4>>(), loaded)?,
        Part::Sources(Family::V6) => sources(&maps.of::<map::Sources<16>>(), loaded)?,
        Part::Vips(Family::V4) => vips(&maps.of::<map::Vips<4>>(), loaded)?,
        Part::Vips(Family::V6) => vips(&maps.of::<map::Vips<16>>(), loaded)?,
        Part::VipFilter => loaded.vip_filter = maps.vip_filter.as_ref().map(VipFilter::read).unwrap_or_default(),
        Part::Config => {
            let table = maps.of::<map::Config>();
            loaded.config = table.get(&0).map_err(|error| failed(table.name(), "reading", &error))?;
        }
        Part::Slots | Part::Plan => {}
    }
    Ok(())
}

/// Adds the backends with these ids that were ever used.
pub(super) fn load_backends(
    maps: &Pinned,
    family: Family,
    ids: Range<u32>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    match family {
        Family::V4 => backends(&maps.of::<map::Backends<4>>(), family, ids, loaded),
        Family::V6 => backends(&maps.of::<map::Backends<16>>(), family, ids, loaded),
    }
}

/// Takes out an element that nothing of ours can be. One of an array is emptied.
pub(super) fn remove_stray(maps: &Pinned, stray: &Stray) -> Result<(), StoreError> {
    let key = stray.key.as_slice();
    let removed = if stray.table == MapId::BACKENDS4 {
        maps.of::<map::Backends<4>>().put(&0, &records::backend(&records::free(Family::V4, 0), [0; V4]))
    } else if stray.table == MapId::BACKENDS6 {
        maps.of::<map::Backends<16>>().put(&0, &records::backend(&records::free(Family::V6, 0), [0; V6]))
    } else {
        maps.remove_bytes(stray.table, key)
    };
    removed.map_err(|error| failed(stray.table.name(), "deleting", &error))
}

fn read<K: Pod, V: Pod>(table: &Table<K, V>) -> Result<Vec<(K, V)>, StoreError> {
    table.read().map_err(|error| failed(table.name(), "reading", &error))
}

fn services<const N: usize>(table: &Table<ServiceKey<N>, Service>, loaded: &mut Loaded) -> Result<(), StoreError> {
    for (key, entry) in read(table)? {
        match records::frontend(&key) {
            Some(frontend) => loaded.frontends.push((frontend, entry)),
            None => loaded.strays.push(stray::<map::Services<N>>(&key)),
        }
    }
    Ok(())
}

fn backends<const N: usize>(
    table: &Table<u32, Backend<N>>,
    family: Family,
    ids: Range<u32>,
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    let mut from = ids.start;
    let end = ids.end.min(table.capacity());
    while from < end {
        let count = (end - from).min(READ_TOGETHER);
        let records = table.read_range(from, count).map_err(|error| failed(table.name(), "reading", &error))?;
        // Generation 0 means that this id never was in use.
        for (id, record) in (from..).zip(&records).filter(|(_, record)| record.generation != 0) {
            match records::from_backend(record) {
                Some(_) if id == 0 => loaded.strays.push(stray::<map::Backends<N>>(&id)),
                Some(plain) => loaded.backends.push((BackendId { family, id }, plain)),
                None => {}
            }
        }
        from += count;
    }
    Ok(())
}

fn endpoints<const N: usize>(table: &Table<EndpointKey<N>, Endpoint>, loaded: &mut Loaded) -> Result<(), StoreError>
where
    IpAddr: From<[u8; N]>,
{
    let found = read(table)?;
    loaded.endpoints.extend(found.iter().map(|(key, value)| ((IpAddr::from(key.address), key.service), *value)));
    Ok(())
}

fn sources<const N: usize>(table: &Table<Prefix<SourceKey<N>>, Source>, loaded: &mut Loaded) -> Result<(), StoreError> {
    for (key, source) in read(table)? {
        match records::source(&key) {
            Some((service, network)) => loaded.sources.push((service, network, source)),
            None => loaded.strays.push(stray::<map::Sources<N>>(&key)),
        }
    }
    Ok(())
}

fn vips<const N: usize>(table: &Table<VipKey<N>, Vip>, loaded: &mut Loaded) -> Result<(), StoreError> {
    let found = read(table)?;
    loaded.vips.extend(found.iter().filter_map(|(key, vip)| Some((records::vip(key)?, *vip))));
    Ok(())
}

fn stray<M: Map>(key: &M::Key) -> Stray {
    Stray { table: M::ID, key: bytes_of(key).to_vec() }
}
