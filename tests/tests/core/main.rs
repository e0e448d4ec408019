//! What a change most often breaks, in a binary that is compiled in seconds. `cargo xtask test --quick` runs all but `drain`, which takes minutes.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod cluster_ip;
mod drain;
mod packet;
