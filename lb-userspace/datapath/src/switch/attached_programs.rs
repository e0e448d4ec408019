//! What of ours hangs at the interfaces, by pins and filters.

use crate::{
    DatapathError,
    bpf_link::{BpfLink, LinkTarget},
    clsact,
    error::netlink_thread,
    net::name_of,
    pins::Pins,
    point::Point,
};

/// A place where a program of ours hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Interface and attach point.
    pub name: String,
    pub program_id: u32,
}

/// Every place in this network namespace.
pub fn attached_programs(pins: &Pins) -> Result<Vec<AttachedProgram>, DatapathError> {
    let name = |ifindex: u32, point| {
        let name = name_of(ifindex).unwrap_or_else(|| ifindex.to_string());
        format!("{name} ({point})")
    };
    let mut attached_programs = Vec::new();
    for (path, ifindex, point, _) in pins.interfaces() {
        let facts = BpfLink::open(&path).ok().flatten().and_then(|link| link.facts().ok());
        let Some(facts) = facts else { continue };
        let is_here =
            matches!(facts.target, LinkTarget::Tcx { ifindex: at } | LinkTarget::Xdp { ifindex: at } if at == ifindex);
        if is_here {
            attached_programs.push(AttachedProgram { name: name(ifindex, point), program_id: facts.program_id });
        }
    }
    let filters = netlink_thread(|mut handle| async move {
        let mut found = Vec::new();
        for ifindex in clsact::interfaces(&mut handle).await? {
            for point in [Point::In, Point::Out] {
                let ours = clsact::side(&mut handle, ifindex, point).await?.ours;
                found.extend(ours.map(|filter| (ifindex, point, filter.program_id)));
            }
        }
        Ok(found)
    })?;
    attached_programs.extend(
        filters
            .into_iter()
            .map(|(ifindex, point, program_id)| AttachedProgram { name: name(ifindex, point), program_id }),
    );
    Ok(attached_programs)
}
