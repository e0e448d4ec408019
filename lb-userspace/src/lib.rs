//! Ballast, the service load balancer: sources of truth, the plan, the tables, and the programs that read them.

pub mod adopt;
pub mod agent;
pub mod announce;
pub mod apply;
pub mod cli;
pub mod config;
pub mod conntrack;
pub mod datapath;
pub mod explain;
pub mod fleet;
pub mod hand_over;
pub mod maps;
pub mod model;
pub mod netfilter;
pub mod netlink;
pub mod observe;
pub mod pause;
pub mod plan;
pub mod sockets;
pub mod source;
pub mod sweep;
pub mod sysdump;
