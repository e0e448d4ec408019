//! The entries of the pinned maps at one moment, as plain vectors.

use std::path::Path;

use aya::Pod;
use lb_common::abi::{
    Backend, Config, ConnectKey, ConnectTimes, Flow, FlowKey, HalfOpen, Health, Link, LoadSettings, Service,
    ServiceKey, ServiceName, SocketKey, SocketPeer, StatKey, Traffic, V4, V6, backend_state, flow_flags, flow_state,
    map_name,
};
use lb_common::outcome::Outcome;

use super::report::FillReport;
use super::{batch, inventory};
use lb_tables::{MapError, Pinned};

/// The tables of one address family.
#[derive(Clone, Debug)]
pub struct FamilyContents<const N: usize> {
    pub services: Vec<(ServiceKey<N>, Service)>,
    /// By id, those in use.
    pub backends: Vec<(u32, Backend<N>)>,
    pub flows: Vec<(FlowKey<N>, Flow<N>)>,
    pub half_open: Vec<(FlowKey<N>, HalfOpen<N>)>,
    /// By backend id, at least up to the last one in use.
    pub health: Vec<Health>,
    pub traffic: Vec<(FlowKey<N>, Traffic)>,
    pub sockets: Vec<(SocketKey<N>, SocketPeer<N>)>,
}

impl<const N: usize> Default for FamilyContents<N> {
    fn default() -> Self {
        Self {
            services: Vec::new(),
            backends: Vec::new(),
            flows: Vec::new(),
            half_open: Vec::new(),
            health: Vec::new(),
            traffic: Vec::new(),
            sockets: Vec::new(),
        }
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
    /// How long backends took to answer SYNs.
    pub connect_times: Vec<(ConnectKey, ConnectTimes)>,
    /// Sums over all CPUs.
    pub outcomes: Vec<(Outcome, u64)>,
    pub links: Vec<(u32, Link)>,
    pub config: Option<Config>,
    /// The second of `CLOCK_MONOTONIC` at which the adoption window ends; 0: there was none.
    pub adoption_until_s: u32,
    /// What the programs were loaded with.
    pub settings: LoadSettings,
}

/// Which of the large tables are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a table of its own")]
pub struct Wanted {
    pub flows: WantedFlows,
    pub health: bool,
    pub sockets: bool,
    pub stats: bool,
    pub connect_times: bool,
}

/// How much of the flows is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedFlows {
    #[default]
    None,
    /// Also the half-open ones.
    All,
    /// With their packets and bytes.
    WithTraffic,
}

/// The maps of a family.
struct FamilyNames {
    services: &'static str,
    backends: &'static str,
    flows: &'static str,
    udp_flows: &'static str,
    half_open: &'static str,
    health: &'static str,
    traffic: &'static str,
    sockets: &'static str,
}

const NAMES4: FamilyNames = FamilyNames {
    services: map_name::SERVICES4,
    backends: map_name::BACKENDS4,
    flows: map_name::FLOWS4,
    udp_flows: map_name::UDP_FLOWS4,
    half_open: map_name::HALF_OPEN4,
    health: map_name::HEALTH4,
    traffic: map_name::TRAFFIC4,
    sockets: map_name::SOCKETS4,
};
const NAMES6: FamilyNames = FamilyNames {
    services: map_name::SERVICES6,
    backends: map_name::BACKENDS6,
    flows: map_name::FLOWS6,
    udp_flows: map_name::UDP_FLOWS6,
    half_open: map_name::HALF_OPEN6,
    health: map_name::HEALTH6,
    traffic: map_name::TRAFFIC6,
    sockets: map_name::SOCKETS6,
};

