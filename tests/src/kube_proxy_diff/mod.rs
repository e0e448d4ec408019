//! Ballast's plan compared with the real kube-proxy's rules.
//!
//! kube-proxy runs in a namespace of its own against an API from memory ([`StubApi`](crate::cluster::stub::StubApi)); its nftables rules are read back and
//! interpreted, packet by packet ([`evaluate`]). The same objects go through Ballast's conversion and plan.

mod ballast;
mod case;
mod cluster;
pub mod compare;
pub mod distort;
mod duplicates;
pub mod evaluate;
mod generate;
mod health;
pub mod intended_differences;
pub mod kube_proxy;
pub mod node;
pub mod packet;
mod probes;
pub mod ruleset;
mod run;
mod sentinel;
mod settings;
pub mod statement;
pub mod verdict;

pub use kube_proxy::KubeProxy;
pub use run::{Differing, run, run_distorted};
