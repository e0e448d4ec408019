//! The address families that a cluster has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Addresses;

/// What hosts, pods and Services have addresses of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    #[default]
    Both,
    /// No interface has an IPv4 address, not even the loopback.
    Ipv6,
}

impl Families {
    /// For tests of both kinds of clusters.
    pub const ALL: [Self; 2] = [Self::Both, Self::Ipv6];

    /// Those of the addresses that a host or Service has.
    pub fn of(self, addresses: Addresses) -> Vec<IpAddr> {
        addresses.both().into_iter().filter(|address| address.is_ipv6() || self == Self::Both).collect()
    }

    /// As Kubernetes names them.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Both => &["IPv4", "IPv6"],
            Self::Ipv6 => &["IPv6"],
        }
    }

    /// The first address of the loopback.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::Both => Ipv4Addr::LOCALHOST.into(),
            Self::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The `ip` commands for these families.
    pub(crate) fn commands(self, v4: &str, v6: &str) -> String {
        match self {
            Self::Both => format!("{v4}\n{v6}"),
            Self::Ipv6 => v6.to_owned(),
        }
    }

    /// The `ip` commands that set the loopback up. The kernel gives it an IPv4 address by itself.
    pub(super) fn loopback_commands(self) -> &'static str {
        match self {
            Self::Both => "link set lo up",
            Self::Ipv6 => "link set lo up\naddress delete 127.0.0.1/8 dev lo",
        }
    }
}
