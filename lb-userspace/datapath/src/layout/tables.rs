//! What each map holds, as it is declared, and so what becomes of it when its layout or size changes.

pub(super) use lb_common::maps::{Family, Nature};

/// What the map of this name holds. A map that this version does not know begins anew.
pub(super) fn nature(map: &str) -> Nature {
    lb_common::maps::table(map).map_or(Nature::Fresh, |table| table.nature)
}

/// Whether the map is one of those that name each other's elements.
pub(super) fn is_linked(map: &str) -> bool {
    lb_common::maps::table(map).is_some_and(|table| table.is_linked)
}

/// Whether entries in use must fit into a map of another size: those that are planned, and those that the declaration marks.
pub(super) fn must_fit(map: &str) -> bool {
    lb_common::maps::table(map).is_some_and(|table| table.must_fit || table.nature == Nature::Planned)
}

/// The number that changes with the meaning of a map whose layout stays: what a field counts, or how a hash in it is made.
pub(super) fn meaning(_map: &str) -> u32 {
    0
}

/// The value of a field that a record of an earlier version does not have; `None`: 0.
pub(super) fn fresh(_map: &str, _field: &str) -> Option<u64> {
    None
}
