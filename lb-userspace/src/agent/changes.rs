//! The numbers of snapshots and tables: what changed, when it happened, how full the tables are. Pure.

use std::collections::BTreeMap;

use imbl::ordmap::DiffItem;
use jiff::Timestamp;

use crate::observe::report::{FillReport, PassReport};
use lb_model::Snapshot;
use lb_plan::plan::{Part, ProgrammedState};

/// All of it.
pub(super) fn whole(snapshot: &Snapshot) -> PassReport {
    PassReport { services: snapshot.services.len() as u64, slices: snapshot.slices.len() as u64 }
}

/// When the changes of endpoints between two snapshots happened, where their writer noted it.
pub(super) fn happened(before: &Snapshot, after: &Snapshot) -> impl Iterator<Item = Timestamp> {
    before.slices.diff(&after.slices).filter_map(|change| match change {
        DiffItem::Add(_, slice) => slice.changed_at,
        // Without a new time it is not about endpoints.
        DiffItem::Update { old: (_, old), new: (_, new) } => new.changed_at.filter(|at| old.changed_at != Some(*at)),
        DiffItem::Remove(..) => None,
    })
}

/// Costs what differs.
pub(super) fn difference(before: &Snapshot, after: &Snapshot) -> PassReport {
    PassReport {
        services: before.services.diff(&after.services).count() as u64,
        slices: before.slices.diff(&after.slices).count() as u64,
    }
}

/// How full the tables are, by what was written to them.
pub(super) fn fill(programmed: &ProgrammedState) -> BTreeMap<String, FillReport> {
    let fill = |part: Part| {
        let (entries, capacity) = (programmed.count(part)? as u64, programmed.capacities().of(part).into());
        Some((part.name().to_owned(), FillReport { entries, capacity }))
    };
    Part::ALL.into_iter().filter_map(fill).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use lb_model::{Family, ObjectName, Slice};
    use lb_plan::plan::Capacities;

    #[test]
    fn empty_tables_are_empty_and_every_one_is_told() {
        let fill = fill(&ProgrammedState::new(Capacities::all(7)));
        assert_eq!(fill.len(), 12);
        assert!(fill.values().all(|fill| *fill == FillReport { entries: 0, capacity: 7 }));
    }

    fn snapshot(changed_at: &str) -> Snapshot {
        let slice = Slice {
            name: ObjectName::new("demo", "web-1"),
            service: "web".into(),
            family: Family::V4,
            ports: Vec::new(),
            endpoints: Vec::new(),
            changed_at: changed_at.parse().ok(),
            created_s: None,
            refused: None,
        };
        Snapshot { slices: [(slice.key(), Arc::new(slice))].into_iter().collect(), ..Snapshot::default() }
    }

    #[test]
    fn a_snapshot_differs_by_what_changed() {
        let (empty, one) = (Snapshot::default(), snapshot("2026-11-21T08:00:00Z"));
        assert_eq!(difference(&empty, &empty), PassReport::default());
        assert_eq!(difference(&empty, &one), PassReport { services: 0, slices: 1 });
    }

    #[test]
    fn a_change_of_endpoints_is_timed_once() {
        let (empty, one, later) =
            (Snapshot::default(), snapshot("2026-11-21T08:00:00Z"), snapshot("2026-11-21T08:00:05Z"));
        assert_eq!(happened(&empty, &one).count(), 1);
        assert_eq!(happened(&one, &later).map(|at| at.to_string()).collect::<Vec<_>>(), ["2026-11-21T08:00:05Z"]);
        assert_eq!(
            happened(&one, &one).count() + happened(&later, &snapshot("none")).count() + happened(&one, &empty).count(),
            0
        );
    }
}
