//! A probe: the first packet of a connection, from a position, to a frontend.

use std::fmt;
use std::net::IpAddr;

use lb_plan::plan::Frontend;

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Position {
    /// A pod of the cluster.
    Pod,
    /// A process of this node.
    Node,
    /// Neither.
    Outside,
}

impl Position {
    /// It counts as a client of the cluster's inside.
    pub fn is_inside(self) -> bool {
        self != Self::Outside
    }
}

/// A client, and the address that its packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub position: Position,
    pub address: IpAddr,
}

/// The first packet of a flow; both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Probe {
    pub frontend: Frontend,
    pub client: Client,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.client.position {
            Position::Pod => "pod",
            Position::Node => "this node",
            Position::Outside => "outside",
        };
        write!(f, "{} from {who} {}", self.frontend, self.client.address)
    }
}