impl Contents {
    /// Reads the maps pinned in `dir`, a set of tables.
    pub fn read(dir: &Path, wanted: Wanted) -> Result<Self, MapError> {
        let pinned = Pinned::open(dir)?;
        let reader = Reader { dir };
        let mut contents = Self {
            v4: reader.family(wanted, &NAMES4)?,
            v6: reader.family(wanted, &NAMES6)?,
            names: reader.all(map_name::NAMES)?,
            links: reader.all(map_name::LINKS)?,
            outcomes: outcomes(&pinned)?,
            config: pinned.config.get(&0, 0).ok(),
            adoption_until_s: pinned.adoption.as_ref().and_then(|map| map.get(&0, 0).ok()).unwrap_or_default(),
            settings: pinned.settings.get(&0, 0).map_err(reading(map_name::SETTINGS))?,
            stats: Vec::new(),
            connect_times: Vec::new(),
        };
        if wanted.stats {
            contents.stats = stats(&pinned)?;
        }
        // Tables of an earlier version have none.
        if wanted.connect_times && pinned.connect_times.is_some() {
            contents.connect_times = reader.all(map_name::CONNECT_TIMES)?;
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

/// What the tables of the programs hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Entries by map.
    pub fill: Vec<(&'static str, FillReport)>,
    /// Connections by the name of their state.
    pub states: Vec<(&'static str, u64)>,
}

/// Counts flows, half-open ones, and sockets. Walks their tables, by batches.
pub fn count_flows(dir: &Path) -> Result<Counted, MapError> {
    let (pinned, reader) = (Pinned::open(dir)?, Reader { dir });
    let mut states = [0; STATES.len()];
    let half_open4 = reader
        .walk::<FlowKey<V4>, _>(map_name::HALF_OPEN4, |entry: &HalfOpen<V4>| count_state(&entry.flow, &mut states))?;
    let half_open6 = reader
        .walk::<FlowKey<V6>, _>(map_name::HALF_OPEN6, |entry: &HalfOpen<V6>| count_state(&entry.flow, &mut states))?;
    let flows4 = reader.walk::<FlowKey<V4>, _>(map_name::FLOWS4, |flow: &Flow<V4>| count_state(flow, &mut states))?;
    let flows6 = reader.walk::<FlowKey<V6>, _>(map_name::FLOWS6, |flow: &Flow<V6>| count_state(flow, &mut states))?;
    let udp4 = reader.walk::<FlowKey<V4>, _>(map_name::UDP_FLOWS4, |flow: &Flow<V4>| count_state(flow, &mut states))?;
    let udp6 = reader.walk::<FlowKey<V6>, _>(map_name::UDP_FLOWS6, |flow: &Flow<V6>| count_state(flow, &mut states))?;
    let sockets4 = reader.count::<SocketKey<V4>, SocketPeer<V4>>(map_name::SOCKETS4)?;
    let sockets6 = reader.count::<SocketKey<V6>, SocketPeer<V6>>(map_name::SOCKETS6)?;
    let fill = |entries: u64, capacity: u32| FillReport { entries, capacity: capacity.into() };
    let fill = vec![
        (map_name::HALF_OPEN4, fill(half_open4, pinned.half_open4.capacity())),
        (map_name::HALF_OPEN6, fill(half_open6, pinned.half_open6.capacity())),
        (map_name::FLOWS4, fill(flows4, pinned.flows4.capacity())),
        (map_name::FLOWS6, fill(flows6, pinned.flows6.capacity())),
        (map_name::UDP_FLOWS4, fill(udp4, pinned.udp_flows4.capacity())),
        (map_name::UDP_FLOWS6, fill(udp6, pinned.udp_flows6.capacity())),
        (map_name::SOCKETS4, fill(sockets4, pinned.sockets4.capacity())),
        (map_name::SOCKETS6, fill(sockets6, pinned.sockets6.capacity())),
    ];
    let named = STATES.into_iter().map(inventory::flow_state_name).zip(states);
    Ok(Counted { fill, states: named.collect() })
}

const STATES: [u8; 7] = [
    flow_state::HALF_OPEN,
    flow_state::OPEN,
    flow_state::STREAM,
    flow_state::CLOSING,
    flow_state::EVICTED,
    flow_state::ADOPTED,
    flow_state::HELD,
];

/// Of the two entries of a connection, counts the one that the client's packets find.
fn count_state<const N: usize>(flow: &Flow<N>, states: &mut [u64; STATES.len()]) {
    if flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) == 0
        && let Some(index) = STATES.iter().position(|state| *state == flow.state)
    {
        states[index] += 1;
    }
}

struct Reader<'a> {
    dir: &'a Path,
}

impl Reader<'_> {
    fn family<const N: usize>(&self, wanted: Wanted, names: &FamilyNames) -> Result<FamilyContents<N>, MapError>
    where
        ServiceKey<N>: Pod,
        Backend<N>: Pod,
        FlowKey<N>: Pod,
        Flow<N>: Pod,
        HalfOpen<N>: Pod,
        SocketKey<N>: Pod,
        SocketPeer<N>: Pod,
    {
        let mut family = FamilyContents {
            services: self.all(names.services)?,
            backends: self.all(names.backends)?,
            ..FamilyContents::default()
        };
        family.backends.retain(|(_, backend)| backend.state != backend_state::FREE);
        if wanted.flows != WantedFlows::None {
            // Half-open ones first: what is answered meanwhile is seen twice rather than not at all.
            family.half_open = self.all(names.half_open)?;
            family.flows = self.all(names.flows)?;
            family.flows.extend(self.all(names.udp_flows)?);
        }
        if wanted.flows == WantedFlows::WithTraffic {
            family.traffic = self.all(names.traffic)?;
        }
        if wanted.health {
            let used = family.backends.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
            family.health = self.first(names.health, used)?;
        }
        if wanted.sockets {
            family.sockets = self.all(names.sockets)?;
        }
        Ok(family)
    }

    /// Shows each flow to `look`, and counts them.
    fn walk<K: Pod, V: Pod>(&self, map: &'static str, look: impl FnMut(&V)) -> Result<u64, MapError> {
        let path = self.dir.join(map);
        batch::walk::<K, V>(&path, look).map_err(|source| MapError::Open { map, path, source })
    }

    fn count<K: Pod, V: Pod>(&self, map: &'static str) -> Result<u64, MapError> {
        let path = self.dir.join(map);
        batch::count::<K, V>(&path).map_err(|source| MapError::Open { map, path, source })
    }

    /// The first elements of an array.
    fn first<V: Pod>(&self, map: &'static str, elements: u32) -> Result<Vec<V>, MapError> {
        let path = self.dir.join(map);
        batch::read_first(&path, elements).map_err(|source| MapError::Open { map, path, source })
    }

    fn all<K: Pod, V: Pod>(&self, map: &'static str) -> Result<Vec<(K, V)>, MapError> {
        let path = self.dir.join(map);
        batch::read(&path).map_err(|source| MapError::Open { map, path, source })
    }
}

pub(super) fn reading(map: &'static str) -> impl Fn(aya::maps::MapError) -> MapError {
    move |source| MapError::Access { map, action: "reading", source }
}
