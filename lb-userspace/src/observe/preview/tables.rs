//! The tables of connections, by descriptors that the kernel takes no writes from.

use std::path::Path;

use lb_common::map;

use crate::observe::contents::{self, Contents, FamilyContents};
use lb_tables::{MapError, MapSet};

/// Reads the connections in `dir`, a set of tables, and nothing else.
pub fn read(dir: &Path) -> Result<Contents, MapError> {
    let maps = MapSet::open_read_only(dir)?;
    let settings = maps.of::<map::Settings>().get(&0).map_err(contents::failed::<map::Settings>(&maps))?;
    let settings = settings.unwrap_or_default();
    Ok(Contents { v4: family(&maps)?, v6: family(&maps)?, settings, ..Contents::default() })
}

fn family<const N: usize>(maps: &MapSet) -> Result<FamilyContents<N>, MapError> {
    let (half_open, flows) = contents::flows(maps)?;
    let sockets = contents::all::<map::Sockets<N>>(maps)?;
    Ok(FamilyContents { flows, half_open, sockets, ..FamilyContents::default() })
}
