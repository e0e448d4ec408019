//! Programs of an earlier agent by links that are not pinned here: a second one beside them would translate packets twice.

use std::{collections::BTreeSet, os::fd::AsFd as _, thread, time::Duration};

use super::{
    DatapathError,
    bpf_link::{self, BpfLink, descriptor},
    cgroup::CgroupRoot,
    cgroup_links,
    pins::Pins,
    point::Point,
    programs::INTERFACE_PROGRAMS,
    status::program_names,
};

/// How many programs of one place are looked at.
const MOST_PROGRAMS: usize = 64;
/// A link that is pinned nowhere goes with its agent, or a moment later.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// Refuses if a program of ours hangs on an interface or the cgroup by a link that is not pinned in this folder. It needs
/// `CAP_SYS_ADMIN`, which shows names of programs: without it, nothing is found.
pub(super) fn check(pins: &Pins, cgroup: Option<&CgroupRoot>) -> Result<(), DatapathError> {
    let mut found = look(pins, cgroup)?;
    for _ in 1..LOOKS {
        if found.is_none() {
            return Ok(());
        }
        thread::sleep(PAUSE);
        found = look(pins, cgroup)?;
    }
    found.map_or(Ok(()), |(program, place)| Err(DatapathError::Beside { program, place, pins: pins.maps().to_owned() }))
}

/// Name and place of the first such program.
fn look(pins: &Pins, cgroup: Option<&CgroupRoot>) -> Result<Option<(String, String)>, DatapathError> {
    let unpinned = unpinned(pins, cgroup)?;
    if unpinned.is_empty() {
        return Ok(None);
    }
    let names = program_names();
    let sockets = cgroup_links::PROGRAMS.map(|(name, _)| name);
    let is_ours = |name: &str| INTERFACE_PROGRAMS.contains(&name) || sockets.contains(&name);
    Ok(unpinned.into_iter().find_map(|(id, place)| Some((names.get(&id).filter(|name| is_ours(name))?.clone(), place))))
}

/// Id and place of each program whose link is not pinned here, ours or not.
fn unpinned(pins: &Pins, cgroup: Option<&CgroupRoot>) -> Result<Vec<(u32, String)>, DatapathError> {
    let paths = pins.interfaces().into_iter().map(|(path, ..)| path);
    let paths = paths.chain(pins.cgroups().into_iter().map(|(path, _)| path));
    let links = paths.filter_map(|path| BpfLink::open(&path).ok().flatten());
    let pinned: BTreeSet<u32> = links.filter_map(|link| Some(link.facts().ok()?.program_id)).collect();
    let mut found = Vec::new();
    let mut add = |target, attach_type, place: &str| {
        let programs = bpf_link::programs_at::<MOST_PROGRAMS>(target, attach_type);
        let programs = programs.map_err(DatapathError::kernel(format!("ask for the programs on {place}")))?;
        let unpinned = programs.into_iter().filter(|id| !pinned.contains(id));
        found.extend(unpinned.map(|id| (id, place.to_owned())));
        Ok::<_, DatapathError>(())
    };
    let interfaces = nix::net::if_::if_nameindex().map_err(std::io::Error::from);
    for interface in &interfaces.map_err(DatapathError::kernel("list the interfaces"))? {
        for point in [Point::In, Point::Out] {
            add(interface.index(), point.attach_type(), &interface.name().to_string_lossy())?;
        }
    }
    for (_, attach_type) in cgroup_links::PROGRAMS {
        if let Some(root) = cgroup {
            add(descriptor(root.folder.as_fd()), attach_type, &root.path.display().to_string())?;
        }
    }
    Ok(found)
}
