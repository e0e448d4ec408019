//! The interfaces with programs as last seen, and what the map `links` holds of each.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::MapError as AyaMapError;
use lb_common::abi::{Link, link_flags};

use super::{
    DatapathError,
    attach::Attacher,
    fast_path,
    load::Kernel,
    net::Wanted,
    point::Role,
    serving::{self, Served},
};

/// Interfaces by index.
#[derive(Debug)]
pub(super) struct Links {
    names: BTreeMap<u32, (String, Role)>,
    served: BTreeMap<u32, Served>,
    /// What the map `links` holds.
    mapped: BTreeMap<u32, Link>,
    /// Those that send what XDP redirects to them.
    senders: BTreeSet<u32>,
    /// Those at whose other end packets are handed over.
    hands_over: BTreeSet<u32>,
    /// Those by which packets of pods leave for other nodes, past the host's stack.
    outlets: BTreeSet<u32>,
}

impl Links {
    /// With the flags that an agent before this one gave.
    pub fn restore(kernel: &Kernel) -> Self {
        let flagged = |flag: u32| {
            let links = kernel.links.iter().flatten();
            links.filter(|(_, link)| link.flags & flag != 0).map(|(ifindex, _)| ifindex).collect()
        };
        Self {
            names: BTreeMap::new(),
            served: BTreeMap::new(),
            mapped: BTreeMap::new(),
            senders: flagged(link_flags::XDP_SENDS),
            hands_over: flagged(link_flags::FAST_PATH),
            outlets: flagged(link_flags::SENDS_ON),
        }
    }

    /// Name and role of each.
    pub fn names(&self) -> &BTreeMap<u32, (String, Role)> {
        &self.names
    }

    /// How a link to the outside is served; `None`: any other, or not known.
    pub fn served(&self, ifindex: u32) -> Option<&Served> {
        self.served.get(&ifindex)
    }

    /// Programs were attached to these.
    pub fn note_attached(&mut self, wanted: &BTreeMap<u32, Wanted>, attacher: &Attacher) {
        self.senders = serving::senders(wanted, attacher);
        self.hands_over = fast_path::links(wanted, attacher);
        self.outlets = fast_path::outlets(wanted, attacher);
        self.served = serving::served(wanted, attacher);
    }

    /// These are all that have programs.
    pub fn note_names(&mut self, wanted: BTreeMap<u32, Wanted>) {
        self.names = wanted.into_iter().map(|(ifindex, link)| (ifindex, (link.name, link.role))).collect();
    }

    /// Writes the interface's entry of the map, if it differs.
    pub fn map(&mut self, kernel: &mut Kernel, wanted: &Wanted) -> Result<(), DatapathError> {
        let flag = |links: &BTreeSet<u32>, flag| if links.contains(&wanted.ifindex) { flag } else { 0 };
        let flags = flag(&self.senders, link_flags::XDP_SENDS)
            | flag(&self.hands_over, link_flags::FAST_PATH)
            | flag(&self.outlets, link_flags::SENDS_ON);
        let link = Link { peer_netns_id: wanted.peer_netns_id, role: wanted.role.as_number(), flags };
        if self.mapped.get(&wanted.ifindex) != Some(&link) {
            kernel.links.insert(wanted.ifindex, link, 0).map_err(aya::EbpfError::MapError)?;
            self.mapped.insert(wanted.ifindex, link);
        }
        Ok(())
    }

    /// Removes what the maps hold of the interface.
    pub fn unmap(&mut self, kernel: &mut Kernel, ifindex: u32) -> Result<(), DatapathError> {
        self.mapped.remove(&ifindex);
        gone(kernel.peer_macs.remove(&ifindex))?;
        gone(kernel.links.remove(&ifindex))
    }

    /// Reads again what the map holds.
    pub fn read(&mut self, kernel: &Kernel) -> Result<(), DatapathError> {
        let entries: Result<_, AyaMapError> = kernel.links.iter().collect();
        self.mapped = entries.map_err(aya::EbpfError::MapError)?;
        Ok(())
    }

    /// Interfaces that the map holds.
    pub fn mapped(&self) -> impl Iterator<Item = &u32> {
        self.mapped.keys()
    }
}

/// What is not there is as good as removed.
fn gone(removed: Result<(), AyaMapError>) -> Result<(), DatapathError> {
    match removed {
        Ok(()) | Err(AyaMapError::KeyNotFound) => Ok(()),
        Err(AyaMapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(aya::EbpfError::MapError(error).into()),
    }
}
