//! The kernel's maps of one family: written as plain tables are, and compared with them.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use anyhow::{Result, ensure};
use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{self, LpmTrie, MapData, MapError};
use lb_common::abi::{Affinity, AffinityKey, network_flags};
use lb_common::abi::{Flow, FlowKey, HalfOpen, Health, Network, NetworkKey, SOURCE_SERVICE_BITS, Source, SourceKey};
use lb_common::plain::Memory;
use lb_common::service_cidrs::Cover;

use crate::test_run::LoadedPrograms;

/// Writes and reads the maps of one family.
pub trait Maps<const N: usize> {
    /// Writes what differs between two states of the plain tables.
    fn write(&mut self, before: &Memory<N>, after: &Memory<N>) -> Result<()>;
    fn flows(&self) -> Result<HashMap<FlowKey<N>, Flow<N>>>;
    fn half_open(&self) -> Result<HashMap<FlowKey<N>, HalfOpen<N>>>;
    fn affinity(&self) -> Result<HashMap<AffinityKey<N>, Affinity>>;
    fn health(&self, backend: u32) -> Result<Health>;

    /// Writes the tables into empty maps.
    fn fill(&mut self, tables: &Memory<N>) -> Result<()> {
        self.write(&Memory::empty(), tables)
    }
}

/// Gone already is as good.
fn gone(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Calls `write` for each entry that is new or another one, and for each that is there no more.
fn changes<K: Eq + Hash + Copy, V: PartialEq + Copy>(
    before: &HashMap<K, V>,
    after: &HashMap<K, V>,
    mut write: impl FnMut(K, Option<V>) -> Result<(), MapError>,
) -> Result<()> {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    gone.copied().try_for_each(|key| write(key, None))?;
    let new = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
    Ok(new.map(|(key, value)| (*key, *value)).try_for_each(|(key, value)| write(key, Some(value)))?)
}

/// Writes an entry, or removes it.
fn put<K: Pod, V: Pod>(map: &mut maps::HashMap<MapData, K, V>, key: K, value: Option<V>) -> Result<(), MapError> {
    value.map_or(Ok(()), |value| map.insert(key, value, 0))?;
    if value.is_some() { Ok(()) } else { gone(map.remove(&key)) }
}

/// The same of a network.
fn put_network<K: Pod, V: Pod>(
    map: &mut LpmTrie<MapData, K, V>,
    key: &Key<K>,
    value: Option<V>,
) -> Result<(), MapError> {
    value.map_or(Ok(()), |value| map.insert(key, value, 0))?;
    if value.is_some() { Ok(()) } else { gone(map.remove(key)) }
}

macro_rules! maps {
    ($n:literal, $tables:ident, $state:ident) => {
        impl Maps<$n> for LoadedPrograms {
            fn write(&mut self, before: &Memory<$n>, after: &Memory<$n>) -> Result<()> {
                let (filter, shares) = (&self.vip_filter, &self.client_shares);
                let (tables, state) = (&mut self.$tables, &mut self.$state);
                changes(&before.services, &after.services, |key, value| {
                    filter.know(key.address.into());
                    put(&mut tables.services, key, value)
                })?;
                changes(&before.vips, &after.vips, |key, value| {
                    filter.know(key.address.into());
                    put(&mut state.vips, key, value)
                })?;
                changes(&before.slots, &after.slots, |at, slot| {
                    slot.map_or(Ok(()), |slot| tables.slots.set(at, slot, 0))
                })?;
                changes(&before.backends, &after.backends, |id, backend| {
                    backend.map_or(Ok(()), |backend| tables.backends.set(id, backend, 0))
                })?;
                let sources = |of: &Memory<$n>| of.sources.iter().map(|source| (*source, ())).collect();
                changes(&sources(before), &sources(after), |(service, address, bits), is_there: Option<()>| {
                    let key = Key::new(SOURCE_SERVICE_BITS + bits, SourceKey { service, address });
                    put_network(&mut tables.sources, &key, is_there.map(|()| Source { service }))
                })?;
                let networks = |of: &Memory<$n>| of.networks.iter().map(|it| ((it.0, it.1), it.2)).collect();
                changes(&networks(before), &networks(after), |(address, bits), flags: Option<u32>| {
                    let key = Key::new(bits, NetworkKey { address });
                    put_network(&mut state.networks, &key, flags.map(|flags| Network { flags }))
                })?;
                changes(&before.endpoints, &after.endpoints, |key, value| put(&mut state.endpoints, key, value))?;
                let own = |of: &Memory<$n>| of.own.map(|own| (0, own)).into_iter().collect();
                changes(&own(before), &own(after), |link, own| put(&mut state.masquerade, link, own))?;
                changes(&before.health, &after.health, |id, value| state.health.set(id, value.unwrap_or_default(), 0))?;
                changes(&before.flows, &after.flows, |key, flow| put(tables.flows_of(&key), key, flow))?;
                changes(&before.half_open, &after.half_open, |key, entry| put(&mut state.half_open, key, entry))?;
                changes(&before.client_shares, &after.client_shares, |counter, count| {
                    shares.set(counter, count.unwrap_or_default().max(0).cast_unsigned());
                    Ok(())
                })?;
                let cidrs = after.networks.iter().filter(|(.., flags)| flags & network_flags::SERVICES != 0);
                let cover = Cover::of::<$n>(cidrs.map(|(address, bits, _)| (*address, *bits)));
                self.set_cover::<$n>(cover)?;
                self.set_adoption(after.adoption_until_s)
            }

            fn flows(&self) -> Result<HashMap<FlowKey<$n>, Flow<$n>>> {
                Ok(self.$tables.all_flows()?.into_iter().collect())
            }

            fn half_open(&self) -> Result<HashMap<FlowKey<$n>, HalfOpen<$n>>> {
                Ok(self.$state.half_open.iter().collect::<Result<_, _>>()?)
            }

            fn affinity(&self) -> Result<HashMap<AffinityKey<$n>, Affinity>> {
                Ok(self.$state.affinity.iter().collect::<Result<_, _>>()?)
            }

            fn health(&self, backend: u32) -> Result<Health> {
                Ok(self.$state.health.get(&backend, 0)?)
            }
        }
    };
}

maps!(4, tables4, state4);
maps!(16, tables6, state6);

/// Both hold the same.
pub(super) fn same<K, V>(what: &str, kernel: &HashMap<K, V>, host: &HashMap<K, V>) -> Result<()>
where
    K: Eq + Hash + Debug,
    V: PartialEq + Debug,
{
    for (key, value) in kernel {
        ensure!(host.get(key) == Some(value), "{what} {key:?}\n  kernel {value:?}\n  host   {:?}", host.get(key));
    }
    for (key, value) in host {
        ensure!(kernel.contains_key(key), "{what} {key:?}\n  kernel nothing\n  host   {value:?}");
    }
    Ok(())
}
