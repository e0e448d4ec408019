//! What Ballast's integration tests stand on: networks made of namespaces, peers that talk over them, and an oracle.
//!
//! * [`topology`] makes nodes, pods and outside hosts as network namespaces and removes them again;
//! * [`agent`] runs the real agent on a node;
//! * [`churn`] lets backends come and go under load, and watches packets and tables meanwhile;
//! * [`cluster`] starts and stops a real API server;
//! * [`differ`] compares the plan with the rules of the real kube-proxy;
//! * [`incident`] makes many backends that vanish, and many clients;
//! * [`hammer`] changes tables while packets meet them;
//! * [`peers`] are the servers and clients that run in them;
//! * [`twin`] plays one world in the kernel and on the host;
//! * [`routed`] asks for every kind of frontend from everywhere, over routes and a tunnel;
//! * [`programs`] builds edited eBPF programs for tests of the tests.
//!
//! All but [`cluster`] on loopback needs root and `ip` (iproute2); nothing touches the links and
//! addresses of the namespace it is started in.

pub mod agent;
pub mod beyond;
pub mod churn;
pub mod cluster;
pub mod differ;
pub mod hammer;
pub mod incident;
pub mod live;
pub mod oracle;
pub mod peers;
pub mod ping;
pub mod programs;
pub mod random;
pub mod routed;
pub mod stage;
pub mod topology;
pub mod twin;
