//! Requests to the kernel over netlink. Messages are those of the netlink-packet crates, and [`Message`] where they have none.
//!
//! The crate netlink-packet-netfilter (0.4) lacks what conntrack says of NAT, zones and SCTP. It refuses a whole rule of nftables for one expression that
//! it cannot read. So netfilter has [`Message`], too.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod attributes;
mod message;
pub mod nf_tables;
pub mod route;
mod socket;

pub use attributes::{Attributes, attributes, big16, big32, find, text};
pub use lb_common::family::Family;
pub use message::Message;
pub use socket::{Socket, is_without, unless};
