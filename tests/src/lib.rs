//! What Ballast's integration tests stand on: networks made of namespaces, peers that talk over them, and an oracle.
//!
//! * [`topology`] makes nodes, pods and outside hosts as network namespaces and removes them again;
//! * [`peers`] are the servers and clients that run in them.
//!
//! All of it needs root and `ip` (iproute2); nothing touches the links and addresses of the namespace it is started in.

pub mod peers;
pub mod topology;
