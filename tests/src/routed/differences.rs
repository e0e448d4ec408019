//! The cells in which kube-proxy differs from Ballast on purpose. Any other difference is a bug.
//!
//! docs/src/kube-proxy.md holds the same list for users.

use super::{AddressKind, Backend, Cell, Client, Due, Policy};
use crate::agent::Protocol;

/// A difference that is meant.
#[derive(Debug)]
pub struct Difference {
    pub name: &'static str,
    /// Whether it is to be found in this cell.
    pub concerns: fn(Cell) -> bool,
    pub kube_proxy: Finds,
}

/// What a client of kube-proxy finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finds {
    /// One of the things that a client of Ballast may find elsewhere.
    Due(Due),
    /// The process itself may not send (`EPERM`).
    NotPermitted,
}

/// All of them; the first that concerns a cell counts.
pub const DIFFERENCES: [Difference; 6] = [
    Difference {
        name: "bridged pods that ask for themselves",
        // Node 2's pods are on a bridge.
        concerns: |cell| cell.client == Client::Itself && is_inside(cell) && cell.backend == Backend::PodByRoute,
        kube_proxy: Finds::Due(Due::Dropped),
    },
    Difference {
        name: "pods that ask for themselves",
        concerns: |cell| cell.client == Client::Itself && is_inside(cell),
        kube_proxy: Finds::Due(Due::Masqueraded),
    },
    Difference {
        name: "address of processes",
        concerns: |cell| cell.client.is_process() && is_inside(cell) && is_forwarded(cell),
        kube_proxy: Finds::Due(Due::Masqueraded),
    },
    Difference {
        name: "refusal of datagrams of processes",
        concerns: |cell| {
            cell.client.is_process()
                && is_inside(cell)
                && cell.protocol == Protocol::Udp
                && cell.backend == Backend::None
                // At node ports it looks at what comes in, on loopback as well.
                && cell.kind != AddressKind::NodePort
        },
        kube_proxy: Finds::NotPermitted,
    },
    Difference {
        name: "pods at external frontends",
        concerns: |cell| is_inside(cell) && is_external(cell) && cell.policy == Policy::Cluster && is_forwarded(cell),
        kube_proxy: Finds::Due(Due::Masqueraded),
    },
    Difference {
        name: "backends of the same node",
        concerns: |cell| {
            !is_inside(cell)
                && is_external(cell)
                && cell.policy == Policy::Cluster
                && cell.backend.node() == Some(cell.entry())
                && is_forwarded(cell)
        },
        kube_proxy: Finds::Due(Due::Masqueraded),
    },
];

/// The client is on the node that serves it.
fn is_inside(cell: Cell) -> bool {
    cell.client_node() == Some(cell.entry())
}

fn is_external(cell: Cell) -> bool {
    cell.kind != AddressKind::ClusterIp
}

/// The serving node sends it on: it has a backend, and that is no process of the node itself.
fn is_forwarded(cell: Cell) -> bool {
    match cell.backend {
        Backend::None => false,
        Backend::Host => cell.entry() != 0,
        Backend::PeerHost => cell.entry() != 1,
        Backend::Pod | Backend::PodByRoute | Backend::PodByTunnel => true,
    }
}
