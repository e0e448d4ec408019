//! Programmed slot ranges. A range without a frontend pauses before it is free.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi;

use crate::plan::{Range, ids::SlotPool, restore::ranges_of};
use lb_model::Monotonic;

/// Slot ranges as written, each by its first slot.
#[derive(Clone, Debug)]
pub struct SlotRanges {
    /// Unused ones included.
    ranges: BTreeMap<u32, Vec<abi::Slot>>,
    /// Those that no frontend leads to any more, by when they may be written again.
    unused: BTreeSet<(Monotonic, u32)>,
    /// When unused ranges may be written again, by first slot.
    reusable_at: BTreeMap<u32, Monotonic>,
    /// How many frontends lead to each range.
    users: BTreeMap<u32, u32>,
    /// Count and first slot of each range that frontends lead to.
    sizes: BTreeSet<(u32, u32)>,
    /// The last generation of slots.
    generation: u32,
    pool: SlotPool,
}

impl SlotRanges {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            ranges: BTreeMap::new(),
            unused: BTreeSet::new(),
            reusable_at: BTreeMap::new(),
            users: BTreeMap::new(),
            sizes: BTreeSet::new(),
            generation: 0,
            pool: SlotPool::new(capacity),
        }
    }

    /// What the range with this first slot holds.
    pub fn get(&self, base: u32) -> Option<&Vec<abi::Slot>> {
        self.ranges.get(&base)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Slots of all ranges.
    pub fn count(&self) -> usize {
        self.ranges.values().map(Vec::len).sum()
    }

    /// The last generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// First slots of ranges that no frontend leads to any more, by when they may be written again.
    pub fn unused(&self) -> &BTreeSet<(Monotonic, u32)> {
        &self.unused
    }

    /// Whether no frontend leads to the range any more.
    pub fn is_unused(&self, base: u32) -> bool {
        self.reusable_at.contains_key(&base)
    }

    /// The ranges that frontends lead to, with what they hold.
    pub fn live(&self, from: u32) -> impl Iterator<Item = (u32, &Vec<abi::Slot>)> + '_ {
        self.users.range(from..).map(|(base, _)| base).filter_map(|base| Some((*base, self.ranges.get(base)?)))
    }

    /// A free range of this size beside those that are promised already.
    ///
    /// As many slots in one piece stay free as the largest range in use has, or this one. So a service that needs no more slots than it has can
    /// always be written anew (`is_kept`), and gives back its old ones once its readers are through.
    pub(in crate::plan) fn find_free(&self, count: u32, promised: &[Range], is_kept: bool) -> Option<Range> {
        let found = self.pool.find(count, promised)?;
        let largest = self.sizes.last().map_or(0, |(largest, _)| *largest).max(count);
        let all: Vec<Range> = promised.iter().copied().chain([found]).collect();
        (is_kept || self.pool.find(largest, &all).is_some()).then_some(found)
    }

    /// A range that the tables held already. One that overlaps another stays out.
    pub(super) fn restore(&mut self, base: u32, slots: Vec<abi::Slot>) {
        if self.pool.take(range_of(base, &slots)) {
            self.note_generation(slots.first().map_or(0, |slot| slot.generation));
            self.ranges.insert(base, slots);
        }
    }

    /// No other change gets the slots.
    pub(super) fn set_aside(&mut self, base: u32, slots: &[abi::Slot]) {
        self.pool.take(range_of(base, slots));
        self.generation = slots.first().map_or(self.generation, |slot| slot.generation);
    }

    /// The slots were set aside and not written.
    pub(super) fn give_back(&mut self, base: u32, slots: &[abi::Slot]) {
        self.pool.give_back(range_of(base, slots));
    }

    pub(super) fn note_generation(&mut self, generation: u32) {
        self.generation = self.generation.max(generation);
    }

    /// Slots that were set aside are written. The range is unused until a frontend leads to it, in case that the write of the frontend fails.
    pub(super) fn put(&mut self, base: u32, slots: Vec<abi::Slot>, reusable_at: Monotonic) {
        self.ranges.insert(base, slots);
        self.mark_unused(base, reusable_at);
    }

    /// A frontend with this entry leads to its ranges from here on.
    pub(super) fn add_user(&mut self, entry: &abi::Service) {
        self.note_generation(entry.generation);
        for base in bases(entry) {
            *self.users.entry(base).or_default() += 1;
            if let Some(slots) = self.ranges.get(&base) {
                self.sizes.insert((count_of(slots), base));
            }
            self.mark_used(base);
        }
    }

    /// The frontend with this entry is no more.
    pub(super) fn remove_user(&mut self, entry: &abi::Service, reusable_at: Monotonic) {
        for base in bases(entry) {
            let users = self.users.entry(base).or_default();
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.users.remove(&base);
                if let Some(slots) = self.ranges.get(&base) {
                    self.sizes.remove(&(count_of(slots), base));
                    self.mark_unused(base, reusable_at);
                }
            }
        }
    }

    pub(super) fn release(&mut self, range: Range) {
        self.mark_used(range.base);
        if self.ranges.remove(&range.base).is_some() {
            self.pool.give_back(range);
        }
    }

    fn mark_unused(&mut self, base: u32, reusable_at: Monotonic) {
        self.mark_used(base);
        self.reusable_at.insert(base, reusable_at);
        self.unused.insert((reusable_at, base));
    }

    fn mark_used(&mut self, base: u32) {
        if let Some(reusable_at) = self.reusable_at.remove(&base) {
            self.unused.remove(&(reusable_at, base));
        }
    }
}

fn range_of(base: u32, slots: &[abi::Slot]) -> Range {
    Range { base, count: count_of(slots) }
}

fn count_of(slots: &[abi::Slot]) -> u32 {
    u32::try_from(slots.len()).unwrap_or(u32::MAX)
}

/// First slots of the ranges that an entry leads to, each once.
fn bases(entry: &abi::Service) -> impl Iterator<Item = u32> + use<> {
    let [inside, outside] = ranges_of(entry);
    let second = Some(outside).filter(|range| range.count > 0 && (inside.count == 0 || range.base != inside.base));
    Some(inside).filter(|range| range.count > 0).into_iter().chain(second).map(|range| range.base)
}
