//! How much the tables hold at most, and counts of what they hold, by family.

use std::collections::BTreeSet;

use crate::plan::Part;
use lb_model::Family;

/// How much each part of the tables holds, in elements: in the order of [`Part::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities([u32; Part::ALL.len()]);

impl Capacities {
    pub fn new(capacity: impl Fn(Part) -> u32) -> Self {
        Self(Part::ALL.map(capacity))
    }

    /// Room for `count` entries in every table.
    pub fn all(count: u32) -> Self {
        Self::new(|_| count)
    }

    /// Room for `count` entries in this one.
    #[must_use]
    pub fn with(self, part: Part, count: u32) -> Self {
        Self::new(|other| if other == part { count } else { self.of(other) })
    }

    pub fn of(&self, part: Part) -> u32 {
        Part::ALL.into_iter().zip(self.0).find(|(other, _)| *other == part).map_or(0, |(_, count)| count)
    }
}

/// A count for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerFamily([usize; 2]);

impl PerFamily {
    pub fn get(self, family: Family) -> usize {
        self.0[usize::from(family == Family::V6)]
    }

    /// One more.
    pub fn add(&mut self, family: Family) {
        self.0[usize::from(family == Family::V6)] += 1;
    }

    /// One less.
    pub fn subtract(&mut self, family: Family) {
        self.0[usize::from(family == Family::V6)] -= 1;
    }
}

/// A set that counts its values by family.
#[derive(Clone, Debug)]
pub(super) struct Counted<T> {
    values: BTreeSet<T>,
    counts: PerFamily,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), counts: PerFamily::default() }
    }
}

impl<T: Ord> Counted<T> {
    pub fn insert(&mut self, value: T, family: Family) {
        if self.values.insert(value) {
            self.counts.add(family);
        }
    }

    /// True if it was there.
    pub fn remove(&mut self, value: &T, family: Family) -> bool {
        let was_there = self.values.remove(value);
        if was_there {
            self.counts.subtract(family);
        }
        was_there
    }

    pub fn contains(&self, value: &T) -> bool {
        self.values.contains(value)
    }

    pub fn count(&self, family: Family) -> usize {
        self.counts.get(family)
    }
}
