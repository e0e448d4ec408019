//! Tells the data path what the links do not: the networks of pods and services, the other nodes, and which addresses of the node services
//! are published at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lb_common::abi::{frontend_kind, service_flags};
use tokio::sync::watch;

use lb_datapath::Surroundings;
use lb_model::{Family, Snapshot};
use lb_plan::plan::ProgrammedState;

/// Passes what the agent knows of the cluster to the data path.
#[derive(Debug)]
pub(super) struct Neighbours {
    to: watch::Sender<Surroundings>,
    /// A snapshot without the Node says nothing: the API has not sent it yet. A file that has none is the truth.
    may_be_late: bool,
}

impl Neighbours {
    pub fn new(to: watch::Sender<Surroundings>, may_be_late: bool) -> Self {
        Self { to, may_be_late }
    }

    /// The networks of pods and services, the node's own addresses and those of the others.
    pub fn update_nodes(&self, snapshot: &Snapshot) {
        self.update(|known| Surroundings {
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
        self.update(|known| Surroundings { pods: Some(pods), primary, ..known.clone() });
    }

    /// What is published for external clients; `own`: the node's addresses. Looks at every frontend.
    pub fn update_published(&self, programmed: &ProgrammedState, own: &BTreeSet<IpAddr>) {
        let (mut published, mut families, mut is_direct) = (BTreeSet::new(), BTreeSet::new(), false);
        for (frontend, entry, _) in
            programmed.frontends().iter().filter(|(_, entry, _)| entry.kind != frontend_kind::CLUSTER_IP)
        {
            families.insert(Family::of(frontend.address));
            is_direct |= entry.flags & service_flags::DSR != 0 && entry.kind != frontend_kind::HOST_SOCKET;
            if entry.kind != frontend_kind::NODE_PORT && own.contains(&frontend.address) {
                published.insert(frontend.address);
            }
        }
        self.update(|known| Surroundings { published, families, is_direct, ..known.clone() });
    }

    fn update(&self, change: impl FnOnce(&Surroundings) -> Surroundings) {
        self.to.send_if_modified(|known| {
            let new = change(known);
            let changed = *known != new;
            *known = new;
            changed
        });
    }
}
