//! The per-packet decision: tuple in, verdict out, over any tables.
//!
//! The same code runs in the eBPF programs over the kernel's maps and on the host over plain ones. It knows no packet bytes:
//! parsing and rewriting belong to the hook. Work is bounded: at most [`crate::limits::SERVICE_LOOKUPS`] service look-ups,
//! [`crate::limits::SLOT_ATTEMPTS`] slots and [`crate::limits::PORT_ATTEMPTS`] source ports.

mod affinity;
mod answer;
mod beside;
mod client;
mod direct;
mod entries;
mod fast;
mod health;
mod known;
mod limit;
mod masquerade;
mod node_port;
mod opening;
mod pick;
mod place;
mod quoted;
mod retry;
mod schedule;
mod search;
mod select;
mod step;
mod syn;
mod tables;
mod tunnel;
mod vip;
mod work;

pub use affinity::{holds, recall, remember};
pub use beside::{concerns, foreign, later_fragment, malformed, stray_fragment};
pub use client::{Asker, Client};
pub use entries::pair_key;
pub use health::{accuse, answered, is_suspect};
pub use limit::{Pace, fresh};
pub use node_port::{is_this_node, is_unspecified, loopback, node_port};
pub use pick::{Pick, Picked, Wish};
pub use place::{Reserved, reserve};
pub use quoted::{IcmpError, as_refusal, quoted, refused};
pub use search::look;
pub use select::{pick, stick};
pub use step::{Step, begin, decide, direct, keep, lead, open, place, retry, select, syn};
pub use tables::{NotInserted, Tables};
pub use tunnel::{Inside, inside, is_about_tunnelled, is_tunnelled, quoted_elsewhere};
pub use vip::{echoes, is_unserved, is_vip};
pub use work::{Action, Hook, Now, Packet, Verdict, Work};
