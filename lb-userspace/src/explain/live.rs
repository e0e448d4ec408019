//! The pinned maps, opened for reading alone.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use lb_common::abi::Config;
use lb_common::map::{self, Map};
use lb_common::state::{SourcePorts, Timeouts};

use super::stored::{DecisionContext, Stored};
use lb_netlink::route;
use lb_tables::{MapError, MapSet, VipFilterReader, open_path_read_only};

/// The set of tables in force, and of the maps that the programs own those that a decision reads.
pub struct Live {
    maps: MapSet,
    vip_filter: Option<VipFilterReader>,
}

impl Live {
    /// Opens the set of tables in `dir`. `programs`: the folder of the maps that are pinned with the programs.
    pub fn open(dir: &Path, programs: &Path) -> Result<Self, MapError> {
        let mut maps = MapSet::open_read_only(dir)?;
        add_of_programs::<map::Buckets>(&mut maps, programs);
        add_of_programs::<map::FloodUntil>(&mut maps, programs);
        Ok(Self { maps, vip_filter: VipFilterReader::open(dir)? })
    }

    /// What the programs were loaded with, as far as the tables show, for packets of the family whose addresses have `N` bytes. SNAT ports: the
    /// default range, unless they are known otherwise.
    pub fn settings<const N: usize>(&self, now_ns: u64, ports: SourcePorts) -> DecisionContext {
        let noted = self.maps.first::<map::Settings>().unwrap_or_default();
        DecisionContext {
            now_ns,
            // Any number: what it decides over is shown as chance.
            seed: 1,
            link: 0,
            timeouts: Timeouts::noted(&noted),
            ports,
            client_key: noted.client_key,
            flow_room: self.maps.of::<map::Flows<N>>().capacity() / 2,
        }
    }

    /// When, by whom, and in which layout the tables were written.
    pub fn config(&self) -> Option<Config> {
        self.maps.first::<map::Config>()
    }
}

/// Adds a map that is pinned with the programs, under its name and their digest. It is left out if two starts have left one each.
fn add_of_programs<M: Map>(maps: &mut MapSet, folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let found = path.file_name().and_then(|found| found.to_str());
        found.is_some_and(|found| found.split_once('-').map_or(found, |(map, _)| map) == M::NAME)
    };
    let mut found = entries.filter(is_one);
    if let Some(path) = found.next().filter(|_| found.next().is_none())
        && let Ok(table) = open_path_read_only::<M>(&path)
    {
        maps.add::<M>(&table);
    }
}

impl Stored for Live {
    fn get<M: Map>(&self, key: &M::Key) -> Option<M::Value> {
        self.maps.find::<M>()?.get(key).ok()?
    }

    fn all<M: Map>(&self) -> Vec<(M::Key, M::Value)> {
        self.maps.find::<M>().and_then(|table| table.read().ok()).unwrap_or_default()
    }

    fn is_ruled_out(&self, address: IpAddr) -> bool {
        self.vip_filter.as_ref().is_some_and(|filter| filter.is_ruled_out(address))
    }

    fn link_to<const N: usize>(&self, address: &[u8; N]) -> u32 {
        route::link_to(address).unwrap_or_default()
    }
}
