//! A table read in parts, each a bounded call, with anything else done between them; and elements taken out.

use std::io;

use aya::Pod;
use aya_obj::generated::{BPF_EXIST, BPF_NOEXIST, bpf_cmd};

use super::{Element, Position, Table, address, is_unsupported};

/// Where a reader is. An element that is there from the first part to the last is read once; one that comes or goes meanwhile may
/// be missed.
#[derive(Clone)]
pub struct Cursor<K> {
    position: Position<K>,
    is_done: bool,
}

impl<K> Cursor<K> {
    pub fn is_done(&self) -> bool {
        self.is_done
    }
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// At the start.
    pub fn cursor(&self) -> Cursor<K> {
        Cursor { position: Position::start(), is_done: false }
    }

    /// The next elements, `count` at most, or as many as one bucket of the hash holds. Needs batches: Linux 5.6.
    pub fn read_part(&self, cursor: &mut Cursor<K>, count: usize) -> io::Result<(Vec<K>, Vec<V>)> {
        let mut count = count.max(1);
        loop {
            match self.read_batch(&mut cursor.position, count) {
                Ok((keys, values, more)) => {
                    cursor.is_done = !more;
                    return Ok((keys, values));
                }
                // A bucket holds more than was asked for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && count < self.capacity() as usize => {
                    count *= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes an element out and returns what it held at that moment. Before Linux 5.14 these are two steps, and what is written between
    /// them is lost.
    pub fn take(&self, key: &K) -> io::Result<Option<V>> {
        match self.read_by(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, key) {
            Err(error) if is_unsupported(&error) => {
                let found = self.get(key)?;
                self.remove(key).map(|was_there| found.filter(|_| was_there))
            }
            other => other,
        }
    }

    /// Writes an element unless one is there. False if one is.
    pub fn put_new(&self, key: &K, value: &V) -> io::Result<bool> {
        self.put_if(key, value, BPF_NOEXIST, libc::EEXIST)
    }

    /// Writes over an element. False if none is there.
    pub fn replace(&self, key: &K, value: &V) -> io::Result<bool> {
        self.put_if(key, value, BPF_EXIST, libc::ENOENT)
    }

    fn put_if(&self, key: &K, value: &V, condition: u32, unless: i32) -> io::Result<bool> {
        let (map, key, value, flags) = (self.descriptor(), address(key), address(value), condition.into());
        match self.call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut Element { map, pad: 0, key, value, flags }) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(unless) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
