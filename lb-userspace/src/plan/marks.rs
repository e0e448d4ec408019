//! What keeps endpoints from new flows beside the API: a hand, or an active check.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::PortKey;

/// What is in maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Every endpoint at this address.
    Address(IpAddr),
    Endpoint(SocketAddr),
}

/// Marks that lie over what the API says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub maintenance: BTreeSet<Target>,
    /// Endpoints whose active checks fail.
    pub quarantined: BTreeSet<(PortKey, SocketAddr)>,
}

/// The mark of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    #[default]
    None,
    /// Takes no new flows, unless all of its set are quarantined.
    Quarantined,
    /// Takes no new flows.
    Maintenance,
}
