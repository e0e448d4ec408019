//! The per-packet decision: tuple in, verdict out, over any tables.
//!
//! The code runs in the eBPF programs over the kernel's maps and on the host over plain ones. It knows no packet bytes:
//! parsing and rewriting belong to the hook. Work is bounded: at most [`crate::limits::SERVICE_LOOKUPS`] service look-ups,
//! [`crate::limits::SLOT_ATTEMPTS`] slots and [`crate::limits::PORT_ATTEMPTS`] source ports. What is not inline keeps its variables off
//! its caller's stack.

mod adopted;
mod affinity;
mod allocate;
mod client;
mod closing;
mod collision;
mod commit;
mod connect_time;
mod connection;
mod decision;
mod dsr;
mod established;
mod fast_path;
mod flow_tables;
mod forward;
mod frontend;
mod handshake;
mod icmp;
mod lifetime;
mod limit;
mod maps;
mod nat;
mod node_port;
mod open;
mod outlier;
mod packet;
mod pick;
mod rate;
mod related;
mod retained;
mod retry;
mod schedule;
mod search;
mod second;
mod select;
mod share;
mod step;
mod tables;
mod transition;
mod verdict;
mod vip;
mod work;

pub use affinity::{holds, recall, remember, stick};
pub use allocate::{allocate, lead};
pub use client::{Asker, Client};
pub use collision::direct;
pub use commit::established::keep_entries;
pub use commit::handshake::{accept, establish};
pub use commit::tuple::reserve;
pub use connection::{Connection, Direction, is_pair, pair_key};
pub use decision::{begin, decide};
pub use dsr::{Inside, inside, is_about_tunnelled, is_tunnelled, quoted_elsewhere};
pub use established::established;
pub use flow_tables::{Accepted, Established, FlowTables, Keeping, Reserved};
pub use icmp::{as_refusal, quoted, refused};
pub use maps::{ElementOf, FlowRef, Maps, NotInserted};
pub use node_port::{is_this_node, is_unspecified, loopback, node_port};
pub use open::{complete, open};
pub use outlier::{answered, failed, is_out, leaves_half, note_tried};
pub use packet::{Hook, Now, Packet};
pub use pick::{Pick, Picked, Wish};
pub use rate::{Pace, fresh};
pub use related::{concerns, foreign, later_fragment, malformed, stray_fragment};
pub use retry::retry;
pub use search::{try_slot, try_slot_for};
pub use select::{pick, select};
pub use step::Step;
pub use tables::Tables;
pub use verdict::{Action, Verdict};
pub use vip::{echoes, is_unserved, is_vip};
pub use work::Work;
