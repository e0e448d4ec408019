//! One pinned map as plain bytes, whatever its keys and values: for tables of another version, whose records this one does not have.
//!
//! A value of a map with one value for each CPU is all of them, one after the other, each rounded up to eight bytes.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use aya::maps::MapData;
use aya_obj::generated::{BPF_ANY, BPF_EXIST, BPF_NOEXIST, bpf_cmd, bpf_map_type};

use super::table::{BATCH, Batch, Calls, Element, call, is_unsupported, present};

/// When an element is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// None is there under its key.
    New,
    /// One is there under its key.
    There,
}

/// A map of which only the sizes of keys and values are known.
#[derive(Debug)]
pub struct RawTable {
    map: MapData,
    kind: u32,
    key_size: usize,
    /// Of all CPUs.
    value_size: usize,
    capacity: u32,
    calls: Calls,
}

/// Where a reader is.
#[derive(Clone, Debug, Default)]
pub struct RawCursor {
    position: Option<Vec<u8>>,
    /// The kernel has no batches for this map: the position is the latest key.
    single: bool,
    is_done: bool,
}

impl RawCursor {
    /// Whether every element was read.
    pub fn is_done(&self) -> bool {
        self.is_done
    }
}

/// Elements, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    pub keys: Vec<u8>,
    pub values: Vec<u8>,
}

impl RawTable {
    /// Opens a pinned map.
    pub fn open(path: &Path) -> io::Result<Self> {
        let map = MapData::from_pin(path).map_err(io::Error::other)?;
        let info = map.info().map_err(io::Error::other)?;
        let kind = info.map_type().map_err(io::Error::other)? as u32;
        let value = info.value_size() as usize;
        let value_size = if is_per_cpu(kind) { value.next_multiple_of(8) * possible_cpus()? } else { value };
        let (key_size, capacity) = (info.key_size() as usize, info.max_entries());
        Ok(Self { map, kind, key_size, value_size, capacity, calls: Calls::default() })
    }

    pub fn key_size(&self) -> usize {
        self.key_size
    }

    /// Bytes of all values of an element.
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// How many values an element has: one, or one for each CPU.
    pub fn values(&self, value_size: usize) -> usize {
        if is_per_cpu(self.kind) { self.value_size / value_size.next_multiple_of(8).max(1) } else { 1 }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// `None`: not there.
    pub fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read_by(bpf_cmd::BPF_MAP_LOOKUP_ELEM, key)
    }

    /// Takes an element out and returns what it held at that moment. Before Linux 5.14 these are two steps, and what is written between
    /// them is lost.
    pub fn take(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self.read_by(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, key) {
            Err(error) if is_unsupported(&error) => {
                let found = self.get(key)?;
                self.remove(key).map(|was_there| found.filter(|_| was_there))
            }
            other => other,
        }
    }

