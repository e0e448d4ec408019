//! What is asked: a packet, and the hook that meets it first.

use std::net::IpAddr;

use lb_common::abi::{FlowKey, Link, LinkRole, TCP, network_flags};
use lb_common::decide::{Hook, Packet, is_this_node};
use lb_common::map;
use lb_common::state::tcp_flag::{ACK, SYN};
use serde::Serialize;

use super::stored::Stored;

/// A program that may meet the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Seen {
    /// tc ingress of a pod's link
    PodIn,
    /// tc egress of a pod's link
    PodOut,
    /// tc ingress of a bridge
    BridgeIn,
    /// tc ingress of an external or tunnel link
    NodeIn,
    /// tc egress of the same
    NodeOut,
    /// connect() or sendmsg() of a process of this node
    Socket,
}

impl Seen {
    /// What the decision knows of the hook. A socket call has none.
    pub const fn hook(self) -> Hook {
        match self {
            Self::PodIn => Hook::POD_IN,
            Self::PodOut => Hook::POD_OUT,
            Self::BridgeIn => Hook::BRIDGE_IN,
            Self::NodeIn => Hook::NODE_IN,
            Self::NodeOut | Self::Socket => Hook::NODE_OUT,
        }
    }

    /// The hook in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::PodIn => "tc ingress of a pod's link",
            Self::PodOut => "tc egress of a pod's link",
            Self::BridgeIn => "tc ingress of a bridge",
            Self::NodeIn => "tc ingress of an external or tunnel link",
            Self::NodeOut => "tc egress of an external or tunnel link",
            Self::Socket => "socket call of a process of this node",
        }
    }
}

/// The hook, the link, and why it is this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Seat {
    pub program: Seen,
    /// 0: not known, or none.
    pub ifindex: u32,
    pub reason: String,
}

/// The hook that meets a packet from this source first. `sockets`: whether programs are attached to socket calls.
pub fn seat<const N: usize, S: Stored>(stored: &S, source: &[u8; N], shown: IpAddr, sockets: bool) -> Seat {
    let flags = stored.network(source);
    if flags & network_flags::NODE != 0 || is_this_node(source) {
        let program = if sockets { Seen::Socket } else { Seen::NodeOut };
        return Seat { program, ifindex: 0, reason: format!("{shown} is an address of this node") };
    }
    let ifindex = stored.link_to(source);
    let link = stored.get::<map::Links>(&ifindex);
    let role = link.and_then(|Link { role, .. }| LinkRole::from_number(role));
    let (program, kind) = match role {
        Some(LinkRole::Pod) => (Seen::PodIn, "a pod's link"),
        Some(LinkRole::Bridge) => (Seen::PodIn, "a bridge, one of whose ports is the pod's link"),
        Some(LinkRole::Tunnel) => (Seen::NodeIn, "a tunnel link"),
        Some(LinkRole::External) => (Seen::NodeIn, "an external link"),
        None => (Seen::NodeIn, "a link without programs, taken for an external one"),
    };
    // The tables do not show behind which port of a bridge the pod is.
    let ifindex = if role == Some(LinkRole::Bridge) { 0 } else { ifindex };
    Seat { program, ifindex, reason: format!("the route to {shown} leads to {kind}") }
}

/// The packet that is asked about: a client's first one, or the next of a connection that the tables hold.
pub fn packet<const N: usize, S: Stored>(stored: &S, key: FlowKey<N>) -> Packet<N> {
    if key.protocol != TCP {
        return Packet::new(key, 0);
    }
    if let Some(flow) = stored.flow(&key) {
        return Packet { seq: flow.next, ack: flow.ack, ..Packet::new(key, ACK) };
    }
    let isn = stored.get::<map::HalfOpen<N>>(&key).map_or(1_000, |entry| entry.flow.isn);
    Packet { seq: isn, ..Packet::new(key, SYN) }
}
