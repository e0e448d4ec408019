//! What the programs would do with a packet, and why: the decision itself over the pinned maps, without a side effect.
//!
//! [`Live`] reads the maps, [`Overlay`] keeps what the decision writes, [`decide`] runs it. [`Explanation`] is the result as data.

mod live;
mod overlay;
mod overlay_flows;
mod route;
mod stored;
mod trace;

pub use live::Live;
pub use overlay::Overlay;
pub use stored::{Settings, Stored};
pub use trace::{Access, Trace, Write};

use lb_common::decide::{Hook, Packet, Verdict, Work};

/// The verdict of a hook's program over a packet, and what it reads and writes on the way.
pub fn decide<const N: usize, S: Stored<N>>(
    stored: &S,
    settings: Settings,
    hook: Hook,
    packet: Packet<N>,
) -> (Verdict<N>, Trace<N>) {
    let mut tables = Overlay::new(stored, settings);
    let mut work = Work::new(packet);
    lb_common::decide::decide(&mut tables, &mut work, hook);
    (work.verdict, tables.trace)
}
