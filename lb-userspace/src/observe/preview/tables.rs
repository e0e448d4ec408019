//! The tables of connections, by descriptors that the kernel takes no writes from.

use std::io;
use std::path::Path;

use aya::Pod;
use lb_common::abi::{Flow, FlowKey, HalfOpen, LoadSettings, SocketKey, SocketPeer, V4, V6, map_name};

use crate::observe::contents::{Contents, FamilyContents};
use lb_tables::{MapError, Table};

/// The maps of a family.
struct Names {
    flows: &'static str,
    udp_flows: &'static str,
    half_open: &'static str,
    sockets: &'static str,
}

const NAMES4: Names = Names {
    flows: map_name::FLOWS4,
    udp_flows: map_name::UDP_FLOWS4,
    half_open: map_name::HALF_OPEN4,
    sockets: map_name::SOCKETS4,
};

const NAMES6: Names = Names {
    flows: map_name::FLOWS6,
    udp_flows: map_name::UDP_FLOWS6,
    half_open: map_name::HALF_OPEN6,
    sockets: map_name::SOCKETS6,
};

/// Reads the connections in `dir`, a set of tables, and nothing else.
pub fn read(dir: &Path) -> Result<Contents, MapError> {
    let settings = Table::<u32, LoadSettings>::open_read_only(dir, map_name::SETTINGS)?;
    let settings = settings.get(&0).map_err(|error| failed(dir, map_name::SETTINGS, error))?.unwrap_or_default();
    Ok(Contents { v4: family::<V4>(dir, &NAMES4)?, v6: family::<V6>(dir, &NAMES6)?, settings, ..Contents::default() })
}

fn family<const N: usize>(dir: &Path, names: &Names) -> Result<FamilyContents<N>, MapError>
where
    FlowKey<N>: Pod,
    Flow<N>: Pod,
    HalfOpen<N>: Pod,
    SocketKey<N>: Pod,
    SocketPeer<N>: Pod,
{
    // Half-open ones first: what is answered meanwhile is seen twice rather than not at all.
    let half_open = all(dir, names.half_open)?;
    let mut flows: Vec<(FlowKey<N>, Flow<N>)> = all(dir, names.flows)?;
    flows.extend(all(dir, names.udp_flows)?);
    Ok(FamilyContents { half_open, flows, sockets: all(dir, names.sockets)?, ..FamilyContents::default() })
}

fn all<K: Pod, V: Pod>(dir: &Path, map: &'static str) -> Result<Vec<(K, V)>, MapError> {
    Table::open_read_only(dir, map)?.read().map_err(|error| failed(dir, map, error))
}

fn failed(dir: &Path, map: &'static str, source: io::Error) -> MapError {
    MapError::Open { map, path: dir.join(map), source }
}
