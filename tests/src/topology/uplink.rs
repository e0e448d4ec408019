//! What a host's link to the wire is.

use anyhow::Result;

use super::namespace::Namespace;

/// The link that has a host's addresses and its default route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uplink {
    /// `eth0`.
    #[default]
    Plain,
    /// A bridge, of which `eth0` is a port.
    Bridge,
}

impl Uplink {
    /// Name of the link with the addresses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "eth0",
            Self::Bridge => "br0",
        }
    }

    /// Makes it over `eth0`, which has no address yet.
    pub(super) fn make(self, namespace: &Namespace) -> Result<()> {
        match self {
            Self::Plain => Ok(()),
            Self::Bridge => {
                namespace.ip("link add br0 type bridge mcast_snooping 0\nlink set eth0 master br0\nlink set br0 up")
            }
        }
    }
}
