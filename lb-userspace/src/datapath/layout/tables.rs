//! What each map holds, and so what becomes of it when its layout or size changes.

use lb_common::abi::map_name as name;

/// What a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// What the agent writes, and what no other can derive anew: each record must fit.
    Planned,
    /// The same, with words that are each set's own.
    Own,
    /// What the programs note: a record that does not fit is forgotten.
    Noted,
    /// Flow entries of one address family.
    Flows(Family),
    /// Ports of first fragments, which go with the flows: what a set does not hold was noted by the programs of the other one.
    Fragments(Family),
    /// Counts: kept if they can be, else they begin anew.
    Counted,
    /// What has a meaning for one set of maps only, or is found anew by itself.
    Fresh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The tables of established connections, of answered UDP flows, and of what nobody has answered or what is retained.
    pub const fn flow_tables(self) -> [&'static str; 3] {
        match self {
            Self::V4 => [name::FLOWS4, name::UDP_FLOWS4, name::HALF_OPEN4],
            Self::V6 => [name::FLOWS6, name::UDP_FLOWS6, name::HALF_OPEN6],
        }
    }
}

/// What the map of this name holds. A map that this version does not know begins anew.
pub(super) fn nature(map: &str) -> Nature {
    match map {
        name::FLOWS4 | name::UDP_FLOWS4 | name::HALF_OPEN4 => Nature::Flows(Family::V4),
        name::FLOWS6 | name::UDP_FLOWS6 | name::HALF_OPEN6 => Nature::Flows(Family::V6),
        name::SERVICES4
        | name::SERVICES6
        | name::SLOTS
        | name::BACKENDS4
        | name::BACKENDS6
        | name::NAMES
        | name::LINKS
        | name::SOURCES4
        | name::SOURCES6
        | name::VIPS4
        | name::VIPS6
        | name::SETTINGS
        | name::NETWORKS4
        | name::NETWORKS6
        | name::MASQUERADE4
        | name::MASQUERADE6
        | name::ENDPOINTS4
        | name::ENDPOINTS6
        | name::FAST_PATH
        | name::BRIDGE_PORTS
        | name::ADOPTION
        | name::SERVICE_CIDRS => Nature::Planned,
        name::CONFIG => Nature::Own,
        name::HEALTH4 | name::HEALTH6 | name::AFFINITY4 | name::AFFINITY6 | name::SOCKETS4 | name::SOCKETS6 => {
            Nature::Noted
        }
        name::FRAGMENTS4 => Nature::Fragments(Family::V4),
        name::FRAGMENTS6 => Nature::Fragments(Family::V6),
        name::OUTCOMES | name::STATS | name::TURNS | name::TRAFFIC4 | name::TRAFFIC6 | name::CONNECT_TIMES => {
            Nature::Counted
        }
        // `layout` describes its own set. Rings and storages of sockets cannot be copied. The places of the filter's bits and of the clients'
        // counters follow from their number; the agent sets both anew.
        _ => Nature::Fresh,
    }
}

/// Tables that name each other's elements by id or place: they stay in step if the agent writes all of them or none.
pub(super) const TOGETHER: [&str; 12] = [
    name::SERVICES4,
    name::SERVICES6,
    name::SLOTS,
    name::BACKENDS4,
    name::BACKENDS6,
    name::NAMES,
    name::SOURCES4,
    name::SOURCES6,
    name::VIPS4,
    name::VIPS6,
    name::ENDPOINTS4,
    name::ENDPOINTS6,
];

/// The number that changes with the meaning of a map whose layout stays: what a field counts, or how a hash in it is made.
pub(super) fn meaning(_map: &str) -> u32 {
    0
}

/// The value of a field that a record of an earlier version does not have; `None`: 0.
pub(super) fn fresh(_map: &str, _field: &str) -> Option<u64> {
    None
}
