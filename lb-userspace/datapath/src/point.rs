//! Where on an interface a program runs, and which program runs there for each role.

use std::{fmt, str::FromStr};

use aya_obj::generated::bpf_attach_type;
use lb_common::abi::{LinkRole, link_role};
use serde::Serialize;

/// A place on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Point {
    /// tc ingress: packets that the interface received.
    In,
    /// tc egress: packets about to leave through the interface.
    Out,
    /// XDP: before tc, in the driver or just after it.
    Xdp,
}

impl Point {
    /// All of them, in the order of attaching: what rewrites a pod's replies is there before what makes flows that need it.
    /// The other way round, answers that come between the two would reach the pod as the backend's own, and be lost.
    pub const ALL: [Self; 3] = [Self::Out, Self::In, Self::Xdp];

    pub(super) fn attach_type(self) -> bpf_attach_type {
        match self {
            Self::In => bpf_attach_type::BPF_TCX_INGRESS,
            Self::Out => bpf_attach_type::BPF_TCX_EGRESS,
            Self::Xdp => bpf_attach_type::BPF_XDP,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Xdp => "xdp",
        })
    }
}

impl FromStr for Point {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|point| point.to_string() == text).ok_or(())
    }
}

/// What an interface is to the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The host side of a pod's link.
    Pod,
    Bridge,
    /// Carries the default route or an address of the node.
    External,
    Tunnel,
}

impl Role {
    /// Value of [`lb_common::abi::Link::role`].
    pub fn as_number(self) -> u32 {
        match self {
            Self::Pod => link_role::POD,
            Self::Bridge => link_role::BRIDGE,
            Self::External => link_role::EXTERNAL,
            Self::Tunnel => link_role::TUNNEL,
        }
    }

    /// The role of a number in the `links` map.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match LinkRole::from_number(number)? {
            LinkRole::Pod => Self::Pod,
            LinkRole::Bridge => Self::Bridge,
            LinkRole::External => Self::External,
            LinkRole::Tunnel => Self::Tunnel,
        })
    }

    /// The program for a place; `None`: nothing runs there. `ethernet`: packets begin with an Ethernet header.
    pub fn program(self, point: Point, ethernet: bool) -> Option<&'static str> {
        match (self, point, ethernet) {
            (Self::Pod, Point::In, _) => Some("pod_in"),
            (Self::Pod, Point::Out, _) => Some("pod_out"),
            (Self::Bridge, Point::In, _) => Some("bridge_in"),
            (Self::External | Self::Tunnel, Point::In, true) => Some("node_in"),
            (Self::External | Self::Tunnel, Point::Out, true) => Some("node_out"),
            (Self::External | Self::Tunnel, Point::In, false) => Some("node_in_l3"),
            (Self::External | Self::Tunnel, Point::Out, false) => Some("node_out_l3"),
            (Self::External, Point::Xdp, true) => Some("xdp_node"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for point in Point::ALL {
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        for role in [Role::Pod, Role::Bridge, Role::External, Role::Tunnel] {
            assert_eq!(Role::from_number(role.as_number()), Some(role));
        }
        assert_eq!(Role::from_number(0), None);
    }

    #[test]
    fn links_without_ethernet_get_the_programs_for_bare_packets_and_no_xdp() {
        assert_eq!(Role::Tunnel.program(Point::In, false), Some("node_in_l3"));
        assert_eq!(Role::External.program(Point::Xdp, false), None);
        assert_eq!(Role::External.program(Point::Xdp, true), Some("xdp_node"));
        assert_eq!(Role::Bridge.program(Point::Out, true), None);
    }
}
