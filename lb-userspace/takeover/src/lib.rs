//! Connections taken from another proxy of the node and given to it, and the rules that it left.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod adopt;
pub mod conntrack;
pub mod hand_over;
pub mod netfilter;
pub mod tracked;
