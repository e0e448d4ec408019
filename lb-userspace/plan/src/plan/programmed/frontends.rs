//! Programmed frontends: the entry of each, and how it uses its service port.

use std::collections::BTreeMap;

use lb_common::abi;

use super::capacities::PerFamily;
use crate::plan::{Frontend, Use};
use lb_model::Family;

/// Frontends as written.
#[derive(Clone, Debug, Default)]
pub struct Frontends {
    entries: BTreeMap<Frontend, (abi::Service, Use)>,
    counts: PerFamily,
}

impl Frontends {
    pub fn get(&self, frontend: &Frontend) -> Option<&abi::Service> {
        self.entries.get(frontend).map(|(entry, _)| entry)
    }

    /// How the frontend uses its service port.
    pub fn uses(&self, frontend: &Frontend) -> Option<Use> {
        self.entries.get(frontend).map(|(_, uses)| *uses)
    }

    pub fn contains(&self, frontend: &Frontend) -> bool {
        self.entries.contains_key(frontend)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Frontend, &abi::Service, Use)> {
        self.entries.iter().map(|(frontend, (entry, uses))| (*frontend, entry, *uses))
    }

    pub(super) fn count(&self, family: Family) -> usize {
        self.counts.get(family)
    }

    pub(super) fn put(&mut self, frontend: Frontend, entry: abi::Service, uses: Use) {
        if self.entries.insert(frontend, (entry, uses)).is_none() {
            self.counts.add(Family::of(frontend.address));
        }
    }

    /// What was written; `None`: nothing was.
    pub(super) fn remove(&mut self, frontend: &Frontend) -> Option<abi::Service> {
        let (entry, _) = self.entries.remove(frontend)?;
        self.counts.subtract(Family::of(frontend.address));
        Some(entry)
    }
}
