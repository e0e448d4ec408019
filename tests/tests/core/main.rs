//! What a change most often breaks: the rungs of `cargo xtask test --quick`, in a binary that is compiled in seconds.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod cluster_ip;
mod drain;
mod packet;
