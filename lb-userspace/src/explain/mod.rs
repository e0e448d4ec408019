//! What the programs would do with a packet, and why: the decision itself over the pinned maps, without a side effect.
//!
//! [`Live`] reads the maps, [`Overlay`] keeps what the decision writes, [`decide`] runs it. [`explain`] makes an [`Explanation`] of it.

mod build;
mod candidates;
mod change;
mod decision;
mod explanation;
mod live;
mod overlay;
pub mod pod;
mod question;
mod reported;
mod stored;
mod target;
#[cfg(test)]
mod tests;
pub mod text;
mod trace;

use lb_common::decide::{Hook, Packet, Verdict, Work};

pub use build::{PacketAtHook, explain};
pub use explanation::Explanation;
pub use live::Live;
pub use overlay::Overlay;
pub use question::{Seat, Seen, packet, seat};
pub use reported::Reported;
pub use stored::{DecisionContext, Stored};
pub use target::{Client, Destination, NotResolved, Target, resolve};
pub use trace::Trace;

/// The verdict of a hook's program over a packet, and what it reads and writes on the way.
pub fn decide<const N: usize, S: Stored>(
    stored: &S,
    settings: DecisionContext,
    hook: Hook,
    packet: Packet<N>,
) -> (Verdict<N>, Trace) {
    let mut tables = Overlay::new(stored, settings);
    let mut work = Work::new(packet);
    lb_common::decide::decide(&mut tables, &mut work, hook);
    (work.verdict, tables.trace)
}
