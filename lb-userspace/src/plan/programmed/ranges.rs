//! Programmed frontends and their slot ranges. A range without a frontend pauses before it is free.

use lb_common::abi;

use super::ProgrammedState;
use crate::{
    model::{Family, Monotonic},
    plan::{Frontend, PortKey, Range, Use, restore::ranges_of},
};

impl ProgrammedState {
    /// A range that the tables held already. False if it overlaps another one, or what there is.
    pub(in crate::plan) fn put_range(&mut self, base: u32, slots: Vec<abi::Slot>) -> bool {
        if !self.slots.take(Range { base, count: count_of(&slots) }) {
            return false;
        }
        self.generation = slots.first().map_or(self.generation, |slot| slot.generation.max(self.generation));
        self.ranges.insert(base, slots);
        true
    }

    pub(in crate::plan) fn put_frontend(&mut self, frontend: Frontend, entry: abi::Service, uses: Use, key: &PortKey) {
        let frontends = &mut self.service_mut(entry.id, key).frontends;
        let first = frontends.is_empty();
        frontends.insert(frontend);
        self.served += usize::from(first);
        self.settle(entry.id);
        self.generation = self.generation.max(entry.generation);
        self.frontends.insert(frontend, entry);
        self.uses.insert(frontend, uses);
        *self.frontend_counts.slot(Family::of(frontend.address)) += 1;
        for base in bases(&entry) {
            *self.users.entry(base).or_default() += 1;
            if let Some(slots) = self.ranges.get(&base) {
                self.sizes.insert((count_of(slots), base));
            }
            self.mark_used(base);
        }
    }

    pub(super) fn remove_frontend(&mut self, frontend: Frontend, reusable_at: Monotonic) {
        let Some(entry) = self.frontends.remove(&frontend) else { return };
        self.uses.remove(&frontend);
        *self.frontend_counts.slot(Family::of(frontend.address)) -= 1;
        if let Some(service) = self.services.get_mut(&entry.id) {
            service.frontends.remove(&frontend);
            self.served -= usize::from(service.frontends.is_empty());
        }
        self.settle(entry.id);
        for base in bases(&entry) {
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

    /// Whether no frontend leads to a range any more.
    pub fn is_unused(&self, base: u32) -> bool {
        self.reusable_at.contains_key(&base)
    }

    pub(super) fn mark_unused(&mut self, base: u32, reusable_at: Monotonic) {
        self.mark_used(base);
        self.reusable_at.insert(base, reusable_at);
        self.unused_ranges.insert((reusable_at, base));
    }

    fn mark_used(&mut self, base: u32) {
        if let Some(reusable_at) = self.reusable_at.remove(&base) {
            self.unused_ranges.remove(&(reusable_at, base));
        }
    }

    pub(super) fn release(&mut self, range: Range) {
        self.mark_used(range.base);
        if self.ranges.remove(&range.base).is_some() {
            self.slots.give_back(range);
        }
    }

    /// The ranges that frontends lead to, with what they hold.
    pub fn live_ranges(&self, from: u32) -> impl Iterator<Item = (u32, &Vec<abi::Slot>)> + '_ {
        self.users.range(from..).map(|(base, _)| base).filter_map(|base| Some((*base, self.ranges.get(base)?)))
    }

    /// A free range of this size beside those that are promised already.
    ///
    /// As many slots in one piece stay free as the largest range in use has, or this one. So a service that needs no more slots than it has can
    /// always be written anew (`is_kept`), and gives back its old ones once its readers are through.
    pub(in crate::plan) fn find_slots(&self, count: u32, promised: &[Range], is_kept: bool) -> Option<Range> {
        let found = self.slots.find(count, promised)?;
        let largest = self.sizes.last().map_or(0, |(largest, _)| *largest).max(count);
        let all: Vec<Range> = promised.iter().copied().chain([found]).collect();
        (is_kept || self.slots.find(largest, &all).is_some()).then_some(found)
    }
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
