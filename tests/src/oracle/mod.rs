//! An independent model of what must become of a packet, and a run of the loaded programs against it.
//!
//! It models connections where the programs have table entries, and keeps them in plain collections. It makes every expected packet from scratch by a
//! packet library, checksums computed in full. It shares no code with the programs' decision. Random choices (which backend, which translated port)
//! are read off the result and checked for being allowed.

mod adopted;
mod ageing;
mod beside;
mod client;
mod closed;
mod connection;
mod entries;
mod established;
mod first_packet;
mod generate;
mod health;
mod judge;
mod model;
mod promotion;
mod retry;
mod routes;
mod rules;
mod run;
mod tables;
mod traffic;
mod unanswered;
mod wire;

pub use generate::address;
pub use routes::{Route, Routes};
pub use run::{OracleRun, Tally};
pub use wire::{ACK, FIN, Frame, Protocol, RST, SYN, opened, tuple};
