//! Programs of an earlier agent by links that are not pinned here: a second one beside them would translate packets twice.

use std::collections::BTreeSet;

use super::{
    DatapathError,
    bpf_link::{self, BpfLink},
    pins::Pins,
    point::Point,
    programs::INTERFACE_PROGRAMS,
    status::program_names,
};

/// How many programs of one place are looked at.
const MOST_PROGRAMS: usize = 64;

/// Refuses if a program of ours hangs on an interface by a link that is not pinned in this folder. It needs `CAP_SYS_ADMIN`, which shows
/// names of programs: without it, nothing is found.
pub(super) fn check(pins: &Pins) -> Result<(), DatapathError> {
    let unpinned = unpinned(pins)?;
    if unpinned.is_empty() {
        return Ok(());
    }
    let names = program_names();
    let ours = |id| names.get(id).filter(|name| INTERFACE_PROGRAMS.contains(&name.as_str()));
    let found = unpinned.iter().find_map(|(id, place)| Some((ours(id)?.clone(), place.clone())));
    found.map_or(Ok(()), |(program, place)| Err(DatapathError::Beside { program, place, pins: pins.root().to_owned() }))
}

/// Id and place of each program whose link is not pinned here, ours or not. Those of the cgroup are not looked at: their names
/// (`connect4`) are those that others give, too.
fn unpinned(pins: &Pins) -> Result<Vec<(u32, String)>, DatapathError> {
    let links = pins.interfaces().into_iter().filter_map(|(path, ..)| BpfLink::open(&path).ok().flatten());
    let pinned: BTreeSet<u32> = links.filter_map(|link| Some(link.facts().ok()?.program_id)).collect();
    let mut found = Vec::new();
    let interfaces = nix::net::if_::if_nameindex().map_err(std::io::Error::from);
    for interface in &interfaces.map_err(DatapathError::kernel("list the interfaces"))? {
        let place = interface.name().to_string_lossy();
        for point in [Point::In, Point::Out] {
            let programs = bpf_link::tcx_programs::<MOST_PROGRAMS>(interface.index(), point.attach_type());
            let programs = programs.map_err(DatapathError::kernel(format!("ask for the programs on {place}")))?;
            let unpinned = programs.into_iter().filter(|id| !pinned.contains(id));
            found.extend(unpinned.map(|id| (id, place.clone().into_owned())));
        }
    }
    Ok(found)
}
