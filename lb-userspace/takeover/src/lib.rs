//! Connections taken from another proxy of the node and given to it, and the rules that it left.

pub mod adopt;
pub mod conntrack;
pub mod hand_over;
pub mod netfilter;
