//! Tells the data path what the links do not: the networks of pods and services, the other nodes, and which addresses of the node services
//! are published at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lb_common::abi::{frontend_kind, service_flags};
use tokio::sync::watch;

use crate::datapath::Surroundings;
use crate::model::{Family, Snapshot};
use crate::plan::ProgrammedState;

/// Who tells.
#[derive(Debug)]
pub(super) struct Neighbours {
    to: watch::Sender<Surroundings>,
    /// A snapshot without the Node says nothing: the API has not told it yet. A file that has none is the truth.
    may_be_late: bool,
}

impl Neighbours {
    pub fn new(to: watch::Sender<Surroundings>, may_be_late: bool) -> Self {
        Self { to, may_be_late }
    }

    /// The networks of pods and services, the node's own addresses and those of the others.
    pub fn tell_nodes(&self, snapshot: &Snapshot) {
        self.tell(|known| Surroundings {
            peers: snapshot.peers.clone().or(known.peers.clone()),
            service_cidrs: snapshot.service_cidrs.clone().or(known.service_cidrs.clone()),
            ..known.clone()
        });
        let node = match &snapshot.node {
            Some(node) => (node.pod_cidrs.iter().copied().collect(), node.addresses.iter().copied().collect()),
            None if self.may_be_late => return,
            None => (BTreeSet::new(), BTreeSet::new()),
        };
        let (pods, primary) = node;
        self.tell(|known| Surroundings { pods: Some(pods), primary, ..known.clone() });
    }

    /// What is published for external clients; `own`: the node's addresses. Looks at every frontend.
    pub fn tell_published(&self, programmed: &ProgrammedState, own: &BTreeSet<IpAddr>) {
        let (mut published, mut families, mut is_direct) = (BTreeSet::new(), BTreeSet::new(), false);
        for (frontend, entry) in
            programmed.frontends.iter().filter(|(_, entry)| entry.kind != frontend_kind::CLUSTER_IP)
        {
            families.insert(Family::of(frontend.address));
            is_direct |= entry.flags & service_flags::DSR != 0 && entry.kind != frontend_kind::HOST_SOCKET;
            if entry.kind != frontend_kind::NODE_PORT && own.contains(&frontend.address) {
                published.insert(frontend.address);
            }
        }
        self.tell(|known| Surroundings { published, families, is_direct, ..known.clone() });
    }

    fn tell(&self, update: impl FnOnce(&Surroundings) -> Surroundings) {
        self.to.send_if_modified(|known| {
            let new = update(known);
            let changed = *known != new;
            *known = new;
            changed
        });
    }
}
