//! Tables that are kept at what the links and the cluster's networks ask for: only what differs is written.

use std::{collections::BTreeMap, fmt, io, net::IpAddr, path::Path};

use aya::{Pod, maps::lpm_trie::Key};
use ipnet::IpNet;
use lb_common::abi::{Masquerade, Network, NetworkKey, map_name};

use super::{DatapathError, sources::Wanted};
use crate::maps::{Calls, MapError, Table};

/// A table, and what was last read of it or written to it. `I` stands for the key, which has no order of its own.
struct Kept<I, K, V> {
    table: Table<K, V>,
    held: BTreeMap<I, V>,
    key: fn(&I) -> Option<K>,
    id: fn(K) -> I,
}

impl<I: Clone + Ord, K: Pod, V: Pod + PartialEq> Kept<I, K, V> {
    fn open(dir: &Path, name: &'static str, key: fn(&I) -> Option<K>, id: fn(K) -> I) -> Result<Self, DatapathError> {
        let table = Table::open(dir, name, &Calls::default()).map_err(unusable)?;
        let mut kept = Self { table, held: BTreeMap::new(), key, id };
        kept.read()?;
        Ok(kept)
    }

    /// Looks at the table itself; gives what is not as it was left.
    fn read(&mut self) -> Result<Vec<I>, DatapathError> {
        let found = self.table.read().map_err(self.failed("read"))?;
        let found: BTreeMap<I, V> = found.iter().map(|(key, value)| ((self.id)(*key), *value)).collect();
        let before = std::mem::replace(&mut self.held, found);
        let held = &self.held;
        let mut strange: Vec<I> = before.iter().filter(|(id, value)| held.get(id) != Some(value)).map(first).collect();
        strange.extend(held.keys().filter(|id| !before.contains_key(id)).cloned());
        Ok(strange)
    }

    /// What is new comes before what is old goes.
    fn set(&mut self, wanted: impl Iterator<Item = (I, V)>) -> Result<(), DatapathError> {
        let mut old: BTreeMap<I, V> = self.held.clone();
        for (id, value) in wanted {
            if old.remove(&id) != Some(value) {
                let Some(key) = (self.key)(&id) else { continue };
                self.table.put(&key, &value).map_err(self.failed("write"))?;
                self.held.insert(id, value);
            }
        }
        for id in old.into_keys() {
            if let Some(key) = (self.key)(&id) {
                self.table.remove(&key).map_err(self.failed("delete from"))?;
            }
            self.held.remove(&id);
        }
        Ok(())
    }

    fn failed(&self, action: &str) -> impl FnOnce(io::Error) -> DatapathError + use<I, K, V> {
        DatapathError::kernel(format!("{action} map {}", self.table.name()))
    }
}

fn first<I: Clone, V>((id, _): (&I, &V)) -> I {
    id.clone()
}

fn unusable(error: MapError) -> DatapathError {
    DatapathError::kernel("open the pinned maps")(io::Error::other(error))
}

/// `networks4`, `networks6`, `masquerade4` and `masquerade6`.
pub(super) struct Sources {
    networks4: Kept<IpNet, Key<NetworkKey<4>>, Network>,
    networks6: Kept<IpNet, Key<NetworkKey<16>>, Network>,
    masquerade4: Kept<u32, u32, Masquerade<4>>,
    masquerade6: Kept<u32, u32, Masquerade<16>>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("networks", &self.networks()).finish_non_exhaustive()
    }
}

impl Sources {
    /// Takes over what an agent before this one left.
    pub fn open(dir: &Path) -> Result<Self, DatapathError> {
        Ok(Self {
            networks4: Kept::open(dir, map_name::NETWORKS4, key4, id4)?,
            networks6: Kept::open(dir, map_name::NETWORKS6, key6, id6)?,
            masquerade4: Kept::open(dir, map_name::MASQUERADE4, |id| Some(*id), |key| key)?,
            masquerade6: Kept::open(dir, map_name::MASQUERADE6, |id| Some(*id), |key| key)?,
        })
    }

    /// The networks in the tables.
    pub fn networks(&self) -> BTreeMap<IpNet, u32> {
        let all = self.networks4.held.iter().chain(&self.networks6.held);
        all.map(|(network, value)| (*network, value.flags)).collect()
    }

    /// Looks at the tables themselves; what somebody else changed, as table and entry.
    pub fn read(&mut self) -> Result<Vec<(&'static str, String)>, DatapathError> {
        let mut strange = Vec::new();
        let text = |network: &IpNet| network.to_string();
        let link = |ifindex: &u32| format!("interface {ifindex}");
        strange.extend(self.networks4.read()?.iter().map(|id| (map_name::NETWORKS4, text(id))));
        strange.extend(self.networks6.read()?.iter().map(|id| (map_name::NETWORKS6, text(id))));
        strange.extend(self.masquerade4.read()?.iter().map(|id| (map_name::MASQUERADE4, link(id))));
        strange.extend(self.masquerade6.read()?.iter().map(|id| (map_name::MASQUERADE6, link(id))));
        Ok(strange)
    }

    pub fn set(&mut self, wanted: &Wanted) -> Result<(), DatapathError> {
        let networks = |is_v4: bool| {
            let family = wanted.networks.iter().filter(move |(network, _)| network.addr().is_ipv4() == is_v4);
            family.map(|(network, flags)| (*network, Network { flags: *flags }))
        };
        self.networks4.set(networks(true))?;
        self.networks6.set(networks(false))?;
        let own =
            |(ifindex, address): (&u32, &std::net::Ipv4Addr)| (*ifindex, Masquerade { address: address.octets() });
        self.masquerade4.set(wanted.masquerade4.iter().map(own))?;
        let own =
            |(ifindex, address): (&u32, &std::net::Ipv6Addr)| (*ifindex, Masquerade { address: address.octets() });
        self.masquerade6.set(wanted.masquerade6.iter().map(own))
    }
}

fn key4(network: &IpNet) -> Option<Key<NetworkKey<4>>> {
    let IpNet::V4(v4) = network else { return None };
    Some(Key::new(v4.prefix_len().into(), NetworkKey { address: v4.network().octets() }))
}

fn key6(network: &IpNet) -> Option<Key<NetworkKey<16>>> {
    let IpNet::V6(v6) = network else { return None };
    Some(Key::new(v6.prefix_len().into(), NetworkKey { address: v6.network().octets() }))
}

fn id4(key: Key<NetworkKey<4>>) -> IpNet {
    network(IpAddr::from(key.data().address), key.prefix_len())
}

fn id6(key: Key<NetworkKey<16>>) -> IpNet {
    network(IpAddr::from(key.data().address), key.prefix_len())
}

/// The kernel takes no prefix that is longer than the address.
fn network(address: IpAddr, length: u32) -> IpNet {
    let length = u8::try_from(length).unwrap_or(u8::MAX);
    IpNet::new(address, length).map_or_else(|_| IpNet::from(address), |network| network.trunc())
}
