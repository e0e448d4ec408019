//! The pinned maps, typed: what is read and written under `<bpffs>/ballast/`.
//!
//! Opening compares each map's type, key size and value size with the records of [`lb_common::abi`].
//! Minimum kernel: 5.8 (ring buffer); the programs behind the maps need more.

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuHashMap},
};
use lb_common::abi::{
    Backend, Config, Flow, FlowKey, Link, Service, ServiceKey, ServiceName, Slot, SocketKey, SocketPeer, StatKey, V4,
    V6, map_name,
};

/// A pinned hash or LRU hash map.
pub type Hash<K, V> = HashMap<MapData, K, V>;

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
         it was made by another version: use that version's binary, or run `ballast cleanup` and start again",
        path.display()
    )]
    Layout { map: &'static str, path: PathBuf, field: &'static str, expected: String, found: String },
    #[error("map {map}: {action} failed: {source}")]
    Access { map: &'static str, action: &'static str, source: aya::maps::MapError },
}

impl MapError {
    /// True if the map has no room for another element (`E2BIG`, `ENOSPC`).
    pub fn is_full(&self) -> bool {
        match self {
            Self::Access { source: aya::maps::MapError::SyscallError(error), .. } => {
                matches!(error.io_error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC))
            }
            Self::Access { source: aya::maps::MapError::OutOfBounds { .. }, .. } => true,
            _ => false,
        }
    }
}

/// Every map of Ballast but the event ring, opened for reading and writing.
pub struct Pinned {
    pub services4: Hash<ServiceKey<V4>, Service>,
    pub services6: Hash<ServiceKey<V6>, Service>,
    pub slots: Array<MapData, Slot>,
    /// By backend id; id 0 is never used.
    pub backends4: Array<MapData, Backend<V4>>,
    /// By backend id; id 0 is never used.
    pub backends6: Array<MapData, Backend<V6>>,
    pub flows4: Hash<FlowKey<V4>, Flow<V4>>,
    pub flows6: Hash<FlowKey<V6>, Flow<V6>>,
    pub sockets4: Hash<SocketKey<V4>, SocketPeer<V4>>,
    pub sockets6: Hash<SocketKey<V6>, SocketPeer<V6>>,
    /// By service port id.
    pub names: Hash<u32, ServiceName>,
    /// By [`lb_common::outcome::Outcome`] as a number; one counter for each CPU.
    pub outcomes: PerCpuArray<MapData, u64>,
    /// One counter for each CPU.
    pub stats: PerCpuHashMap<MapData, StatKey, u64>,
    /// By interface index.
    pub links: Hash<u32, Link>,
    /// One element.
    pub config: Array<MapData, Config>,
    /// Where the event ring is pinned; see [`Pinned::open_events`].
    pub events: PathBuf,
    /// Capacities, in elements.
    pub capacity: Capacity,
}

/// How many elements the maps hold, as pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub services4: u32,
    pub services6: u32,
    pub slots: u32,
    pub backends4: u32,
    pub backends6: u32,
    pub flows4: u32,
    pub flows6: u32,
    pub sockets4: u32,
    pub sockets6: u32,
    pub names: u32,
    pub stats: u32,
}

impl Pinned {
    /// Opens every map pinned in `dir`, the folder `<bpffs>/ballast`.
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        let capacity = Capacity {
            services4: max_entries(dir, map_name::SERVICES4)?,
            services6: max_entries(dir, map_name::SERVICES6)?,
            slots: max_entries(dir, map_name::SLOTS)?,
            backends4: max_entries(dir, map_name::BACKENDS4)?,
            backends6: max_entries(dir, map_name::BACKENDS6)?,
            flows4: max_entries(dir, map_name::FLOWS4)?,
            flows6: max_entries(dir, map_name::FLOWS6)?,
            sockets4: max_entries(dir, map_name::SOCKETS4)?,
            sockets6: max_entries(dir, map_name::SOCKETS6)?,
            names: max_entries(dir, map_name::NAMES)?,
            stats: max_entries(dir, map_name::STATS)?,
        };
        Ok(Self {
            services4: open(dir, map_name::SERVICES4)?,
            services6: open(dir, map_name::SERVICES6)?,
            slots: open(dir, map_name::SLOTS)?,
            backends4: open(dir, map_name::BACKENDS4)?,
            backends6: open(dir, map_name::BACKENDS6)?,
            flows4: open(dir, map_name::FLOWS4)?,
            flows6: open(dir, map_name::FLOWS6)?,
            sockets4: open(dir, map_name::SOCKETS4)?,
            sockets6: open(dir, map_name::SOCKETS6)?,
            names: open(dir, map_name::NAMES)?,
            outcomes: open(dir, map_name::OUTCOMES)?,
            stats: open(dir, map_name::STATS)?,
            links: open(dir, map_name::LINKS)?,
            config: open(dir, map_name::CONFIG)?,
            events: dir.join(map_name::EVENTS),
            capacity,
        })
    }

    /// Opens the event ring. A ring has one reader: the agent.
    pub fn open_events(&self) -> Result<aya::maps::RingBuf<MapData>, MapError> {
        let dir = self.events.parent().unwrap_or(Path::new("/"));
        open(dir, map_name::EVENTS)
    }
}

/// All elements of a hash map that other writers may change meanwhile.
///
/// Deleting the element that an iteration stands on starts it over, so the number of steps is bounded by twice `capacity`; an
/// element may be missing or be there twice, as in any look at a live table.
pub fn elements<K: Pod, V: Pod>(map: &Hash<K, V>, name: &'static str, capacity: u32) -> Result<Vec<(K, V)>, MapError> {
    let mut found = Vec::new();
    for element in map.iter().take(2 * capacity as usize) {
        found.push(element.map_err(|source| MapError::Access { map: name, action: "reading", source })?);
    }
    Ok(found)
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
