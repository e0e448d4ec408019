//! What the replays of the incidents are made of: pods that stand for many backends and vanish, and many clients.

mod clients;
mod counters;
mod crowd;
pub mod hand;
mod load;

pub use clients::{Attempt, Clients, Round};
pub use counters::Counters;
pub use crowd::{Crowd, Way};
pub use load::Load;
