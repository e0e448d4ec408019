//! Tells the data path what the links do not: the networks of the pods, and which addresses of the node services are published at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lb_common::abi::frontend_kind;
use tokio::sync::watch;

use crate::datapath::Surroundings;
use crate::model::Snapshot;
use crate::plan::Book;

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

    /// What is known now. `snapshot`: `None` before the first one.
    pub fn tell(&self, snapshot: Option<&Snapshot>, book: &Book, own: &BTreeSet<IpAddr>) {
        let published = published(book, own);
        self.to.send_if_modified(|known| {
            let mut new = Surroundings { published, ..known.clone() };
            if let Some(node) = snapshot.and_then(|snapshot| snapshot.node.as_ref()) {
                new.pods = Some(node.pod_cidrs.iter().copied().collect());
                new.primary = node.addresses.iter().copied().collect();
            } else if snapshot.is_some() && !self.may_be_late {
                new.pods = Some(BTreeSet::new());
                new.primary = BTreeSet::new();
            }
            let changed = *known != new;
            *known = new;
            changed
        });
    }
}

fn published(book: &Book, own: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let outer = |kind: u8| kind == frontend_kind::LOAD_BALANCER || kind == frontend_kind::EXTERNAL_IP;
    let frontends = book.frontends.iter().filter(|(_, entry)| outer(entry.kind));
    frontends.map(|(frontend, _)| frontend.address).filter(|address| own.contains(address)).collect()
}
