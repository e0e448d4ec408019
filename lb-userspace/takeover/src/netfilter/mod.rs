//! What the netfilter of this host holds, asked and changed by netlink: no `nft`, `ipset` or `ipvsadm` is needed.

mod ipset;
mod ipvs;
mod kube_proxy;
mod leftovers;
mod legacy;
mod nf_tables;
mod translated;
mod virtual_services;

pub use leftovers::{Done, LeftoverOutcome, Leftovers, NetfilterError};
pub use nf_tables::Ruleset;
pub use translated::list as translated_connections;
