//! Attachments and entries that somebody else took away or changed: found by a check of each, reported by name, repaired by the next round.

use rtnetlink::Handle;

use super::{
    Datapath, DatapathError,
    attach::{Attacher, Attachment, How},
    bpf_link::{BpfLink, LinkTarget},
    cgroup_links, clsact,
    fault::{Auditor, Fault},
    net::Net,
    pins::Created,
    point::Point,
};

/// Where a fault is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Interface(u32, Point),
    Cgroup,
    ProgramArrays,
}

/// One fault, and where to look whether it is repaired.
pub(super) struct Found {
    fault: Fault,
    at: At,
}

impl Datapath {
    /// A handle for questions while the interfaces are followed.
    pub fn auditor(&self) -> Auditor {
        Auditor(self.questions.0.clone())
    }

    /// What is not as it was attached, on interfaces that are still there.
    pub(super) async fn look_for_faults(&self, handle: &mut Handle, net: &Net) -> Result<Vec<Found>, DatapathError> {
        let mut found = Vec::new();
        for ((ifindex, point), attachment) in
            self.attacher.attached.iter().filter(|((ifindex, _), _)| net.contains(*ifindex))
        {
            let hangs = self.attacher.hangs(handle, *ifindex, attachment).await?;
            let wanted = self.kernel.programs.at_hook(attachment.program.as_str()).map(|program| program.id);
            if hangs == wanted {
                continue;
            }
            let name = self.links.names().get(ifindex).map_or_else(|| ifindex.to_string(), |(name, _)| name.clone());
            let place = format!("{name} ({point}, {})", attachment.how);
            let fault = Fault::of_program(&attachment.program, &place, hangs.is_some());
            found.push(Found { fault, at: At::Interface(*ifindex, *point) });
        }
        if let Some(root) = self.cgroup.as_ref().filter(|_| !self.is_moving()) {
            let faults = cgroup_links::faults(root, &self.kernel.programs, self.attacher.pins());
            found.extend(faults.into_iter().map(|fault| Found { fault, at: At::Cgroup }));
        }
        let programs = &self.kernel.programs;
        let faults = programs.arrays().iter().flat_map(|array| array.faults(|name| programs.get(name)));
        found.extend(faults.map(|fault| Found { fault, at: At::ProgramArrays }));
        Ok(found)
    }

    /// Attaches the socket programs again, and fills the program arrays, where one of them is at fault.
    pub(super) fn repair_at_once(&self, found: &mut [Found]) {
        let mut places: Vec<At> = found.iter().map(|one| one.at).collect();
        places.dedup();
        for at in places {
            let done = match at {
                // The round attaches it.
                At::Interface(..) => continue,
                At::Cgroup => self.attach_to_cgroup(),
                At::ProgramArrays => self.kernel.programs.fill_arrays(),
            };
            if let Err(error) = &done {
                tracing::warn!(%error, "what somebody else changed is not put right");
            }
            for one in found.iter_mut().filter(|one| one.at == at) {
                one.fault.is_repaired = done.is_ok();
            }
        }
    }

    fn attach_to_cgroup(&self) -> Result<(), DatapathError> {
        let Some(root) = &self.cgroup else { return Ok(()) };
        let mut created = Created::default();
        let done = cgroup_links::attach(root, &self.kernel.programs, self.attacher.pins(), &mut created);
        created.keep();
        done
    }

    /// After a round: those that it has put right are kept for who asks; one whose interface went is none.
    pub(super) fn keep_faults(&mut self, found: Vec<Found>) {
        for Found { mut fault, at } in found {
            match at {
                At::Interface(ifindex, point) => {
                    let at = (ifindex, point);
                    fault.is_repaired = self.attacher.attached.contains_key(&at);
                    if !fault.is_repaired && !self.attacher.problems.contains_key(&at) {
                        continue;
                    }
                }
                At::Cgroup | At::ProgramArrays => {}
            }
            self.reports.keep_fault(fault);
        }
    }
}

/// Those of a dry run.
pub(super) fn plain(found: Vec<Found>) -> Vec<Fault> {
    found.into_iter().map(|one| one.fault).collect()
}

impl Attacher {
    /// Id of the program that hangs where this attachment should; `None`: none does.
    async fn hangs(
        &self,
        handle: &mut Handle,
        ifindex: u32,
        attachment: &Attachment,
    ) -> Result<Option<u32>, DatapathError> {
        if attachment.how == How::Clsact {
            let side = clsact::side(handle, ifindex, attachment.point).await?;
            return Ok(side.ours.map(|filter| filter.program_id));
        }
        let path = self.pins().interface(ifindex, attachment.point, &attachment.how.to_string());
        let link = BpfLink::open(&path).map_err(DatapathError::file("open", &path))?;
        let facts = link.and_then(|link| link.facts().ok());
        let here = |target| matches!(target, LinkTarget::Tcx { ifindex: at } | LinkTarget::Xdp { ifindex: at } if at == ifindex);
        Ok(facts.filter(|facts| here(facts.target)).map(|facts| facts.program_id))
    }
}
