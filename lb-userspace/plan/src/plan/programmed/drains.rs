//! Programmed drains: the start of each, and the outcome of those that ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lb_common::abi::backend_state;

use crate::plan::{BackendId, BackendRecord};
use lb_model::Monotonic;

/// How drains ended, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainEnds {
    /// With no connection left, once the drain period was over.
    pub empty: u64,
    /// At the eviction deadline, with connections left, or not known to have none.
    pub deadline: u64,
    /// The backend came back.
    pub returned: u64,
    /// Another pod came to its address.
    pub replaced: u64,
}

/// Backends that drain.
#[derive(Clone, Debug, Default)]
pub struct Drains {
    /// Since when, the oldest first.
    by_age: BTreeSet<(Monotonic, BackendId)>,
    since: BTreeMap<BackendId, Monotonic>,
    /// Those that were checked and had no flow left.
    idle: BTreeSet<BackendId>,
    ends: DrainEnds,
}

impl Drains {
    /// When the drain that goes on longest began.
    pub fn oldest(&self) -> Option<Monotonic> {
        self.by_age.first().map(|(since, _)| *since)
    }

    pub fn ids(&self) -> impl Iterator<Item = BackendId> + '_ {
        self.since.keys().copied()
    }

    /// Whether the backend drains and was seen to have no connection left.
    pub fn is_idle(&self, id: BackendId) -> bool {
        self.idle.contains(&id)
    }

    /// Those that drain and were seen to have no connection left.
    pub fn idle(&self) -> impl Iterator<Item = &BackendId> {
        self.idle.iter()
    }

    /// How those before ended.
    pub fn ends(&self) -> DrainEnds {
        self.ends
    }

    /// Takes down what becomes of a drain by the write of `new` over `old`.
    pub(super) fn note(&mut self, id: BackendId, old: Option<&BackendRecord>, new: &BackendRecord, now: Monotonic) {
        let drains = new.state == backend_state::DRAINING;
        let drained = self.since.contains_key(&id);
        if drains && !drained {
            self.begin(id, now);
        } else if drained && !drains {
            let (is_drained, is_evicted) =
                (old.is_some_and(|old| old.is_drained(now)), old.is_some_and(|old| old.is_evictable(now)));
            let ends = &mut self.ends;
            *match new.state {
                backend_state::GONE if is_drained && self.idle.contains(&id) => &mut ends.empty,
                backend_state::GONE if is_evicted => &mut ends.deadline,
                backend_state::GONE => &mut ends.replaced,
                _ => &mut ends.returned,
            } += 1;
            self.end(id);
        }
    }

    /// Drains that went on before this agent: each is taken to have begun its period before the end of that, as the tables do not
    /// say. One that is cut short by an earlier deadline is younger than that.
    pub(super) fn guess(&mut self, records: &BTreeMap<BackendId, BackendRecord>, period: Duration) {
        for (id, record) in records.iter().filter(|(_, record)| record.state == backend_state::DRAINING) {
            self.begin(*id, Monotonic::from_tenths(record.drain_ds).before(period));
        }
    }

    /// Takes down which of the backends that drain have no flow left.
    pub(super) fn note_idle(&mut self, idle: &BTreeSet<BackendId>) {
        self.idle = idle.iter().filter(|id| self.since.contains_key(id)).copied().collect();
    }

    fn begin(&mut self, id: BackendId, since: Monotonic) {
        self.since.insert(id, since);
        self.by_age.insert((since, id));
    }

    fn end(&mut self, id: BackendId) {
        self.idle.remove(&id);
        if let Some(since) = self.since.remove(&id) {
            self.by_age.remove(&(since, id));
        }
    }
}
