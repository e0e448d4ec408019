//! The parts of the incident replays: backends that vanish in several ways, and many clients.

mod backend_pool;
mod clients;
mod counters;
pub mod forger;
mod load;
pub mod raw_tcp;

pub use backend_pool::{BackendPool, Failure};
pub use clients::{Attempt, Clients, Round};
pub use counters::Counters;
pub use load::Load;
