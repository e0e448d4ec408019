//! The pinned maps, typed: what is read and written under `<bpffs>/ballast/`.
//!
//! Opening compares each map's type, key size and value size with the records of [`lb_common::abi`].
//! Minimum kernel: 5.8 (ring buffer); the programs behind the maps need more.

mod client_shares;
mod connections;
pub mod pause;
mod raw;
mod read_only;
mod table;
pub mod vip_filter;

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuHashMap, lpm_trie::Key};
use lb_common::abi::{
    Affinity, AffinityKey, Backend, Config, ConnectKey, ConnectTimes, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen,
    Health, Link, LoadSettings, Service, ServiceKey, ServiceName, Slot, SocketKey, SocketPeer, Source, SourceKey,
    StatKey, Traffic, V4, V6, Vip, VipKey, map_name,
};

pub use client_shares::ClientShares;
pub use connections::Connections;
pub use raw::{Condition, Elements, RawCursor, RawTable};
pub use table::{Calls, Cursor, Table};
pub use vip_filter::{VipFilter, VipFilterReader};

/// Why a pinned map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error(
        "map {map} is not pinned at {}: no agent has run with this --bpffs; start `ballast agent`, or give its --bpffs",
        path.display()
    )]
    Missing { map: &'static str, path: PathBuf },
    #[error("map {map} at {} cannot be opened: {source}; run as root, or with CAP_BPF and CAP_NET_ADMIN", path.display())]
    Open { map: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "map {map} at {} has another layout: {field} expected {expected}, found {found}; \
         it was made by another version: use that version's binary, or start this version's agent, which takes it over",
        path.display()
    )]
    Layout { map: &'static str, path: PathBuf, field: &'static str, expected: String, found: String },
    #[error("map {map}: {action} failed: {source}")]
    Access { map: &'static str, action: &'static str, source: aya::maps::MapError },
}

/// Every map of Ballast but the event ring, opened for reading and writing.
pub struct Pinned {
    pub services4: Table<ServiceKey<V4>, Service>,
    pub services6: Table<ServiceKey<V6>, Service>,
    pub slots: Table<u32, Slot>,
    /// By backend id; id 0 is never used.
    pub backends4: Table<u32, Backend<V4>>,
    /// By backend id; id 0 is never used.
    pub backends6: Table<u32, Backend<V6>>,
    pub flows4: Table<FlowKey<V4>, Flow<V4>>,
    pub flows6: Table<FlowKey<V6>, Flow<V6>>,
    /// Answered UDP flows.
    pub udp_flows4: Table<FlowKey<V4>, Flow<V4>>,
    /// Answered UDP flows.
    pub udp_flows6: Table<FlowKey<V6>, Flow<V6>>,
    pub sockets4: Table<SocketKey<V4>, SocketPeer<V4>>,
    pub sockets6: Table<SocketKey<V6>, SocketPeer<V6>>,
    /// By service port id.
    pub names: Table<u32, ServiceName>,
    pub sources4: Table<Key<SourceKey<V4>>, Source>,
    pub sources6: Table<Key<SourceKey<V6>>, Source>,
    pub endpoints4: Table<EndpointKey<V4>, Endpoint>,
    pub endpoints6: Table<EndpointKey<V6>, Endpoint>,
    pub vips4: Table<VipKey<V4>, Vip>,
    pub vips6: Table<VipKey<V6>, Vip>,
    /// `None`: the tables are of a version without it.
    pub vip_filter: Option<VipFilter>,
    pub half_open4: Table<FlowKey<V4>, HalfOpen<V4>>,
    pub half_open6: Table<FlowKey<V6>, HalfOpen<V6>>,
    /// By backend id.
    pub health4: Table<u32, Health>,
    /// By backend id.
    pub health6: Table<u32, Health>,
    /// How many connections each client has.
    pub client_shares: ClientShares,
    pub affinity4: Table<AffinityKey<V4>, Affinity>,
    pub affinity6: Table<AffinityKey<V6>, Affinity>,
    /// Holds something with `--flow-counters` only.
    pub traffic4: Table<FlowKey<V4>, Traffic>,
    /// Holds something with `--flow-counters` only.
    pub traffic6: Table<FlowKey<V6>, Traffic>,
    /// By [`lb_common::outcome::Outcome`] as a number; one counter for each CPU.
    pub outcomes: PerCpuArray<MapData, u64>,
    /// One counter for each CPU.
    pub stats: PerCpuHashMap<MapData, StatKey, u64>,
    /// Capacity of [`Self::stats`], in elements.
    pub stats_capacity: u32,
    /// Holds something with `--connect-times on` only. `None`: the tables are of a version without it.
    pub connect_times: Option<Table<ConnectKey, ConnectTimes>>,
    /// By interface index.
    pub links: HashMap<MapData, u32, Link>,
    /// One element.
    pub config: Array<MapData, Config>,
    /// One element.
    pub settings: Array<MapData, LoadSettings>,
    /// One element: the second of `CLOCK_MONOTONIC` at which the adoption window ends. `None`: the tables are of a version without it.
    pub adoption: Option<Array<MapData, u32>>,
    /// Where the event ring is pinned; see [`Pinned::open_events`].
    pub events: PathBuf,
    /// System calls of the [`Table`]s so far.
    pub calls: Calls,
}

