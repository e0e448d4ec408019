//! An independent model of what must become of a packet, and the examination of the live programs by it.
//!
//! It thinks in connections where the programs think in table entries, keeps them in plain collections, and makes every
//! expected packet from scratch by a packet library, checksums computed in full. It shares no code with the programs' decision.
//! Random choices (which backend, which translated port) are read off the result and checked for being allowed.

mod ageing;
mod answered;
mod client;
mod connection;
mod entries;
mod exam;
mod generate;
mod health;
mod judge;
mod opening;
mod rules;
mod tables;
mod traffic;
mod unanswered;
mod ways;
mod wire;
mod world;

pub use exam::{Exam, Tally};
pub use generate::address;
pub use ways::{Way, Ways};
pub use wire::{ACK, FIN, Frame, Protocol, RST, SYN};
