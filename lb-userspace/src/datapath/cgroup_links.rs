//! The socket programs on the cgroup root, by pinned links that outlive the agent.

use std::{fs, os::fd::AsFd as _};

use aya_obj::generated::bpf_attach_type as At;

use super::{
    DatapathError,
    bpf_link::{self, BpfLink, LinkTarget},
    cgroup::CgroupRoot,
    faults::Fault,
    pins::{Created, Pins},
    programs::Programs,
};

/// Each socket program and where it is attached.
pub(super) const PROGRAMS: [(&str, At); 11] = [
    ("connect4", At::BPF_CGROUP_INET4_CONNECT),
    ("connect6", At::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", At::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", At::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", At::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", At::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", At::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", At::BPF_CGROUP_INET6_GETPEERNAME),
    ("post_bind4", At::BPF_CGROUP_INET4_POST_BIND),
    ("post_bind6", At::BPF_CGROUP_INET6_POST_BIND),
    ("sock_release", At::BPF_CGROUP_INET_SOCK_RELEASE),
];

/// Attaches all of them, or replaces the programs of the links that are there.
pub(super) fn attach(
    root: &CgroupRoot,
    programs: &Programs,
    pins: &Pins,
    created: &mut Created,
) -> Result<(), DatapathError> {
    for (name, attach_type) in PROGRAMS {
        let program =
            programs.get(name).ok_or_else(|| DatapathError::BadObject { reason: format!("no program {name}") })?;
        let path = pins.cgroup(name);
        let failed = || DatapathError::kernel(format!("attach {name} to the cgroup {}", root.path.display()));
        let pinned = BpfLink::open(&path).map_err(failed())?;
        let fits = |link: &BpfLink| link.facts().is_ok_and(|facts| facts.target == LinkTarget::Cgroup { id: root.id });
        if let Some(link) = pinned.as_ref().filter(|link| fits(link)) {
            link.update(program.descriptor()).map_err(failed())?;
            continue;
        }
        // Another cgroup than last time: the new link is there before the old one goes.
        pins.check_there()?;
        let target = bpf_link::descriptor(root.folder.as_fd());
        let link = BpfLink::create(program.descriptor(), target, attach_type, 0).map_err(failed())?;
        if pinned.is_some() {
            fs::remove_file(&path).map_err(DatapathError::file("remove", &path))?;
        }
        created.expect(path.clone());
        link.pin(&path).map_err(failed())?;
    }
    Ok(())
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
    PROGRAMS.into_iter().filter_map(look).collect()
}

/// Detaches all of them: socket load balancing was turned off.
pub(super) fn detach(pins: &Pins) -> Result<(), DatapathError> {
    for (path, _) in pins.cgroups() {
        bpf_link::unpin(&path).map_err(DatapathError::file("remove", &path))?;
    }
    Ok(())
}
