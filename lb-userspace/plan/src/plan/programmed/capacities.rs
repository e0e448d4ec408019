//! How much the tables hold at most, and counts of what they hold, by family.

use std::collections::BTreeSet;

use lb_model::Family;

/// How much the tables hold, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    pub frontends4: u32,
    pub frontends6: u32,
    pub backends4: u32,
    pub backends6: u32,
    pub endpoints4: u32,
    pub endpoints6: u32,
    pub slots: u32,
    pub names: u32,
    pub sources4: u32,
    pub sources6: u32,
    pub vips4: u32,
    pub vips6: u32,
}

impl Capacities {
    /// Room for `count` entries in every table.
    pub const fn all(count: u32) -> Self {
        Self {
            frontends4: count,
            frontends6: count,
            backends4: count,
            backends6: count,
            endpoints4: count,
            endpoints6: count,
            slots: count,
            names: count,
            sources4: count,
            sources6: count,
            vips4: count,
            vips6: count,
        }
    }

    pub fn frontends(&self, family: Family) -> u32 {
        of(family, self.frontends4, self.frontends6)
    }

    pub fn backends(&self, family: Family) -> u32 {
        of(family, self.backends4, self.backends6)
    }

    pub fn endpoints(&self, family: Family) -> u32 {
        of(family, self.endpoints4, self.endpoints6)
    }

    pub fn sources(&self, family: Family) -> u32 {
        of(family, self.sources4, self.sources6)
    }

    pub fn vips(&self, family: Family) -> u32 {
        of(family, self.vips4, self.vips6)
    }
}

fn of(family: Family, v4: u32, v6: u32) -> u32 {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

/// A count for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerFamily([u32; 2]);

impl PerFamily {
    pub fn get(self, family: Family) -> u32 {
        of(family, self.0[0], self.0[1])
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

    pub fn count(&self, family: Family) -> u32 {
        self.counts.get(family)
    }
}
