//! Removes entries of ended flows from the programs' tables, a bounded part at a time, and reports what it counts on the way.
//!
//! A round reads every entry of `half_open`, `flows`, `udp_flows`, `sockets`, `affinity` and `traffic` of both families, at most [`RATE`] entries a
//! second. Then it rests for [`PAUSE`], a fifth more or less. `half_open` comes before the two others: flows move from the one to the others, so none
//! is missed in between. A connection that ends meanwhile may be: its entry carries nothing any more.
//!
//! **The race.** A packet may come for an entry while it is taken out. An entry is over if it was silent for its timeout *and* the entry of the other
//! direction is over or not there; it is taken out by one call that returns what it held at that moment, and if a packet had touched it since it was
//! read, it is put back. So a live flow loses an entry only if a packet comes between that call and the agent's next instruction. That packet
//! must come after a silence of the whole timeout (TCP: 2 h 15 min). The flow never loses both. The programs touch or write again the other direction's entry with the same packet,
//! and that one is read anew before it is taken out in its turn.
//!
//! **By the way** a round counts each backend's connections, since eviction from a full table runs no code and the programs' own counts drift. It
//! also finds which ids of backends that are gone are still referred to, and which drains have no flow left.

mod clients;
mod part;
mod recount;
mod rounds;
mod rules;
mod seen;

use std::time::Duration;

pub use clients::{Client, Clients};
pub use part::{Part, Position, SweepContext};
pub use recount::correction;
pub use rounds::{Order, Rounds};
pub use seen::{Counts, Seen, Start};

/// Entries looked at in a second, at most; an entry taken out counts as [`REMOVAL`].
pub const RATE: u64 = 50_000;
/// Entries looked at in one go, about.
pub const PART: usize = 1_000;
/// Calls that an entry costs which is taken out.
const REMOVAL: usize = 4;
/// Pause between two rounds; a random fifth more or less, so that not all nodes sweep at once.
pub const PAUSE: Duration = Duration::from_secs(5);

/// The tables of a round, in the order in which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweptTable {
    HalfOpen4,
    HalfOpen6,
    Flows4,
    Flows6,
    UdpFlows4,
    UdpFlows6,
    Sockets4,
    Sockets6,
    Affinity4,
    Affinity6,
    Traffic4,
    Traffic6,
}

impl SweptTable {
    pub const ALL: [Self; 12] = [
        Self::HalfOpen4,
        Self::HalfOpen6,
        Self::Flows4,
        Self::Flows6,
        Self::UdpFlows4,
        Self::UdpFlows6,
        Self::Sockets4,
        Self::Sockets6,
        Self::Affinity4,
        Self::Affinity6,
        Self::Traffic4,
        Self::Traffic6,
    ];

    /// Name of its map.
    pub const fn name(self) -> &'static str {
        use lb_common::abi::map_name as name;
        match self {
            Self::HalfOpen4 => name::HALF_OPEN4,
            Self::HalfOpen6 => name::HALF_OPEN6,
            Self::Flows4 => name::FLOWS4,
            Self::Flows6 => name::FLOWS6,
            Self::UdpFlows4 => name::UDP_FLOWS4,
            Self::UdpFlows6 => name::UDP_FLOWS6,
            Self::Sockets4 => name::SOCKETS4,
            Self::Sockets6 => name::SOCKETS6,
            Self::Affinity4 => name::AFFINITY4,
            Self::Affinity6 => name::AFFINITY6,
            Self::Traffic4 => name::TRAFFIC4,
            Self::Traffic6 => name::TRAFFIC6,
        }
    }

    fn after(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }
}

const _: () = {
    let mut i = 0;
    while i < SweptTable::ALL.len() {
        assert!(SweptTable::ALL[i] as usize == i, "ALL is in the order of the kinds");
        i += 1;
    }
};
