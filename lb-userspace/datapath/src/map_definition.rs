//! The definition of a map, and whether a pinned map has the one that the programs expect: aya reuses a pin unchecked.

use std::path::Path;

use aya::maps::{MapData, MapInfo, MapType};
use aya_obj::generated::bpf_map_type;
use lb_common::abi::{ABI_VERSION, Config, map_name};

use super::DatapathError;

/// What must be equal before a pinned map is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapDefinition {
    /// Kernel number of the map type.
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
}

impl MapDefinition {
    /// The first field that differs: its name, the expected and the found value.
    pub fn difference(&self, found: &Self) -> Option<(&'static str, String, String)> {
        let number = |field, expected: u32, found: u32| {
            (expected != found).then(|| (field, expected.to_string(), found.to_string()))
        };
        (self.kind != found.kind)
            .then(|| ("type", kind_name(self.kind), kind_name(found.kind)))
            .or_else(|| number("key size", self.key_size, found.key_size))
            .or_else(|| number("value size", self.value_size, found.value_size))
            .or_else(|| number("max_entries", self.max_entries, found.max_entries))
            .or_else(|| number("flags", self.flags, found.flags))
    }
}

/// Refuses a pinned map that is not what the programs expect. A missing pin is fine: the map will be made.
pub(super) fn check_pin(map: &str, path: &Path, expected: &MapDefinition) -> Result<(), DatapathError> {
    let foreign = |source| DatapathError::ForeignPin { path: path.to_owned(), source };
    if !path.exists() {
        return Ok(());
    }
    let info = MapInfo::from_pin(path).map_err(|error| foreign(Box::new(error)))?;
    let kind = info.map_type().map_err(|error| foreign(Box::new(error)))?;
    let found = MapDefinition {
        kind: kind_number(kind),
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
        flags: info.map_flags(),
    };
    match expected.difference(&found) {
        None => Ok(()),
        Some((field, expected, found)) => {
            Err(DatapathError::MapMismatch { map: map.to_owned(), path: path.to_owned(), field, expected, found })
        }
    }
}

/// Whether another map of another size may take the place of this one: `--flow-counters` and `--connect-times` change it, and a version that knows
/// more outcomes.
pub(super) fn is_resizable(map: &str) -> bool {
    lb_common::maps::table(map).is_some_and(|table| table.is_resizable)
}

/// Refuses tables written by a version with other records. Its shape is checked before.
pub(super) fn check_version(path: &Path) -> Result<(), DatapathError> {
    if !path.exists() {
        return Ok(());
    }
    let foreign = |error| DatapathError::ForeignPin { path: path.to_owned(), source: Box::new(error) };
    let map = aya::maps::Map::from_map_data(MapData::from_pin(path).map_err(foreign)?).map_err(foreign)?;
    let config: aya::maps::Array<MapData, Config> = map.try_into().map_err(foreign)?;
    let found = config.get(&0, 0).map_err(foreign)?.abi_version;
    // 0: made by an agent that was killed before it wrote anything.
    if found == ABI_VERSION || found == 0 {
        return Ok(());
    }
    Err(DatapathError::MapMismatch {
        map: map_name::CONFIG.to_owned(),
        path: path.to_owned(),
        field: "abi_version",
        expected: ABI_VERSION.to_string(),
        found: found.to_string(),
    })
}

fn kind_number(kind: MapType) -> u32 {
    // aya gives its variants the kernel's numbers.
    kind as u32
}

fn kind_name(kind: u32) -> String {
    bpf_map_type::try_from(kind).map_or_else(
        |_| format!("type {kind}"),
        |kind| format!("{kind:?}").trim_start_matches("BPF_MAP_TYPE_").to_lowercase(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: MapDefinition =
        MapDefinition { kind: 1, key_size: 8, value_size: 28, max_entries: 65_536, flags: 1 };

    #[test]
    fn equal_shapes_do_not_differ() {
        assert_eq!(EXPECTED.difference(&EXPECTED), None);
    }

    #[test]
    fn each_field_is_named() {
        let cases = [
            (MapDefinition { kind: 9, ..EXPECTED }, ("type", "hash", "lru_hash")),
            (MapDefinition { key_size: 20, ..EXPECTED }, ("key size", "8", "20")),
            (MapDefinition { value_size: 24, ..EXPECTED }, ("value size", "28", "24")),
            (MapDefinition { max_entries: 16, ..EXPECTED }, ("max_entries", "65536", "16")),
            (MapDefinition { flags: 0, ..EXPECTED }, ("flags", "1", "0")),
        ];
        for (found, (field, expected, actual)) in cases {
            assert_eq!(EXPECTED.difference(&found), Some((field, expected.to_owned(), actual.to_owned())));
        }
    }
}
