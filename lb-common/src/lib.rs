//! What Ballast's eBPF programs and its agent share: the records in the maps and the per-packet decision.
//!
//! `no_std`, no allocation, no I/O. Compiled into the programs, into `ballast`, and into the tests.
#![cfg_attr(not(any(test, feature = "user", feature = "plain")), no_std)]
// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
// The BPF verifier sees whole functions only; what must be inlined is said, not hoped for. Narrowing casts take the low bits on
// purpose, and const fns have no `From`.
#![allow(clippy::inline_always, clippy::cast_possible_truncation, clippy::cast_lossless)]

pub mod abi;
pub mod checksum;
pub mod client_shares;
pub mod connect_times;
pub mod crc32c;
pub mod decide;
pub mod family;
pub mod limits;
pub mod map;
pub mod maps;
mod numbered;
pub mod outcome;
pub mod parse;
#[cfg(feature = "plain")]
pub mod plain;
pub mod service_cidrs;
pub mod stages;
pub mod state;
pub mod switch;
pub mod vip_filter;
pub mod words;
