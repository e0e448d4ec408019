//! The socket programs on the cgroup root, by pinned links that outlive the agent.

use std::{
    fs,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use aya_obj::generated::bpf_attach_type as At;

use super::{
    DatapathError,
    bpf_link::{self, BpfLink, LinkTarget},
    cgroup::CgroupRoot,
    fault::Fault,
    pins::{Created, Pins},
    programs::{Programs, SOCKET_PROGRAMS},
};

/// The socket programs that only look entries up or remove them: two of each may be attached, each with tables of its own.
const READERS: [&str; 5] = ["recvmsg4", "recvmsg6", "getpeername4", "getpeername6", "sock_release"];

/// Attaches all of them, or replaces the programs of the links that are there.
pub(super) fn attach(
    root: &CgroupRoot,
    programs: &Programs,
    pins: &Pins,
    created: &mut Created,
) -> Result<(), DatapathError> {
    for (name, attach_type) in SOCKET_PROGRAMS {
        let program = programs.get(name).ok_or_else(|| missing(name))?;
        link(root, (name, attach_type), program.descriptor(), pins, &pins.cgroup(name), created)?;
    }
    Ok(())
}

/// Replaces the programs by those of another set of tables, without a moment in which a socket's entry is in none of those that are asked.
/// `move_entries` copies the old set's entries to the new one.
///
/// The new set's readers come first, beside the old ones: each translates what its own tables know. Then the programs that write entries are
/// replaced, and their earlier entries are copied. At last the old readers go.
pub(super) fn switch(
    root: &CgroupRoot,
    program: impl Fn(&str) -> Result<Option<OwnedFd>, DatapathError>,
    pins: &Pins,
    move_entries: impl FnOnce() -> Result<(), DatapathError>,
) -> Result<(), DatapathError> {
    let mut created = Created::default();
    let mut put = |(name, attach_type): (&str, At), path: &Path| {
        let program = program(name)?.ok_or_else(|| missing(name))?;
        link(root, (name, attach_type), program.as_fd(), pins, path, &mut created)
    };
    let (readers, writers): (Vec<_>, Vec<_>) =
        SOCKET_PROGRAMS.into_iter().partition(|(name, _)| READERS.contains(name));
    readers.iter().try_for_each(|one| put(*one, &pins.second_cgroup(one.0)))?;
    writers.iter().try_for_each(|one| put(*one, &pins.cgroup(one.0)))?;
    move_entries()?;
    readers.iter().try_for_each(|one| put(*one, &pins.cgroup(one.0)))?;
    created.keep();
    remove_second(pins)
}

/// Detaches the second links of [`switch`].
pub(super) fn remove_second(pins: &Pins) -> Result<(), DatapathError> {
    for (path, _) in pins.second_cgroups() {
        bpf_link::unpin(&path).map_err(DatapathError::file("remove", &path))?;
    }
    Ok(())
}

/// Attaches a program by a link that is pinned at `path`, or replaces that of the link.
fn link(
    root: &CgroupRoot,
    (name, attach_type): (&str, At),
    program: BorrowedFd<'_>,
    pins: &Pins,
    path: &Path,
    created: &mut Created,
) -> Result<(), DatapathError> {
    let failed = || DatapathError::kernel(format!("attach {name} to the cgroup {}", root.path.display()));
    let pinned = BpfLink::open(path).map_err(failed())?;
    let fits = |link: &BpfLink| link.facts().is_ok_and(|facts| facts.target == LinkTarget::Cgroup { id: root.id });
    if let Some(link) = pinned.as_ref().filter(|link| fits(link)) {
        return link.update(program).map_err(failed());
    }
    // Another cgroup than last time: the new link is there before the old one goes.
    pins.check_there()?;
    let target = bpf_link::descriptor(root.folder.as_fd());
    let link = BpfLink::create(program, target, attach_type, 0).map_err(failed())?;
    if pinned.is_some() {
        fs::remove_file(path).map_err(DatapathError::file("remove", path))?;
    }
    created.expect(path.to_owned());
    link.pin(path).map_err(failed())
}

fn missing(name: &str) -> DatapathError {
    DatapathError::BadObject { reason: format!("no program {name}") }
}

/// Programs that are not attached any more, or that others took the place of.
pub(super) fn faults(root: &CgroupRoot, programs: &Programs, pins: &Pins) -> Vec<Fault> {
    let look = |(name, _): (&str, At)| {
        let facts = BpfLink::open(&pins.cgroup(name)).ok().flatten().and_then(|link| link.facts().ok());
        let hangs = facts.filter(|facts| facts.target == LinkTarget::Cgroup { id: root.id });
        let wanted = programs.get(name).map(|program| program.id);
        let place = format!("cgroup {}", root.path.display());
        (hangs.map(|facts| facts.program_id) != wanted).then(|| Fault::of_program(name, &place, hangs.is_some()))
    };
    SOCKET_PROGRAMS.into_iter().filter_map(look).collect()
}

/// Detaches all of them: socket load balancing was turned off.
pub(super) fn detach(pins: &Pins) -> Result<(), DatapathError> {
    for (path, _) in pins.cgroups() {
        bpf_link::unpin(&path).map_err(DatapathError::file("remove", &path))?;
    }
    remove_second(pins)
}
