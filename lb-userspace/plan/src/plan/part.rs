//! The parts of the tables: what is read, compared and counted by itself.

use lb_common::map::MapId;
use lb_model::Family;

/// A part of the tables that is read at once, in the order in which an audit puts right: what is led to before what leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Names,
    Backends(Family),
    Endpoints(Family),
    Slots,
    Sources(Family),
    Services(Family),
    Vips(Family),
    /// Addresses that are certainly no service's: none that the parts before it hold.
    VipFilter,
    Config,
    /// No table: what is written against what is wanted.
    Plan,
}

impl Part {
    pub const ALL: [Self; 15] = [
        Self::Names,
        Self::Backends(Family::V4),
        Self::Backends(Family::V6),
        Self::Endpoints(Family::V4),
        Self::Endpoints(Family::V6),
        Self::Slots,
        Self::Sources(Family::V4),
        Self::Sources(Family::V6),
        Self::Services(Family::V4),
        Self::Services(Family::V6),
        Self::Vips(Family::V4),
        Self::Vips(Family::V6),
        Self::VipFilter,
        Self::Config,
        Self::Plan,
    ];
    /// The map that it is.
    pub const fn map(self) -> Option<MapId> {
        Some(match self {
            Self::Names => MapId::NAMES,
            Self::Backends(Family::V4) => MapId::BACKENDS4,
            Self::Backends(Family::V6) => MapId::BACKENDS6,
            Self::Endpoints(Family::V4) => MapId::ENDPOINTS4,
            Self::Endpoints(Family::V6) => MapId::ENDPOINTS6,
            Self::Slots => MapId::SLOTS,
            Self::Sources(Family::V4) => MapId::SOURCES4,
            Self::Sources(Family::V6) => MapId::SOURCES6,
            Self::Services(Family::V4) => MapId::SERVICES4,
            Self::Services(Family::V6) => MapId::SERVICES6,
            Self::Vips(Family::V4) => MapId::VIPS4,
            Self::Vips(Family::V6) => MapId::VIPS6,
            Self::VipFilter => MapId::VIP_FILTER,
            Self::Config => MapId::CONFIG,
            Self::Plan => return None,
        })
    }

    /// The name of its map.
    pub fn name(self) -> &'static str {
        self.map().map_or("plan", MapId::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two tables of which one names elements of the other, none is written without the plan.
    #[test]
    fn each_table_that_names_elements_of_others_is_a_part() {
        let parts: Vec<_> = Part::ALL.into_iter().filter_map(Part::map).collect();
        let linked = lb_common::maps::TABLES.iter().filter(|table| table.is_linked);
        assert!(linked.map(|table| table.id).all(|id| parts.contains(&id)));
    }
}