impl Pinned {
    /// Opens every map pinned in `dir`, a set of tables (`<bpffs>/ballast/tables` is the one in force).
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        let calls = Calls::default();
        Ok(Self {
            services4: Table::open(dir, map_name::SERVICES4, &calls)?,
            services6: Table::open(dir, map_name::SERVICES6, &calls)?,
            slots: Table::open(dir, map_name::SLOTS, &calls)?,
            backends4: Table::open(dir, map_name::BACKENDS4, &calls)?,
            backends6: Table::open(dir, map_name::BACKENDS6, &calls)?,
            flows4: Table::open(dir, map_name::FLOWS4, &calls)?,
            flows6: Table::open(dir, map_name::FLOWS6, &calls)?,
            udp_flows4: Table::open(dir, map_name::UDP_FLOWS4, &calls)?,
            udp_flows6: Table::open(dir, map_name::UDP_FLOWS6, &calls)?,
            sockets4: Table::open(dir, map_name::SOCKETS4, &calls)?,
            sockets6: Table::open(dir, map_name::SOCKETS6, &calls)?,
            names: Table::open(dir, map_name::NAMES, &calls)?,
            sources4: Table::open(dir, map_name::SOURCES4, &calls)?,
            sources6: Table::open(dir, map_name::SOURCES6, &calls)?,
            endpoints4: Table::open(dir, map_name::ENDPOINTS4, &calls)?,
            endpoints6: Table::open(dir, map_name::ENDPOINTS6, &calls)?,
            vips4: Table::open(dir, map_name::VIPS4, &calls)?,
            vips6: Table::open(dir, map_name::VIPS6, &calls)?,
            vip_filter: VipFilter::open(dir)?,
            half_open4: Table::open(dir, map_name::HALF_OPEN4, &calls)?,
            half_open6: Table::open(dir, map_name::HALF_OPEN6, &calls)?,
            health4: Table::open(dir, map_name::HEALTH4, &calls)?,
            health6: Table::open(dir, map_name::HEALTH6, &calls)?,
            client_shares: ClientShares::open(dir)?,
            affinity4: Table::open(dir, map_name::AFFINITY4, &calls)?,
            affinity6: Table::open(dir, map_name::AFFINITY6, &calls)?,
            traffic4: Table::open(dir, map_name::TRAFFIC4, &calls)?,
            traffic6: Table::open(dir, map_name::TRAFFIC6, &calls)?,
            outcomes: open(dir, map_name::OUTCOMES)?,
            stats: open(dir, map_name::STATS)?,
            stats_capacity: max_entries(dir, map_name::STATS)?,
            connect_times: if_there(Table::open(dir, map_name::CONNECT_TIMES, &calls))?,
            links: open(dir, map_name::LINKS)?,
            config: open(dir, map_name::CONFIG)?,
            settings: open(dir, map_name::SETTINGS)?,
            adoption: open_adoption(dir)?,
            events: dir.join(map_name::EVENTS),
            calls,
        })
    }

    /// Opens the event ring. A ring has one reader: the agent.
    pub fn open_events(&self) -> Result<aya::maps::RingBuf<MapData>, MapError> {
        let dir = self.events.parent().unwrap_or(Path::new("/"));
        open(dir, map_name::EVENTS)
    }
}

