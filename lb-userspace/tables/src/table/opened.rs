//! Opening pinned maps, with the sizes of their keys and values compared.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use aya::maps::MapData;
use aya_obj::generated::bpf_cmd;
use lb_common::map::Map;

use super::{Calls, Element, Table, TableOf, call, present};
use crate::{MapError, pins};

/// A map, whatever it holds.
#[derive(Debug)]
pub struct Opened {
    pub map: MapData,
    pub name: &'static str,
    key_size: usize,
    pub capacity: u32,
    pub calls: Calls,
    /// False once the kernel refused a batch for this map type.
    pub batches: AtomicBool,
}

impl Opened {
    /// Keys and values of the map must have these sizes.
    pub fn of(
        map: MapData,
        path: &Path,
        name: &'static str,
        (key, value): (usize, usize),
        calls: &Calls,
    ) -> Result<Self, MapError> {
        let info = map.info().map_err(|source| MapError::Access { map: name, action: "asking its size", source })?;
        for (field, expected, found) in [("key size", key, info.key_size()), ("value size", value, info.value_size())] {
            if expected != found as usize {
                let (expected, found) = (expected.to_string(), found.to_string());
                return Err(MapError::Layout { map: name, path: path.to_owned(), field, expected, found });
            }
        }
        let (capacity, batches) = (info.max_entries(), AtomicBool::new(true));
        Ok(Self { map, name, key_size: key, capacity, calls: calls.clone(), batches })
    }

    pub fn remove_bytes(&self, key: &[u8]) -> io::Result<()> {
        if key.len() != self.key_size {
            return Ok(());
        }
        let mut element = Element { map: self.descriptor(), key: key.as_ptr() as u64, ..Element::default() };
        present(call(&self.calls, bpf_cmd::BPF_MAP_DELETE_ELEM, &mut element)).map(drop)
    }

    pub fn descriptor(&self) -> u32 {
        self.map.fd().as_fd().as_raw_fd().unsigned_abs()
    }
}

/// Opens the map pinned in `dir`.
pub fn open<M: Map>(dir: &Path, calls: &Calls) -> Result<TableOf<M>, MapError> {
    at_path::<M>(pins::data(dir, M::NAME)?, &dir.join(M::NAME), calls)
}

/// Opens a map that is pinned at this path, with a descriptor that the kernel takes no writes from.
pub fn open_path_read_only<M: Map>(path: &Path) -> Result<TableOf<M>, MapError> {
    at_path::<M>(pins::read_only(path, M::NAME)?, path, &Calls::default())
}

fn at_path<M: Map>(map: MapData, path: &Path, calls: &Calls) -> Result<TableOf<M>, MapError> {
    const { assert!(M::IS_PLAIN, "has no such elements") };
    let sizes = (size_of::<M::Key>(), size_of::<M::Value>());
    Opened::of(map, path, M::NAME, sizes, calls).map(|opened| Table::at(Arc::new(opened)))
}
