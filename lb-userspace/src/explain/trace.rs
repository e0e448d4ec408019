//! What a decision reads, in order.

use aya::Pod;
use lb_common::map::{Map, MapId};

use lb_tables::{bytes_of, from_bytes};

/// One access to the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// An element was looked for: its key, and what it held. `None`: it was not there.
    Read(MapId, Vec<u8>, Option<Vec<u8>>),
    /// A random number was drawn.
    Random,
}

/// The accesses of one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(Vec<Access>);

impl Trace {
    pub(super) fn random(&mut self) {
        self.0.push(Access::Random);
    }

    pub(super) fn read<K: Pod, V: Pod>(&mut self, map: MapId, key: &K, found: Option<&V>) {
        self.0.push(Access::Read(map, bytes_of(key).to_vec(), found.map(|value| bytes_of(value).to_vec())));
    }

    /// The elements of a map that were there, with their keys.
    pub fn found<M: Map>(&self) -> impl Iterator<Item = (M::Key, M::Value)> {
        self.0.iter().filter_map(|access| match access {
            Access::Read(map, key, Some(value)) if *map == M::ID => Some((from_bytes(key)?, from_bytes(value)?)),
            Access::Read(..) | Access::Random => None,
        })
    }

    /// How many elements of a map were looked for.
    pub fn reads<M: Map>(&self) -> usize {
        self.0.iter().filter(|access| is_of::<M>(access)).count()
    }

    /// Whether a random number decided over the element of a map that was looked for last.
    pub fn is_by_chance<M: Map>(&self) -> bool {
        let last = self.0.iter().rposition(is_of::<M>);
        let first = self.0.iter().position(|access| *access == Access::Random);
        first.zip(last).is_some_and(|(random, read)| random < read)
    }
}

fn is_of<M: Map>(access: &Access) -> bool {
    matches!(access, Access::Read(map, ..) if *map == M::ID)
}
