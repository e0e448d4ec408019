//! `--map-sizes`: how many entries the maps hold.

use lb_common::{
    limits,
    maps::{self, TABLES},
};

use lb_model::named_option;
use lb_model::values::named::{Named, NamedError};

/// The least that a map works with: id 0 of the backends is never used.
pub const MIN_MAP_ENTRIES: u32 = 2;
/// The most that a map may be given. At 16 M entries the largest records take a gigabyte, which is a mistake at any node's size.
pub const MAX_MAP_ENTRIES: u32 = 1 << 24;

/// A size for each line: its name, and the limit that is its default in entries. The maps whose capacity is declared as this limit have it.
macro_rules! sizes {
    ($($name:ident = $default:ident;)*) => {
        /// Capacities of the maps, in entries; the defaults are those of [`lb_common::limits`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct MapSizes {
            $(pub $name: u32,)*
        }

        impl Default for MapSizes {
            fn default() -> Self {
                Self { $($name: limits::$default,)* }
            }
        }

        impl MapSizes {
            /// Each size by its name, with its default in entries.
            pub const ALL: [(&str, u32); [$(limits::$default),*].len()] =
                [$((stringify!($name), limits::$default)),*];

            /// The capacity for a map; `None`: as the programs declare it.
            pub fn of(&self, map: &str) -> Option<u32> {
                match maps::table(map)?.limit() {
                    $(stringify!($default) => Some(self.$name),)*
                    _ => None,
                }
            }

            /// The maps that have the size of this name.
            pub fn maps(name: &str) -> impl Iterator<Item = &'static str> {
                let limit = match name {
                    $(stringify!($name) => Some(stringify!($default)),)*
                    _ => None,
                };
                TABLES.iter().filter(move |table| Some(table.limit()) == limit).map(|table| table.name)
            }

            fn field(&mut self, name: &str) -> Option<&mut u32> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

sizes! {
    services = SERVICES;
    backends = BACKENDS;
    endpoints = ENDPOINTS;
    slots = SLOTS;
    flows4 = FLOWS4;
    flows6 = FLOWS6;
    udp_flows = UDP_FLOWS;
    sockets = SOCKETS;
    names = NAMES;
    stats = STATS;
    sources = SOURCES;
    vips = VIPS;
    half_open = HALF_OPEN;
    affinity = AFFINITY;
}

impl MapSizes {
    /// The names that a size can have.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }
}

impl Named for MapSizes {
    const WHAT: &'static str = "the size of a map";
    const WRITTEN: &'static str = "NAME=ENTRIES, as services=65536";

    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError> {
        let wrong = |what, expected: &str| NamedError::new(&format!("{name}={value}"), what, expected);
        let field = self.field(name).ok_or_else(|| wrong(Self::WHAT, &Self::names()))?;
        let entries: u32 = value.parse().map_err(|_| wrong(Self::WHAT, Self::WRITTEN))?;
        if !(MIN_MAP_ENTRIES..=MAX_MAP_ENTRIES).contains(&entries) {
            return Err(wrong(
                "a size that a map can have",
                &format!("{MIN_MAP_ENTRIES} to {MAX_MAP_ENTRIES} entries"),
            ));
        }
        *field = entries;
        Ok(())
    }
}

named_option!(MapSizes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_keeps_its_default() {
        let sizes: MapSizes = "services=100, flows4=2048".parse().expect("valid");
        assert_eq!((sizes.services, sizes.flows4), (100, 2048));
        let mapping: MapSizes =
            serde_saphyr::from_str("services: 100\nflows4: 2048\n").expect("a mapping does as well");
        assert_eq!(mapping, sizes);
        assert_eq!(MapSizes { services: limits::SERVICES, flows4: limits::FLOWS4, ..sizes }, MapSizes::default());
    }

    #[test]
    fn a_wrong_size_is_named_with_what_would_do() {
        for (text, hint) in [
            ("service=1", "services, backends"),
            ("services", "NAME=ENTRIES"),
            ("services=many", "NAME=ENTRIES"),
            ("services=1", "2 to 16777216"),
            ("slots=16777217", "2 to 16777216"),
        ] {
            let error = text.parse::<MapSizes>().expect_err("wrong").to_string();
            assert!(error.contains(hint) && error.contains(text), "{text}: {error}");
        }
    }
}
