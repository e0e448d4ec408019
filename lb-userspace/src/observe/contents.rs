//! The entries of the pinned maps at one moment, as plain vectors.

use std::io;
use std::path::Path;

use lb_common::abi::{
    Backend, Config, ConnectKey, ConnectTimes, Flow, FlowKey, FlowState, HalfOpen, Health, Link, LoadSettings, Service,
    ServiceKey, ServiceName, SocketKey, SocketPeer, StatKey, Traffic, V4, V6, backend_state, flow_flags, map_name,
};
use lb_common::map::{self, Map};
use lb_common::outcome::Outcome;

use super::report::FillReport;
use lb_tables::{MapError, MapSet, Pinned};

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
    /// All flows, the half-open ones included.
    All,
    /// With their packets and bytes.
    WithTraffic,
}

impl Contents {
    /// Reads the maps pinned in `dir`, a set of tables.
    pub fn read(dir: &Path, wanted: Wanted) -> Result<Self, MapError> {
        let pinned = Pinned::open(dir)?;
        let settings = pinned.of::<map::Settings>().get(&0).map_err(failed::<map::Settings>(&pinned))?;
        let mut contents = Self {
            v4: family(&pinned, wanted)?,
            v6: family(&pinned, wanted)?,
            names: all::<map::Names>(&pinned)?,
            links: all::<map::Links>(&pinned)?,
            outcomes: outcomes(&pinned)?,
            config: pinned.first::<map::Config>(),
            adoption_until_s: pinned.first::<map::Adoption>().unwrap_or_default(),
            settings: settings.unwrap_or_default(),
            stats: Vec::new(),
            connect_times: Vec::new(),
        };
        if wanted.stats {
            contents.stats = stats(&pinned)?;
        }
        // Tables of an earlier version have none.
        if wanted.connect_times && pinned.find::<map::ConnectTimes>().is_some() {
            contents.connect_times = all::<map::ConnectTimes>(&pinned)?;
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
    let pinned = Pinned::open(dir)?;
    let mut states = [0; FlowState::ALL.len()];
    let [half_open4, flows4, udp4, sockets4] = count_family::<V4>(&pinned, &mut states)?;
    let [half_open6, flows6, udp6, sockets6] = count_family::<V6>(&pinned, &mut states)?;
    let fill = vec![half_open4, half_open6, flows4, flows6, udp4, udp6, sockets4, sockets6];
    let named = FlowState::ALL.map(FlowState::name).into_iter().zip(states);
    Ok(Counted { fill, states: named.collect() })
}

/// How full the tables of a family are, and the states of its connections. Half-open ones first, as for [`family`].
fn count_family<const N: usize>(
    maps: &MapSet,
    states: &mut [u64; FlowState::ALL.len()],
) -> Result<[Fill; 4], MapError> {
    Ok([
        walk::<map::HalfOpen<N>>(maps, |entry| count_state(&entry.flow, states))?,
        walk::<map::Flows<N>>(maps, |flow| count_state(flow, states))?,
        walk::<map::UdpFlows<N>>(maps, |flow| count_state(flow, states))?,
        walk::<map::Sockets<N>>(maps, |_| ())?,
    ])
}

/// Of the two entries of a connection, counts the one that the client's packets find.
fn count_state<const N: usize>(flow: &Flow<N>, states: &mut [u64; FlowState::ALL.len()]) {
    if flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) == 0
        && let Some(index) = FlowState::ALL.iter().position(|state| state.number() == flow.state)
    {
        states[index] += 1;
    }
}

/// How full a map is, with its name.
type Fill = (&'static str, FillReport);

fn family<const N: usize>(maps: &MapSet, wanted: Wanted) -> Result<FamilyContents<N>, MapError> {
    let mut family = FamilyContents {
        services: all::<map::Services<N>>(maps)?,
        backends: all::<map::Backends<N>>(maps)?,
        ..FamilyContents::default()
    };
    family.backends.retain(|(_, backend)| backend.state != backend_state::FREE);
    if wanted.flows != WantedFlows::None {
        (family.half_open, family.flows) = flows(maps)?;
    }
    if wanted.flows == WantedFlows::WithTraffic {
        family.traffic = all::<map::Traffic<N>>(maps)?;
    }
    if wanted.health {
        let used = family.backends.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
        let health = maps.of::<map::Health<N>>().read_range(0, used);
        family.health = health.map_err(failed::<map::Health<N>>(maps))?;
    }
    if wanted.sockets {
        family.sockets = all::<map::Sockets<N>>(maps)?;
    }
    Ok(family)
}

/// Half-open flow entries, and the others.
pub(super) type Flows<const N: usize> = (Elements<map::HalfOpen<N>>, Elements<map::Flows<N>>);

/// All flow entries of a family.
pub(super) fn flows<const N: usize>(maps: &MapSet) -> Result<Flows<N>, MapError> {
    // Half-open ones first: what is answered meanwhile is seen twice rather than not at all.
    let half_open = all::<map::HalfOpen<N>>(maps)?;
    let mut flows = all::<map::Flows<N>>(maps)?;
    flows.extend(all::<map::UdpFlows<N>>(maps)?);
    Ok((half_open, flows))
}

/// Shows each value to `look`, and counts them. Keeps none of them.
fn walk<M: Map>(maps: &MapSet, mut look: impl FnMut(&M::Value)) -> Result<Fill, MapError> {
    let (table, mut entries) = (maps.of::<M>(), 0);
    let whole = table.each(|_, value| {
        entries += 1;
        look(value);
    });
    whole.map_err(failed::<M>(maps))?;
    Ok((M::NAME, FillReport { entries, capacity: table.capacity().into() }))
}

/// The elements of a map.
pub(super) type Elements<M> = Vec<(<M as Map>::Key, <M as Map>::Value)>;

/// Every element of a map.
pub(super) fn all<M: Map>(maps: &MapSet) -> Result<Elements<M>, MapError> {
    maps.of::<M>().read().map_err(failed::<M>(maps))
}

pub(super) fn failed<M: Map>(maps: &MapSet) -> impl Fn(io::Error) -> MapError {
    let path = maps.dir().join(M::NAME);
    move |source| MapError::Open { map: M::NAME, path: path.clone(), source }
}

pub(super) fn reading(map: &'static str) -> impl Fn(aya::maps::MapError) -> MapError {
    move |source| MapError::Access { map, action: "reading", source }
}
