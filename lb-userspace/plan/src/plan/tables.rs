//! The Maglev tables of all service ports: each run computes a bounded part of them, and those that are finished are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Set,
    layout::Member,
    maglev::{Maglev, Weighed},
};
use lb_model::{Family, PortKey};

/// Looks at slots in one run, for all tables together: as many as a table of 16,381 slots needs.
const LOOKS: u64 = 1 << 18;
/// Looks for each table that is asked for beyond that, so that tables of others keep none from going on.
const LOOKS_LEAST: u64 = 1 << 13;
/// Tables with more slots are kept: the others are computed in less than a millisecond.
const KEPT_FROM: u32 = 1_022;

/// Maglev tables, finished and under way.
#[derive(Debug)]
pub struct MaglevTables {
    of: BTreeMap<PortKey, BTreeMap<(Family, Set), Table>>,
    looks: u64,
    looks_left: u64,
}

/// The table of one set.
#[derive(Debug)]
struct Table {
    size: u32,
    backends: Vec<Weighed>,
    progress: Progress,
    /// How often its backends changed before it was finished.
    restarts: u32,
}

#[derive(Debug)]
enum Progress {
    UnderWay(Maglev),
    Finished(Arc<[u32]>),
}

impl Default for MaglevTables {
    fn default() -> Self {
        Self::with_looks(LOOKS)
    }
}

impl MaglevTables {
    /// `looks`: at slots in one run.
    pub fn with_looks(looks: u64) -> Self {
        Self { of: BTreeMap::new(), looks, looks_left: looks }
    }

    /// A run begins.
    pub fn begin_run(&mut self) {
        self.looks_left = self.looks;
    }

    /// The table of these members, as indices; `None`: this run has no more time for it. What is computed is kept for the next one, unless
    /// the members are others then. A table whose members change again and again has twice as much of a run each time, so that it is
    /// finished in the end.
    pub(super) fn get(
        &mut self,
        key: &PortKey,
        set: (Family, Set),
        members: &[Member],
        size: u32,
    ) -> Option<Arc<[u32]>> {
        let backends: Vec<Weighed> = members.iter().map(|member| (member.address, member.weight)).collect();
        let of_port = self.of.entry(key.clone()).or_default();
        let table = of_port.entry(set).or_insert_with(|| Table::new(&backends, size, 0));
        if (table.size, &table.backends) != (size, &backends) {
            let restarts = if matches!(table.progress, Progress::UnderWay(_)) { table.restarts + 1 } else { 0 };
            *table = Table::new(&backends, size, restarts);
        }
        let share = self.looks_left.max(LOOKS_LEAST.min(self.looks)) << table.restarts.min(16);
        let mut left = share;
        let finished = table.go_on(&mut left);
        self.looks_left = self.looks_left.saturating_sub(share - left);
        if finished.is_some() && size < KEPT_FROM {
            of_port.remove(&set);
        }
        finished
    }

    /// The service port has tables of these sets alone.
    pub(super) fn keep(&mut self, key: &PortKey, sets: &BTreeSet<(Family, Set)>) {
        if let Some(of_port) = self.of.get_mut(key) {
            of_port.retain(|set, _| sets.contains(set));
            if of_port.is_empty() {
                self.of.remove(key);
            }
        }
    }
}

impl Table {
    fn new(backends: &[Weighed], size: u32, restarts: u32) -> Self {
        let progress = Progress::UnderWay(Maglev::new(backends, size));
        Self { size, backends: backends.to_vec(), progress, restarts }
    }

    fn go_on(&mut self, looks: &mut u64) -> Option<Arc<[u32]>> {
        if let Progress::UnderWay(maglev) = &mut self.progress {
            self.progress = Progress::Finished(maglev.go_on(looks)?.into());
        }
        match &self.progress {
            Progress::Finished(slots) => Some(slots.clone()),
            Progress::UnderWay(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::BackendId;
    use lb_model::{ObjectName, Protocol};

    const SIZE: u32 = 16_381;
    const SET: (Family, Set) = (Family::V4, Set::Cluster);

    fn key(name: &str) -> PortKey {
        PortKey { service: ObjectName::new("demo", name), port: 80, protocol: Protocol::Tcp }
    }

    fn members(first: u32, count: u32) -> Vec<Member> {
        let member = |index: u32| Member {
            id: BackendId { family: Family::V4, id: index },
            generation: 1,
            address: (index.to_be_bytes(), 80).into(),
            weight: 1,
        };
        (first..first + count).map(member).collect()
    }

    /// Looks that a table takes in all.
    fn needed(members: &[Member], size: u32) -> u64 {
        let mut tables = MaglevTables::with_looks(u64::MAX >> 1);
        tables.get(&key("web"), SET, members, size).expect("finished");
        tables.looks - tables.looks_left
    }

    #[test]
    fn a_run_looks_at_a_bounded_number_of_slots_and_the_table_is_finished_by_as_many_as_it_takes() {
        let (members, looks) = (members(1, 100), 20_000);
        let mut tables = MaglevTables::with_looks(looks);
        let (mut runs, mut looked) = (0, 0);
        loop {
            tables.begin_run();
            runs += 1;
            let finished = tables.get(&key("web"), SET, &members, SIZE);
            looked += looks - tables.looks_left;
            if finished.is_some_and(|slots| slots.len() == SIZE as usize) {
                break;
            }
            assert_eq!(tables.looks_left, 0);
        }
        assert_eq!((looked, runs), (needed(&members, SIZE), needed(&members, SIZE).div_ceil(looks)));
        assert!(runs > 5);
        tables.begin_run();
        assert!(tables.get(&key("web"), SET, &members, SIZE).is_some() && tables.looks_left == looks, "it is kept");
    }

    #[test]
    fn what_one_run_computes_of_the_usual_sizes_is_enough_for_one_table() {
        for (count, size) in [(10, 251), (50, 1_021), (100, SIZE), (800, SIZE)] {
            assert!(needed(&members(1, count), size) <= LOOKS, "{size}");
        }
    }

    #[test]
    fn a_table_goes_on_whatever_others_ask_for_before_it() {
        let waits = members(1, 100);
        let mut tables = MaglevTables::default();
        let runs = (1..100).find(|run| {
            tables.begin_run();
            tables.get(&key("busy"), SET, &members(*run, 800), 131_071);
            tables.get(&key("waits"), SET, &waits, SIZE).is_some()
        });
        assert!(runs.is_some_and(|runs| runs > 5), "{runs:?}");
    }

    #[test]
    fn a_table_whose_members_change_in_each_run_is_finished_all_the_same() {
        let mut tables = MaglevTables::with_looks(10_000);
        let runs = (1..100).find(|run| {
            tables.begin_run();
            tables.get(&key("busy"), SET, &members(*run, 100), SIZE).is_some()
        });
        assert!(runs.is_some_and(|runs| runs > 3), "{runs:?}");
        let table = &tables.of[&key("busy")][&SET];
        assert!(matches!(table.progress, Progress::Finished(_)));
    }

    #[test]
    fn what_is_asked_for_no_more_and_what_is_small_takes_no_room() {
        let mut tables = MaglevTables::default();
        for (name, size) in [("large", SIZE), ("small", 251)] {
            assert!(tables.get(&key(name), SET, &members(1, 10), size).is_some());
            tables.keep(&key(name), &[SET].into());
        }
        assert_eq!(tables.of.keys().collect::<Vec<_>>(), [&key("large")]);
        tables.keep(&key("large"), &BTreeSet::new());
        assert!(tables.of.is_empty());
    }
}
