//! Connect times of ids that are given up: those of a backend become its service's, so that the sums for services only grow.

use std::io;

use lb_common::abi::{ConnectKey, stat_kind};
use lb_common::map;

use crate::plan::BackendId;
use lb_model::Family;
use lb_tables::Pinned;

/// Adds what a backend has to what its service keeps of earlier ones. The backend's own record is still there.
pub(super) fn retire(maps: &Pinned, id: BackendId) -> io::Result<()> {
    let Some(map) = maps.find::<map::ConnectTimes>() else { return Ok(()) };
    let kind = if id.family == Family::V4 { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
    let key = ConnectKey { id: id.id, kind: kind.into() };
    // Most backends of a node have none. An operation that is repeated finds its work done.
    let Some(times) = map.get(&key)? else { return Ok(()) };
    map.remove(&key)?;
    let service = match id.family {
        Family::V4 => maps.of::<map::Backends<4>>().get(&id.id)?.map(|backend| backend.service),
        Family::V6 => maps.of::<map::Backends<16>>().get(&id.id)?.map(|backend| backend.service),
    };
    let Some(service) = service.filter(|service| *service != 0) else { return Ok(()) };
    let kept = ConnectKey { id: service, kind: stat_kind::SERVICE.into() };
    let mut sum = map.get(&kept)?.unwrap_or_default();
    sum.add(&times);
    map.put(&kept, &sum)
}

/// Removes what a service kept.
pub(super) fn forget(maps: &Pinned, service: u32) -> io::Result<()> {
    let key = ConnectKey { id: service, kind: stat_kind::SERVICE.into() };
    maps.find::<map::ConnectTimes>().map_or(Ok(()), |map| map.remove(&key).map(drop))
}
