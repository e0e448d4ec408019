//! The ends of the bench's connections: a client that connects, asks, streams, or begins connections by the clock; and their server.
//!
//! A package of its own, so that the development profile can optimise it alone. The time that the ends take themselves is part of every time that is
//! compared.
//!
//! Everything runs on the calling thread, in its network namespace.

mod ask;
mod rate;
mod serve;

pub use ask::{MESSAGE_BYTES, PATIENCE, connect_and_ask, exchange, hold, stream, time_connection};
pub use rate::{Clocked, Times, at_rate};
pub use serve::{Server, serve};
