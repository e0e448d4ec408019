//! Incident A: backends vanish without a FIN while connections are stuck open, under load, and the agent dies at random. Packets
//! are watched where backends receive them, drains in the tables themselves.

mod bulk;
mod held_connections;
mod objects;
mod packets;
mod scenario;
mod server;
mod soak;
mod tables;

use rustix::time::{ClockId, clock_gettime};

pub use bulk::Bulk;
pub use held_connections::{Held, HeldConnections};
pub use packets::{Packets, Seen};
pub use scenario::{Churned, Scenario, ScenarioSettings};
pub use soak::{Sample, Soaked, soak};
pub use tables::{Drains, TableReader};

/// `CLOCK_MONOTONIC` in nanoseconds, which the programs' deadlines are of.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    s * 1_000_000_000 + ns
}
