//! The state of a comparison.

use std::collections::{BTreeMap, BTreeSet};

use lb_model::ObjectName;
use tokio::time::Instant;

use crate::Difference;
use crate::kube::{
    bounds,
    item::Item,
    version::{Known, Version},
};

/// A comparison under way.
#[derive(Debug)]
pub struct Comparison<K> {
    pub(super) phase: Phase,
    /// What was known when the list was asked for.
    pub(super) from: Option<Version>,
    pub(super) seen: Known,
    /// Objects that an event changed since the beginning.
    pub(super) touched: BTreeSet<ObjectName>,
    /// What the first list shows.
    pub(super) found: BTreeMap<ObjectName, Difference>,
    /// Of the second list, what the repair takes.
    pub(super) objects: BTreeMap<ObjectName, Item<K>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first or second list; when something came of it last.
    Listing { is_second: bool, last: Instant },
    /// What was found may still come by the watch.
    Settling { until: Instant },
}

impl<K> Comparison<K> {
    pub(super) fn new(from: Option<Version>, now: Instant) -> Self {
        Self {
            phase: Phase::Listing { is_second: false, last: now },
            from,
            seen: Known::new(),
            touched: BTreeSet::new(),
            found: BTreeMap::new(),
            objects: BTreeMap::new(),
        }
    }

    pub fn touched(&mut self, name: &ObjectName) {
        self.touched.insert(name.clone());
    }

    pub(super) fn due(&self) -> Instant {
        match self.phase {
            Phase::Listing { last, .. } => last + bounds::LIST_SILENCE_LIMIT,
            Phase::Settling { until } => until,
        }
    }

    /// What differs between the list, which is of a version, and what is held.
    pub(super) fn differences(&self, known: &Known, list: &Version) -> BTreeMap<ObjectName, Difference> {
        let listed = self.seen.iter().filter_map(|(name, version)| match known.get(name) {
            None => Some((name, Difference::Missing)),
            Some(held) if held == version || version < held => None,
            Some(_) => Some((name, Difference::Stale)),
        });
        // An object without a name may be any of those that the list does not name.
        let is_complete = !self.seen.contains_key(&ObjectName::unreadable());
        let extra = known.iter().filter(|(name, held)| {
            let is_newer = list < *held;
            is_complete && !self.seen.contains_key(*name) && !is_newer
        });
        let all = listed.chain(extra.map(|(name, _)| (name, Difference::Extra)));
        all.filter(|(name, _)| !self.touched.contains(*name)).map(|(name, kind)| (name.clone(), kind)).collect()
    }
}
