//! Removes entries of ended flows from the programs' tables, a bounded part at a time, and reports what it counts on the way.
//!
//! A round reads every entry of `half_open`, `flows`, `udp_flows`, `sockets`, `affinity` and `traffic` of both families, at most [`RATE`] entries a
//! second. Then it rests for [`PAUSE`], a fifth more or less. `half_open` comes before the two others: flows move from the one to the others, so none
//! is missed in between. A connection that ends meanwhile may be: its entry carries nothing any more.
//!
//! **The race.** A packet may come for an entry while it is taken out. An entry is over if it was silent for its timeout *and* the entry of the other
//! direction is over or not there; it is taken out by one call that returns what it held at that moment, and if a packet had touched it since it was
//! read, it is put back. So a live flow loses an entry only if a packet comes between that call and the agent's next instruction. That packet
//! must come after a silence of the whole timeout (TCP: 24 h, or 2 h 15 min once half of the table is taken). The flow never loses both. The programs touch or write again the other direction's entry with the same packet,
//! and that one is read anew before it is taken out in its turn.
//!
//! **By the way** a round counts each backend's connections, since eviction from a full table runs no code and the programs' own counts drift. It
//! also finds which ids of backends that are gone are still referred to, and which drains have no flow left. Both ends of an established TCP connection
//! whose backend is gone get a RST.

mod clients;
mod part;
mod recount;
mod reset;
mod rounds;
mod rules;
mod seen;

use std::time::Duration;

use lb_common::map::{self, Map as _};

pub use clients::{Client, Clients};
use lb_model::Family;
pub use part::{Part, Position, SweepContext};
pub use recount::correction;
pub use reset::{Reset, SendReset};
pub use rounds::{Order, Rounds};
pub use seen::{Counts, Seen, Start};

/// Entries looked at in a second, at most; an entry taken out, or a RST, counts as [`REMOVAL`].
pub const RATE: u64 = 50_000;
/// Entries looked at in one go, about.
pub const PART: usize = 1_000;
/// Calls that an entry costs which is taken out, or whose sender gets a RST.
const REMOVAL: usize = 4;
/// Pause between two rounds; a random fifth more or less, so that not all nodes sweep at once.
pub const PAUSE: Duration = Duration::from_secs(5);

/// What a table of a round holds, in the order in which they are read. The order is a decision: no mark of the maps' declaration can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweptKind {
    HalfOpen,
    Flows,
    UdpFlows,
    Sockets,
    Affinity,
    Traffic,
}

impl SweptKind {
    const ALL: [Self; 6] = [Self::HalfOpen, Self::Flows, Self::UdpFlows, Self::Sockets, Self::Affinity, Self::Traffic];

    const fn name<const N: usize>(self) -> &'static str {
        match self {
            Self::HalfOpen => map::HalfOpen::<N>::NAME,
            Self::Flows => map::Flows::<N>::NAME,
            Self::UdpFlows => map::UdpFlows::<N>::NAME,
            Self::Sockets => map::Sockets::<N>::NAME,
            Self::Affinity => map::Affinity::<N>::NAME,
            Self::Traffic => map::Traffic::<N>::NAME,
        }
    }
}

/// A table of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SweptTable {
    pub kind: SweptKind,
    pub family: Family,
}

impl SweptTable {
    const FIRST: Self = Self { kind: SweptKind::HalfOpen, family: Family::V4 };

    fn all() -> impl Iterator<Item = Self> {
        SweptKind::ALL.into_iter().flat_map(|kind| Family::ALL.map(|family| Self { kind, family }))
    }

    /// Name of its map.
    pub const fn name(self) -> &'static str {
        match self.family {
            Family::V4 => self.kind.name::<4>(),
            Family::V6 => self.kind.name::<16>(),
        }
    }

    fn after(self) -> Option<Self> {
        Self::all().find(|other| *other > self)
    }
}
