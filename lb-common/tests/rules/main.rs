//! What the decision does, rule by rule, over plain tables. One binary, which a mutant builds in seconds.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod adoption;
mod affinity;
mod answers;
mod beside;
mod clients;
mod decide;
mod host_sockets;
#[path = "../memory/mod.rs"]
mod memory;
mod openings;
mod outside;
mod pressure;
mod rare;
mod rate;
mod schedulers;
mod service_cidrs;
mod tunnel;
mod vip;