/// The adoption window. `None`: the tables are of a version without it.
pub fn open_adoption(dir: &Path) -> Result<Option<Array<MapData, u32>>, MapError> {
    if_there(open(dir, map_name::ADOPTION))
}

/// `None`: the tables are of a version without this map.
fn if_there<T>(opened: Result<T, MapError>) -> Result<Option<T>, MapError> {
    match opened {
        Err(MapError::Missing { .. }) => Ok(None),
        found => found.map(Some),
    }
}

fn path_of(dir: &Path, map: &'static str) -> PathBuf {
    dir.join(map)
}

fn data(dir: &Path, map: &'static str) -> Result<MapData, MapError> {
    let path = path_of(dir, map);
    MapData::from_pin(&path).map_err(|error| match error {
        aya::maps::MapError::SyscallError(error) if error.io_error.kind() == io::ErrorKind::NotFound => {
            MapError::Missing { map, path }
        }
        aya::maps::MapError::SyscallError(error) => MapError::Open { map, path, source: error.io_error },
        error => MapError::Open { map, path, source: io::Error::other(error) },
    })
}

fn max_entries(dir: &Path, map: &'static str) -> Result<u32, MapError> {
    let info = data(dir, map)?.info().map_err(|source| MapError::Access { map, action: "asking its size", source })?;
    Ok(info.max_entries())
}

fn open<T: TryFrom<Map, Error = aya::maps::MapError>>(dir: &Path, map: &'static str) -> Result<T, MapError> {
    let opened = data(dir, map)?;
    Map::from_map_data(opened).and_then(T::try_from).map_err(|error| layout_error(dir, map, error))
}

fn layout_error(dir: &Path, map: &'static str, error: aya::maps::MapError) -> MapError {
    use aya::maps::MapError as Aya;
    let path = path_of(dir, map);
    match error {
        Aya::InvalidKeySize { size, expected } => {
            MapError::Layout { map, path, field: "key size", expected: size.to_string(), found: expected.to_string() }
        }
        Aya::InvalidValueSize { size, expected } => {
            MapError::Layout { map, path, field: "value size", expected: size.to_string(), found: expected.to_string() }
        }
        Aya::InvalidMapType { map_type } => MapError::Layout {
            map,
            path,
            field: "map type",
            expected: "the type in the programs".into(),
            found: map_type.to_string(),
        },
        source => MapError::Access { map, action: "opening", source },
    }
}

/// Text as it stands in a record: NUL-terminated, cut to the room that there is.
pub fn to_chars<const L: usize>(text: &str) -> [i8; L] {
    let mut chars = [0; L];
    let mut end = text.len().min(L - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in chars.iter_mut().zip(text.as_bytes()[..end].iter()) {
        *to = from.cast_signed();
    }
    chars
}

/// The text in a record, up to its NUL.
pub fn from_chars(chars: &[i8]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_record() {
        assert_eq!(from_chars(&to_chars::<64>("kube-dns")), "kube-dns");
        assert_eq!(from_chars(&to_chars::<64>("")), "");
    }

    #[test]
    fn text_is_cut_between_characters_and_stays_terminated() {
        let chars = to_chars::<16>("a-port-name-too-long-for-it");
        assert_eq!(from_chars(&chars), "a-port-name-too");
        assert_eq!(chars[15], 0);
        assert_eq!(from_chars(&to_chars::<4>("abé")), "ab");
    }

    #[test]
    fn a_map_that_is_not_there_is_named_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let Err(error) = Pinned::open(dir.path()) else { panic!("opened maps in an empty folder") };
        let text = error.to_string();
        assert!(text.contains("services4") && text.contains(&dir.path().display().to_string()), "{text}");
    }
}
