//! The pinned maps, typed: what is read and written under `<bpffs>/ballast/`.
//!
//! Opening compares each map's type, key size and value size with the records of [`lb_common::abi`].
//! Minimum kernel: 5.8 (ring buffer); the programs behind the maps need more.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod client_shares;
mod connections;
mod error;
pub mod pause;
mod pins;
mod raw;
mod table;
pub mod vip_filter;

use std::{
    collections::BTreeMap,
    io,
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
};

use aya::Pod;
use aya::maps::{Map as AyaMap, MapData, PerCpuArray, PerCpuHashMap};
use lb_common::{
    abi::{StatKey, map_name},
    map::{Map, MapId},
    maps::TABLES,
};

pub use client_shares::ClientShares;
pub use connections::Connections;
pub use error::MapError;
pub use raw::{Condition, Elements, RawCursor, RawTable};
pub use table::{Calls, Cursor, Table, TableOf, open as open_table, open_path_read_only};
pub use vip_filter::{VipFilter, VipFilterReader};

/// The maps of a set of tables that are plain, opened: by their types ([`lb_common::map`]).
#[derive(Debug)]
pub struct MapSet {
    dir: PathBuf,
    opened: BTreeMap<MapId, Arc<table::Opened>>,
    /// System calls of the [`Table`]s so far.
    pub calls: Calls,
}

impl MapSet {
    fn open(dir: &Path, open: impl Fn(&Path, &'static str) -> Result<MapData, MapError>) -> Result<Self, MapError> {
        let (calls, mut opened) = (Calls::default(), BTreeMap::new());
        for table in TABLES.iter().filter(|table| table.is_plain) {
            let map = match open(dir, table.name) {
                Err(MapError::Missing { .. }) if table.is_younger => continue,
                map => map?,
            };
            let map = table::Opened::of(map, &dir.join(table.name), table.name, table.sizes, &calls)?;
            opened.insert(table.id, Arc::new(map));
        }
        Ok(Self { dir: dir.to_owned(), opened, calls })
    }

    /// Opens every map pinned in `dir` with descriptors that the kernel takes no writes from.
    pub fn open_read_only(dir: &Path) -> Result<Self, MapError> {
        Self::open(dir, |dir, name| pins::read_only(&dir.join(name), name))
    }

    /// The folder that they are pinned in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The table of a map that every set has.
    pub fn of<M: Map>(&self) -> TableOf<M> {
        self.find::<M>().expect("a map of every version, which was opened")
    }

    /// `None`: the tables are of a version without it.
    pub fn find<M: Map>(&self) -> Option<TableOf<M>> {
        const { assert!(M::IS_PLAIN, "has no such elements") };
        self.opened.get(&M::ID).map(|opened| Table::at(opened.clone()))
    }

    /// How many elements the map has room for; 0: there is no such map.
    pub fn capacity(&self, map: MapId) -> u32 {
        self.opened.get(&map).map_or(0, |opened| opened.capacity)
    }

    /// Takes an element out by a key that may make no sense. One of another size is nowhere.
    pub fn remove_bytes(&self, map: MapId, key: &[u8]) -> io::Result<()> {
        self.opened.get(&map).map_or(Ok(()), |opened| opened.remove_bytes(key))
    }

    /// Adds a map that is pinned elsewhere.
    pub fn add<M: Map>(&mut self, table: &TableOf<M>) {
        self.opened.insert(M::ID, table.opened());
    }

    /// The one element of a map. `None`: there is no such map, or it cannot be read.
    pub fn first<M: Map<Key = u32>>(&self) -> Option<M::Value> {
        self.find::<M>()?.get(&0).ok()?
    }
}

/// Every map of Ballast but the event ring, opened for reading and writing.
pub struct Pinned {
    maps: MapSet,
    /// `None`: the tables are of a version without it.
    pub vip_filter: Option<VipFilter>,
    /// How many connections each client has.
    pub client_shares: ClientShares,
    /// By [`lb_common::outcome::Outcome`] as a number; one counter for each CPU.
    pub outcomes: PerCpuArray<MapData, u64>,
    /// One counter for each CPU.
    pub stats: PerCpuHashMap<MapData, StatKey, u64>,
    /// Capacity of [`Self::stats`], in elements.
    pub stats_capacity: u32,
}

impl Pinned {
    /// Opens every map pinned in `dir`, a set of tables (`<bpffs>/ballast/tables` is the one in force).
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        Ok(Self {
            maps: MapSet::open(dir, pins::data)?,
            vip_filter: VipFilter::open(dir)?,
            client_shares: ClientShares::open(dir)?,
            outcomes: open(dir, map_name::OUTCOMES)?,
            stats: open(dir, map_name::STATS)?,
            stats_capacity: max_entries(dir, map_name::STATS)?,
        })
    }

    /// Opens the event ring. A ring has one reader: the agent.
    pub fn open_events(&self) -> Result<aya::maps::RingBuf<MapData>, MapError> {
        open(self.dir(), map_name::EVENTS)
    }
}

impl Deref for Pinned {
    type Target = MapSet;

    fn deref(&self) -> &MapSet {
        &self.maps
    }
}

/// `None`: the tables are of a version without this map.
pub fn if_there<T>(opened: Result<T, MapError>) -> Result<Option<T>, MapError> {
    match opened {
        Err(MapError::Missing { .. }) => Ok(None),
        found => found.map(Some),
    }
}

fn path_of(dir: &Path, map: &'static str) -> PathBuf {
    dir.join(map)
}

fn max_entries(dir: &Path, map: &'static str) -> Result<u32, MapError> {
    let info =
        pins::data(dir, map)?.info().map_err(|source| MapError::Access { map, action: "asking its size", source })?;
    Ok(info.max_entries())
}

fn open<T: TryFrom<AyaMap, Error = aya::maps::MapError>>(dir: &Path, map: &'static str) -> Result<T, MapError> {
    let opened = pins::data(dir, map)?;
    AyaMap::from_map_data(opened).and_then(T::try_from).map_err(|error| layout_error(dir, map, error))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "errors of the library")]
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

/// A record as plain bytes.
pub fn bytes_of<T: Pod>(record: &T) -> &[u8] {
    // SAFETY: a `Pod` is plain bytes without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<T>()) }
}

/// A record of plain bytes. `None`: they are not as many as it has.
pub fn from_bytes<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as the record has, every pattern of which is a valid `Pod`.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
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
        assert!(text.contains("no agent has run"), "{text}");
        // Tables of a version without this map.
        std::fs::write(dir.path().join(map_name::CONFIG), "").unwrap();
        for opened in [Pinned::open(dir.path()).map(drop), MapSet::open_read_only(dir.path()).map(drop)] {
            let text = opened.unwrap_err().to_string();
            assert!(text.contains("services4") && text.contains("another version"), "{text}");
        }
    }
}
