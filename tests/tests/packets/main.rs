//! Packets through the programs, by `BPF_PROG_TEST_RUN`: no network. Each module is a rung of `cargo xtask test`.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod atomic_update;
mod decisions;
mod fast_path_oracle;
mod floods;
mod headers;
mod layouts;
mod store;
mod tunnelled;
mod two_answers;
