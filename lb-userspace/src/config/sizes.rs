//! `--map-sizes`: how many entries the maps hold.

use std::str::FromStr;

use lb_common::limits;
use serde::{Deserialize, Deserializer};

use super::named::{self, Named, NamedError};

/// The least that a map works with: id 0 of the backends is never used.
pub const MIN_MAP_ENTRIES: u32 = 2;
/// The most that a map may be given. At 16 M entries the largest records take a gigabyte, which is a mistake at any node's size.
pub const MAX_MAP_ENTRIES: u32 = 1 << 24;
/// The names that a size can have.
const NAMES: &str = "services, backends, endpoints, slots, flows4, flows6, udp_flows, sockets, names, stats, sources, vips, half_open or affinity";

/// Capacities of the maps, in entries; the defaults are those of [`lb_common::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    /// Each `services` map.
    pub services: u32,
    /// Each `backends` map.
    pub backends: u32,
    /// Each `endpoints` map.
    pub endpoints: u32,
    pub slots: u32,
    pub flows4: u32,
    pub flows6: u32,
    /// Each `udp_flows` map.
    pub udp_flows: u32,
    /// Each `sockets` map.
    pub sockets: u32,
    pub names: u32,
    pub stats: u32,
    /// Each `sources` map.
    pub sources: u32,
    /// Each `vips` map.
    pub vips: u32,
    /// Each `half_open` map.
    pub half_open: u32,
    /// Each `affinity` map.
    pub affinity: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self {
            services: limits::SERVICES,
            backends: limits::BACKENDS,
            endpoints: limits::ENDPOINTS,
            slots: limits::SLOTS,
            flows4: limits::FLOWS4,
            flows6: limits::FLOWS6,
            udp_flows: limits::UDP_FLOWS,
            sockets: limits::SOCKETS,
            names: limits::NAMES,
            stats: limits::STATS,
            sources: limits::SOURCES,
            vips: limits::VIPS,
            half_open: limits::HALF_OPEN,
            affinity: limits::AFFINITY,
        }
    }
}

impl MapSizes {
    /// The capacity for a map; `None`: as the programs declare it.
    pub fn of(&self, map: &str) -> Option<u32> {
        use lb_common::abi::map_name as name;
        Some(match map {
            name::SERVICES4 | name::SERVICES6 => self.services,
            name::BACKENDS4 | name::BACKENDS6 | name::HEALTH4 | name::HEALTH6 => self.backends,
            name::ENDPOINTS4 | name::ENDPOINTS6 => self.endpoints,
            name::SLOTS => self.slots,
            name::FLOWS4 => self.flows4,
            name::FLOWS6 => self.flows6,
            name::UDP_FLOWS4 | name::UDP_FLOWS6 => self.udp_flows,
            name::SOCKETS4 | name::SOCKETS6 => self.sockets,
            name::NAMES => self.names,
            name::STATS => self.stats,
            name::SOURCES4 | name::SOURCES6 => self.sources,
            name::VIPS4 | name::VIPS6 => self.vips,
            name::HALF_OPEN4 | name::HALF_OPEN6 => self.half_open,
            name::AFFINITY4 | name::AFFINITY6 => self.affinity,
            _ => return None,
        })
    }

    fn field(&mut self, name: &str) -> Option<&mut u32> {
        Some(match name {
            "services" => &mut self.services,
            "backends" => &mut self.backends,
            "endpoints" => &mut self.endpoints,
            "slots" => &mut self.slots,
            "flows4" => &mut self.flows4,
            "flows6" => &mut self.flows6,
            "udp_flows" => &mut self.udp_flows,
            "sockets" => &mut self.sockets,
            "names" => &mut self.names,
            "stats" => &mut self.stats,
            "sources" => &mut self.sources,
            "vips" => &mut self.vips,
            "half_open" => &mut self.half_open,
            "affinity" => &mut self.affinity,
            _ => return None,
        })
    }
}

impl Named for MapSizes {
    const WHAT: &'static str = "the size of a map";
    const WRITTEN: &'static str = "NAME=ENTRIES, as services=65536";

    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError> {
        let wrong = |what, expected| NamedError::new(&format!("{name}={value}"), what, expected);
        let field = self.field(name).ok_or_else(|| wrong(Self::WHAT, NAMES))?;
        let entries: u32 = value.parse().map_err(|_| wrong(Self::WHAT, Self::WRITTEN))?;
        if !(MIN_MAP_ENTRIES..=MAX_MAP_ENTRIES).contains(&entries) {
            return Err(wrong("a size that a map can have", "2 to 16777216 entries"));
        }
        *field = entries;
        Ok(())
    }
}

impl FromStr for MapSizes {
    type Err = NamedError;

    fn from_str(text: &str) -> Result<Self, NamedError> {
        named::parse(text)
    }
}

impl<'de> Deserialize<'de> for MapSizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        named::deserialize(deserializer)
    }
}

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
        assert_eq!((MIN_MAP_ENTRIES, MAX_MAP_ENTRIES), (2, 16_777_216), "as the error says");
    }
}
