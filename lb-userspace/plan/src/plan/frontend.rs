//! Addresses that services are reached by, and how each leads to their endpoints.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use lb_common::abi::{self, FrontendKind};

use super::Range;
use lb_model::Protocol;

/// One (address, port, protocol) that services are reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

impl Frontend {
    /// The seal that an entry must have to belong here.
    pub fn seal(self, entry: &abi::Service) -> u32 {
        match self.address {
            IpAddr::V4(v4) => abi::seal(&self.key(v4.octets()), entry),
            IpAddr::V6(v6) => abi::seal(&self.key(v6.octets()), entry),
        }
    }

    /// The key in `services4` or `services6`; `address` is this frontend's own.
    pub fn key<const N: usize>(self, address: [u8; N]) -> abi::ServiceKey<N> {
        abi::ServiceKey { address, port: self.port, protocol: self.protocol.number(), pad: 0 }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.protocol)
    }
}

/// One of the two sets of endpoints of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Of the whole cluster.
    Cluster,
    /// Of this node.
    Local,
}

/// The slot ranges of the two sets, of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    pub cluster: Range,
    pub local: Range,
}

impl Ranges {
    pub fn of(&self, set: Set) -> Range {
        match set {
            Set::Cluster => self.cluster,
            Set::Local => self.local,
        }
    }
}

/// How a frontend uses its service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    pub kind: FrontendKind,
    /// The set for pods of the cluster and processes of this node.
    pub inside: Set,
    /// The set for everybody else.
    pub outside: Set,
    /// [`abi::service_flags`].
    pub flags: u8,
}