    fn read_by(&self, command: bpf_cmd, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key, None)?;
        let mut value = vec![0; self.value_size];
        let found = present(self.element(command, key.as_ptr() as u64, value.as_mut_ptr() as u64, 0))?;
        Ok(found.then_some(value))
    }

    /// Writes one element. False if the condition does not hold.
    pub fn put(&self, key: &[u8], value: &[u8], when: Condition) -> io::Result<bool> {
        self.check(key, Some(value))?;
        let (flags, unless) = match when {
            Condition::Always => (BPF_ANY, None),
            Condition::New => (BPF_NOEXIST, Some(libc::EEXIST)),
            Condition::There => (BPF_EXIST, Some(libc::ENOENT)),
        };
        let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
        match self.element(bpf_cmd::BPF_MAP_UPDATE_ELEM, key, value, flags.into()) {
            Ok(()) => Ok(true),
            Err(error) if unless.is_some() && error.raw_os_error() == unless => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes elements over what is there, up to the first failure.
    pub fn put_all(&self, elements: &Elements) -> io::Result<()> {
        let Elements { keys, values } = elements;
        let count = keys.len() / self.key_size.max(1);
        self.check_all(keys, values, count)?;
        if count > 1 {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let (keys, values) = (keys.as_ptr() as u64, values.as_ptr() as u64);
            let mut attributes = Batch { keys, values, count, map: self.descriptor(), ..Batch::default() };
            match call(&self.calls, bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attributes) {
                Err(error) if is_unsupported(&error) => {}
                other => return other,
            }
        }
        for (key, value) in keys.chunks_exact(self.key_size).zip(values.chunks_exact(self.value_size)) {
            self.put(key, value, Condition::Always)?;
        }
        Ok(())
    }

    /// False if it was not there.
    pub fn remove(&self, key: &[u8]) -> io::Result<bool> {
        self.check(key, None)?;
        present(self.element(bpf_cmd::BPF_MAP_DELETE_ELEM, key.as_ptr() as u64, 0, 0))
    }

    /// The next elements, `count` at most, or as many as one bucket of a hash holds. An element that is there from the first part to the last is
    /// read once.
    pub fn read_part(&self, cursor: &mut RawCursor, count: usize) -> io::Result<Elements> {
        let mut count = count.clamp(1, BATCH);
        while !cursor.single {
            match self.read_batch(cursor, count) {
                // A bucket holds more than was asked for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && count < self.capacity as usize => {
                    count *= 2;
                }
                Err(error) if is_unsupported(&error) && cursor.position.is_none() => cursor.single = true,
                other => return other,
            }
        }
        self.read_single(cursor, count)
    }

    fn read_batch(&self, cursor: &mut RawCursor, count: usize) -> io::Result<Elements> {
        let mut elements = Elements { keys: vec![0; count * self.key_size], values: vec![0; count * self.value_size] };
        // A hash's position is the number of a bucket.
        let mut after = vec![0_u8; self.key_size.max(size_of::<u32>())];
        let mut attributes = Batch {
            from: cursor.position.as_ref().map_or(0, |position| position.as_ptr() as u64),
            to: after.as_mut_ptr() as u64,
            keys: elements.keys.as_mut_ptr() as u64,
            values: elements.values.as_mut_ptr() as u64,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            map: self.descriptor(),
            ..Batch::default()
        };
        let more = present(call(&self.calls, bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attributes))?;
        let found = (attributes.count as usize).min(count);
        elements.keys.truncate(found * self.key_size);
        elements.values.truncate(found * self.value_size);
        cursor.position = Some(after);
        cursor.is_done = !more;
        Ok(elements)
    }

    fn read_single(&self, cursor: &mut RawCursor, count: usize) -> io::Result<Elements> {
        let mut elements = Elements::default();
        for _ in 0..count {
            let mut next = vec![0; self.key_size];
            let before = cursor.position.as_ref().map_or(0, |key| key.as_ptr() as u64);
            let command = bpf_cmd::BPF_MAP_GET_NEXT_KEY;
            if !present(self.element(command, before, next.as_mut_ptr() as u64, 0))? {
                cursor.is_done = true;
                break;
            }
            if let Some(value) = self.get(&next)? {
                elements.keys.extend(&next);
                elements.values.extend(value);
            }
            cursor.position = Some(next);
        }
        Ok(elements)
    }

    /// Every element, in parts of a bounded size. False if the table changed faster than it could be read to its end.
    pub fn each_part(&self, mut take: impl FnMut(&Elements) -> io::Result<()>) -> io::Result<bool> {
        let mut cursor = RawCursor::default();
        // Twice its size, as a hash may grow while it is read.
        let mut left = 2 * self.capacity as usize + BATCH;
        // Large values, as those of all CPUs, go in small batches.
        let count = (PART_BYTES / (self.key_size + self.value_size).max(1)).clamp(1, BATCH);
        while !cursor.is_done {
            let elements = self.read_part(&mut cursor, count)?;
            left = left.saturating_sub((elements.keys.len() / self.key_size.max(1)).max(1));
            take(&elements)?;
            if left == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn check(&self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        if key.len() == self.key_size && value.is_none_or(|value| value.len() == self.value_size) {
            return Ok(());
        }
        Err(io::Error::other("a key or value has another size than the map's"))
    }

    fn check_all(&self, keys: &[u8], values: &[u8], count: usize) -> io::Result<()> {
        if keys.len() == count * self.key_size && values.len() == count * self.value_size {
            return Ok(());
        }
        Err(io::Error::other("keys and values are not as many as each other"))
    }

    fn element(&self, command: bpf_cmd, key: u64, value: u64, flags: u64) -> io::Result<()> {
        let map = self.descriptor();
        call(&self.calls, command, &mut Element { map, pad: 0, key, value, flags })
    }

    fn descriptor(&self) -> u32 {
        self.map.fd().as_fd().as_raw_fd().unsigned_abs()
    }
}

/// Keys and values of one part.
const PART_BYTES: usize = 1 << 20;

fn is_per_cpu(kind: u32) -> bool {
    [
        bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY,
        bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH,
        bpf_map_type::BPF_MAP_TYPE_LRU_PERCPU_HASH,
    ]
    .iter()
    .any(|per_cpu| *per_cpu as u32 == kind)
}

fn possible_cpus() -> io::Result<usize> {
    aya::util::nr_cpus().map_err(|(path, error)| io::Error::other(format!("{path}: {error}")))
}
