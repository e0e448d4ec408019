//! Tables that are reconciled with the links and the cluster's networks: only what differs is written.

use std::{collections::BTreeMap, fmt, io, net::IpAddr, path::Path};

use aya::Pod;
use ipnet::IpNet;
use lb_common::{
    abi::{Masquerade, Network, NetworkKey},
    map::{self, Map, Prefix},
    service_cidrs::Cover,
};

use super::{
    DatapathError,
    fault::Fault,
    sources::{Wanted, covers},
};
use lb_tables::{Calls, MapError, Table, open_table};

/// A table, and what was last read of it or written to it. `I` stands for the key, which has no order of its own.
struct ReconciledTable<I, K, V> {
    table: Table<K, V>,
    held: BTreeMap<I, V>,
    key: fn(&I) -> Option<K>,
    id: fn(K) -> I,
}

impl<I: Clone + Ord, K: Pod, V: Pod + PartialEq> ReconciledTable<I, K, V> {
    fn open<M: Map<Key = K, Value = V>>(
        dir: &Path,
        key: fn(&I) -> Option<K>,
        id: fn(K) -> I,
    ) -> Result<Self, DatapathError> {
        let table = open_table::<M>(dir, &Calls::default()).map_err(unusable)?;
        let mut table = Self { table, held: BTreeMap::new(), key, id };
        table.held = table.found()?;
        Ok(table)
    }

    /// What the table itself holds.
    fn found(&self) -> Result<BTreeMap<I, V>, DatapathError> {
        let found = self.table.read().map_err(self.failed("read"))?;
        Ok(found.iter().map(|(key, value)| ((self.id)(*key), *value)).collect())
    }

    /// What is not as it was left, and whether something is there.
    fn strange(&self, found: &BTreeMap<I, V>, text: fn(&I) -> String) -> Vec<Fault> {
        let changed = self.held.iter().filter(|(id, value)| found.get(id) != Some(value)).map(|(id, _)| id);
        let added = found.keys().filter(|id| !self.held.contains_key(id));
        let fault = |id: &I| Fault {
            table: self.table.name(),
            entry: text(id),
            is_replaced: found.contains_key(id),
            is_repaired: false,
        };
        changed.chain(added).map(fault).collect()
    }

    /// Looks at the table; believes what is there if `takes` says so.
    fn check(&mut self, takes: bool, text: fn(&I) -> String, faults: &mut Vec<Fault>) -> Result<(), DatapathError> {
        let found = self.found()?;
        faults.extend(self.strange(&found, text));
        if takes {
            self.held = found;
        }
        Ok(())
    }

    /// What is new comes before what is old goes. An element that fails keeps no other one out; the first failure is returned.
    fn set(&mut self, wanted: impl Iterator<Item = (I, V)>) -> Result<(), DatapathError> {
        let mut old: BTreeMap<I, V> = self.held.clone();
        let mut failure = None;
        for (id, value) in wanted {
            if old.remove(&id) != Some(value) {
                let Some(key) = (self.key)(&id) else { continue };
                match self.table.put(&key, &value) {
                    Ok(()) => drop(self.held.insert(id, value)),
                    Err(error) => drop(failure.get_or_insert_with(|| self.failed("write")(error))),
                }
            }
        }
        for id in old.into_keys() {
            if let Some(key) = (self.key)(&id)
                && let Err(error) = self.table.remove(&key)
            {
                failure.get_or_insert_with(|| self.failed("delete from")(error));
                continue;
            }
            self.held.remove(&id);
        }
        failure.map_or(Ok(()), Err)
    }

    fn failed(&self, action: &str) -> impl FnOnce(io::Error) -> DatapathError + use<I, K, V> {
        DatapathError::kernel(format!("{action} map {}", self.table.name()))
    }
}

fn unusable(error: MapError) -> DatapathError {
    DatapathError::kernel("open the pinned maps")(io::Error::other(error))
}

