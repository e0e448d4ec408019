//! Which ids and slot ranges are in use: pools of free runs that forget nothing.

use std::collections::{BTreeMap, BTreeSet};

/// A run of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    pub base: u32,
    pub count: u32,
}

impl Range {
    /// The first number behind it.
    pub fn end(self) -> u32 {
        self.base.saturating_add(self.count)
    }
}

/// Ids from 1 up to a bound, the lowest free one first.
#[derive(Clone, Debug)]
pub struct IdPool {
    free: Runs,
    /// The first id that there is not.
    end: u32,
}

impl IdPool {
    /// Ids 1 to `end` - 1.
    pub fn new(end: u32) -> Self {
        Self { free: Runs::new(Range { base: 1, count: end.saturating_sub(1) }), end }
    }

    /// The free ids, the lowest first. Reading takes none.
    pub fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.by_base.iter().flat_map(|(base, count)| *base..*base + *count)
    }

    /// One that is taken already, or out of bounds, changes nothing.
    pub fn take(&mut self, id: u32) {
        self.free.take(Range { base: id, count: 1 });
    }

    pub fn give_back(&mut self, id: u32) {
        if (1..self.end).contains(&id) {
            self.free.give_back(Range { base: id, count: 1 });
        }
    }
}

/// Runs of free slots.
#[derive(Clone, Debug)]
pub struct SlotPool {
    free: Runs,
}

impl SlotPool {
    pub fn new(capacity: u32) -> Self {
        Self { free: Runs::new(Range { base: 0, count: capacity }) }
    }

    /// A free range of this size beside those in `promised`, from the smallest run that holds it: large runs stay whole.
    /// Reading takes none; what was found before for the same change is promised.
    pub fn find(&self, count: u32, promised: &[Range]) -> Option<Range> {
        let runs = self.free.by_count.range((count, 0)..);
        runs.into_iter().find_map(|(free, base)| {
            let run = Range { base: *base, count: *free };
            // Ranges are found at the front of a run, so what is promised of it ends at one place.
            let inside = promised.iter().filter(|range| range.base >= run.base && range.end() <= run.end());
            let base = inside.map(|range| range.end()).max().unwrap_or(run.base);
            (run.end() - base >= count).then_some(Range { base, count })
        })
    }

    /// Takes a range out. False if some of it is not free; then nothing changes.
    pub fn take(&mut self, range: Range) -> bool {
        self.free.take(range)
    }

    /// Gives back a range that was taken.
    pub fn give_back(&mut self, range: Range) {
        self.free.give_back(range);
    }
}

/// Free runs; neighbours are always joined.
#[derive(Clone, Debug, Default)]
struct Runs {
    by_base: BTreeMap<u32, u32>,
    /// The runs as (count, base).
    by_count: BTreeSet<(u32, u32)>,
}

impl Runs {
    fn new(all: Range) -> Self {
        let mut runs = Self::default();
        runs.insert(all.base, all.count);
        runs
    }

    fn insert(&mut self, base: u32, count: u32) {
        if count > 0 {
            self.by_base.insert(base, count);
            self.by_count.insert((count, base));
        }
    }

    fn remove(&mut self, base: u32) -> Option<u32> {
        let count = self.by_base.remove(&base)?;
        self.by_count.remove(&(count, base));
        Some(count)
    }

    fn take(&mut self, range: Range) -> bool {
        if range.count == 0 {
            return true;
        }
        let Some((&base, &count)) = self.by_base.range(..=range.base).next_back() else { return false };
        let (Some(end), free_end) = (range.base.checked_add(range.count), base + count) else { return false };
        if end > free_end {
            return false;
        }
        self.remove(base);
        self.insert(base, range.base - base);
        self.insert(end, free_end - end);
        true
    }

    fn give_back(&mut self, range: Range) {
        if range.count == 0 {
            return;
        }
        let Range { mut base, mut count } = range;
        if let Some((&before, &free)) = self.by_base.range(..base).next_back()
            && before + free == base
        {
            self.remove(before);
            base = before;
            count += free;
        }
        if let Some(free) = self.remove(base + count) {
            count += free;
        }
        self.insert(base, count);
    }
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;
