//! What Ballast's eBPF programs and its agent share: the records in the maps and the per-packet decision.
//!
//! `no_std`, no allocation, no I/O. Compiled into the programs, into `ballast`, and into the tests.
#![cfg_attr(not(any(test, feature = "user")), no_std)]

pub mod abi;
pub mod limits;
pub mod outcome;