/// `networks4`, `networks6`, `service_cidrs`, `masquerade4` and `masquerade6`.
pub(super) struct Sources {
    networks4: ReconciledTable<IpNet, Prefix<NetworkKey<4>>, Network>,
    networks6: ReconciledTable<IpNet, Prefix<NetworkKey<16>>, Network>,
    /// An array: each of its elements is always wanted, so none is ever deleted.
    service_cidrs: ReconciledTable<u32, u32, Cover>,
    masquerade4: ReconciledTable<u32, u32, Masquerade<4>>,
    masquerade6: ReconciledTable<u32, u32, Masquerade<16>>,
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
            networks4: ReconciledTable::open::<map::Networks<4>>(dir, key4, id4)?,
            networks6: ReconciledTable::open::<map::Networks<16>>(dir, key6, id6)?,
            service_cidrs: ReconciledTable::open::<map::ServiceCidrs>(dir, |id| Some(*id), |key| key)?,
            masquerade4: ReconciledTable::open::<map::Masquerade<4>>(dir, |id| Some(*id), |key| key)?,
            masquerade6: ReconciledTable::open::<map::Masquerade<16>>(dir, |id| Some(*id), |key| key)?,
        })
    }

    /// The networks in the tables.
    fn networks(&self) -> BTreeMap<IpNet, u32> {
        let all = self.networks4.held.iter().chain(&self.networks6.held);
        all.map(|(network, value)| (*network, value.flags)).collect()
    }

    /// What is in the tables; of the addresses that stand in for clients, each link's first one.
    pub fn held(&self) -> Wanted {
        Wanted {
            networks: self.networks(),
            masquerade4: firsts(&self.masquerade4.held),
            masquerade6: firsts(&self.masquerade6.held),
        }
    }

    /// What somebody else changed. `takes`: from here on what is there counts, for the next [`Self::set`] to put it right.
    pub fn check(&mut self, takes: bool) -> Result<Vec<Fault>, DatapathError> {
        let mut faults = Vec::new();
        self.networks4.check(takes, ToString::to_string, &mut faults)?;
        self.networks6.check(takes, ToString::to_string, &mut faults)?;
        self.service_cidrs.check(takes, |family| format!("element {family}"), &mut faults)?;
        self.masquerade4.check(takes, |ifindex| format!("interface {ifindex}"), &mut faults)?;
        self.masquerade6.check(takes, |ifindex| format!("interface {ifindex}"), &mut faults)?;
        Ok(faults)
    }

    /// All of them, whatever becomes of one; the first failure is returned.
    pub fn set(&mut self, wanted: &Wanted) -> Result<(), DatapathError> {
        let networks = |is_v4: bool| {
            let family = wanted.networks.iter().filter(move |(network, _)| network.addr().is_ipv4() == is_v4);
            family.map(|(network, flags)| (*network, Network { flags: *flags }))
        };
        let networks = [self.networks4.set(networks(true)), self.networks6.set(networks(false))];
        let cidrs = self.service_cidrs.set((0..).zip(covers(&wanted.networks)));
        let masquerade4 = self.masquerade4.set(wanted.masquerade4.iter().filter_map(|(ifindex, all)| {
            let all: Vec<[u8; 4]> = all.iter().map(std::net::Ipv4Addr::octets).collect();
            all.split_first().map(|(first, others)| (*ifindex, Masquerade::new(*first, others)))
        }));
        let masquerade6 = self.masquerade6.set(wanted.masquerade6.iter().filter_map(|(ifindex, all)| {
            let all: Vec<[u8; 16]> = all.iter().map(std::net::Ipv6Addr::octets).collect();
            all.split_first().map(|(first, others)| (*ifindex, Masquerade::new(*first, others)))
        }));
        networks.into_iter().chain([cidrs, masquerade4, masquerade6]).collect()
    }
}

fn firsts<const N: usize, A: From<[u8; N]>>(held: &BTreeMap<u32, Masquerade<N>>) -> BTreeMap<u32, Vec<A>> {
    held.iter().map(|(ifindex, own)| (*ifindex, vec![A::from(*own.address(0))])).collect()
}

fn key4(network: &IpNet) -> Option<Prefix<NetworkKey<4>>> {
    let IpNet::V4(v4) = network else { return None };
    Some(Prefix::new(v4.prefix_len().into(), NetworkKey { address: v4.network().octets() }))
}

fn key6(network: &IpNet) -> Option<Prefix<NetworkKey<16>>> {
    let IpNet::V6(v6) = network else { return None };
    Some(Prefix::new(v6.prefix_len().into(), NetworkKey { address: v6.network().octets() }))
}

fn id4(key: Prefix<NetworkKey<4>>) -> IpNet {
    network(IpAddr::from(key.data.address), key.bits)
}

fn id6(key: Prefix<NetworkKey<16>>) -> IpNet {
    network(IpAddr::from(key.data.address), key.bits)
}

/// The kernel takes no prefix that is longer than the address.
fn network(address: IpAddr, length: u32) -> IpNet {
    let length = u8::try_from(length).unwrap_or(u8::MAX);
    IpNet::new(address, length).map_or_else(|_| IpNet::from(address), |network| network.trunc())
}
