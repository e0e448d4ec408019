//! What stands in the pinned maps at one moment, as plain vectors.

use std::path::Path;

use aya::Pod;
use lb_common::abi::{
    Backend, Config, Flow, FlowKey, Link, Service, ServiceKey, ServiceName, SocketKey, SocketPeer, StatKey, V4, V6,
    backend_state, map_name,
};
use lb_common::outcome::Outcome;

use super::batch;
use super::report::FillReport;
use crate::maps::{MapError, Pinned};

/// The tables of one address family.
#[derive(Clone, Debug)]
pub struct FamilyContents<const N: usize> {
    pub services: Vec<(ServiceKey<N>, Service)>,
    /// By id, those in use.
    pub backends: Vec<(u32, Backend<N>)>,
    pub flows: Vec<(FlowKey<N>, Flow<N>)>,
    pub sockets: Vec<(SocketKey<N>, SocketPeer<N>)>,
}

impl<const N: usize> Default for FamilyContents<N> {
    fn default() -> Self {
        Self { services: Vec::new(), backends: Vec::new(), flows: Vec::new(), sockets: Vec::new() }
    }
}

/// All tables.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub v4: FamilyContents<V4>,
    pub v6: FamilyContents<V6>,
    pub names: Vec<(u32, ServiceName)>,
    /// Sums over all CPUs.
    pub stats: Vec<(StatKey, u64)>,
    /// Sums over all CPUs.
    pub outcomes: Vec<(Outcome, u64)>,
    pub links: Vec<(u32, Link)>,
    pub config: Option<Config>,
}

/// Which of the large tables are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub flows: bool,
    pub sockets: bool,
    pub stats: bool,
}

impl Contents {
    /// Reads the maps pinned in `dir`, the folder `<bpffs>/ballast`.
    pub fn read(dir: &Path, wanted: Wanted) -> Result<Self, MapError> {
        let pinned = Pinned::open(dir)?;
        let reader = Reader { dir };
        let mut contents = Self {
            v4: reader
                .family(wanted, [map_name::SERVICES4, map_name::BACKENDS4, map_name::FLOWS4, map_name::SOCKETS4])?,
            v6: reader
                .family(wanted, [map_name::SERVICES6, map_name::BACKENDS6, map_name::FLOWS6, map_name::SOCKETS6])?,
            names: reader.all(map_name::NAMES)?,
            links: reader.all(map_name::LINKS)?,
            outcomes: outcomes(&pinned)?,
            config: pinned.config.get(&0, 0).ok(),
            stats: Vec::new(),
        };
        if wanted.stats {
            contents.stats = stats(&pinned)?;
        }
        Ok(contents)
    }
}

/// Sums of the counters by outcome.
pub fn outcomes(pinned: &Pinned) -> Result<Vec<(Outcome, u64)>, MapError> {
    let read = |outcome: Outcome| {
        let cpus = pinned.outcomes.get(&(outcome as u32), 0).map_err(reading(map_name::OUTCOMES))?;
        Ok((outcome, cpus.iter().sum()))
    };
    Outcome::ALL.into_iter().map(read).collect()
}

/// Sums of the counters by service, backend and outcome.
pub fn stats(pinned: &Pinned) -> Result<Vec<(StatKey, u64)>, MapError> {
    // Bounded: a deleted key starts the iteration over.
    let counters = pinned.stats.iter().take(2 * pinned.stats_capacity as usize);
    let sum = |counter: Result<(StatKey, aya::maps::PerCpuValues<u64>), aya::maps::MapError>| {
        counter.map(|(key, cpus)| (key, cpus.iter().sum())).map_err(reading(map_name::STATS))
    };
    let mut counters = counters.map(sum).collect::<Result<Vec<_>, _>>()?;
    counters.sort_unstable();
    counters.dedup_by_key(|(key, _)| *key);
    Ok(counters)
}

/// How many entries the tables of the programs hold: flows and sockets. Walks them, by batches of keys.
pub fn count_flows(dir: &Path) -> Result<Vec<(&'static str, FillReport)>, MapError> {
    let (pinned, reader) = (Pinned::open(dir)?, Reader { dir });
    let fill = |entries: u64, capacity: u32| FillReport { entries, capacity: capacity.into() };
    let flows4 = reader.count::<FlowKey<V4>, Flow<V4>>(map_name::FLOWS4)?;
    let flows6 = reader.count::<FlowKey<V6>, Flow<V6>>(map_name::FLOWS6)?;
    let sockets4 = reader.count::<SocketKey<V4>, SocketPeer<V4>>(map_name::SOCKETS4)?;
    let sockets6 = reader.count::<SocketKey<V6>, SocketPeer<V6>>(map_name::SOCKETS6)?;
    Ok(vec![
        (map_name::FLOWS4, fill(flows4, pinned.flows4.capacity())),
        (map_name::FLOWS6, fill(flows6, pinned.flows6.capacity())),
        (map_name::SOCKETS4, fill(sockets4, pinned.sockets4.capacity())),
        (map_name::SOCKETS6, fill(sockets6, pinned.sockets6.capacity())),
    ])
}

struct Reader<'a> {
    dir: &'a Path,
}

impl Reader<'_> {
    fn family<const N: usize>(&self, wanted: Wanted, names: [&'static str; 4]) -> Result<FamilyContents<N>, MapError>
    where
        ServiceKey<N>: Pod,
        Backend<N>: Pod,
        FlowKey<N>: Pod,
        Flow<N>: Pod,
        SocketKey<N>: Pod,
        SocketPeer<N>: Pod,
    {
        let [services, backends, flows, sockets] = names;
        let mut family = FamilyContents {
            services: self.all(services)?,
            backends: self.all(backends)?,
            ..FamilyContents::default()
        };
        family.backends.retain(|(_, backend)| backend.state != backend_state::FREE);
        if wanted.flows {
            family.flows = self.all(flows)?;
        }
        if wanted.sockets {
            family.sockets = self.all(sockets)?;
        }
        Ok(family)
    }

    fn count<K: Pod, V: Pod>(&self, map: &'static str) -> Result<u64, MapError> {
        let path = self.dir.join(map);
        batch::count::<K, V>(&path).map_err(|source| MapError::Open { map, path, source })
    }

    fn all<K: Pod, V: Pod>(&self, map: &'static str) -> Result<Vec<(K, V)>, MapError> {
        let path = self.dir.join(map);
        batch::read(&path).map_err(|source| MapError::Open { map, path, source })
    }
}

fn reading(map: &'static str) -> impl Fn(aya::maps::MapError) -> MapError {
    move |source| MapError::Access { map, action: "reading", source }
}
