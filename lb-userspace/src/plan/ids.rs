//! Which ids and slot ranges are in use: pools that forget nothing and hand out the lowest free one.

use std::collections::{BTreeMap, BTreeSet};

/// A run of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    pub base: u32,
    pub count: u32,
}

/// Ids from 1 up to a bound.
#[derive(Clone, Debug)]
pub struct IdPool {
    /// Below `unused`, and not taken.
    free: BTreeSet<u32>,
    /// No id from here on was ever taken.
    unused: u32,
    /// The first id that there is not.
    end: u32,
}

impl IdPool {
    /// Ids 1 to `end` - 1.
    pub fn new(end: u32) -> Self {
        Self { free: BTreeSet::new(), unused: 1, end }
    }

    /// The free ids, the lowest first. Reading takes none.
    pub fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied().chain(self.unused..self.end)
    }

    pub fn take(&mut self, id: u32) {
        if id >= self.unused {
            self.free.extend(self.unused..id);
            self.unused = id + 1;
        } else {
            self.free.remove(&id);
        }
    }

    pub fn give_back(&mut self, id: u32) {
        self.free.insert(id);
    }
}

/// Runs of free slots.
#[derive(Clone, Debug)]
pub struct SlotPool {
    /// First slot → how many. Neighbours are always joined.
    free: BTreeMap<u32, u32>,
}

impl SlotPool {
    pub fn new(capacity: u32) -> Self {
        Self { free: if capacity == 0 { BTreeMap::new() } else { BTreeMap::from([(0, capacity)]) } }
    }

    /// The first free range of this size. Reading takes none.
    pub fn find(&self, count: u32) -> Option<Range> {
        let (base, _) = self.free.iter().find(|(_, free)| **free >= count)?;
        Some(Range { base: *base, count })
    }

    /// Takes a range out. False if some of it is not free; then nothing changes.
    pub fn take(&mut self, range: Range) -> bool {
        let Some((&base, &count)) = self.free.range(..=range.base).next_back() else { return range.count == 0 };
        let (Some(end), free_end) = (range.base.checked_add(range.count), base + count) else { return false };
        if range.count == 0 {
            return true;
        }
        if end > free_end {
            return false;
        }
        self.free.remove(&base);
        if range.base > base {
            self.free.insert(base, range.base - base);
        }
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        true
    }

    /// Gives back a range that was taken.
    pub fn give_back(&mut self, range: Range) {
        if range.count == 0 {
            return;
        }
        let Range { mut base, mut count } = range;
        if let Some((&before, &free)) = self.free.range(..base).next_back()
            && before + free == base
        {
            self.free.remove(&before);
            base = before;
            count += free;
        }
        if let Some(free) = self.free.remove(&(base + count)) {
            count += free;
        }
        self.free.insert(base, count);
    }
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;
