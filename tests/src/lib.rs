//! The harness of Ballast's integration tests: networks made of namespaces, peers that talk over them, and an oracle.
//!
//! * [`topology`] makes nodes, pods and outside hosts as network namespaces and removes them again;
//! * [`agent`] runs the real agent on a node;
//! * [`churn`] changes backends under load, and watches packets and tables meanwhile;
//! * [`cluster`] starts and stops a real API server;
//! * [`kube_proxy_diff`] compares the plan with the rules of the real kube-proxy;
//! * [`external_client`] and [`fixture`] are networks with an agent, servers and clients, ready for a test;
//! * [`incident`] has backends that vanish, and many clients;
//! * [`update_race`] changes tables while packets meet them;
//! * [`peers`] are the servers and clients that run in them;
//! * [`lockstep`] runs the programs and the host's decision on the same packets and compares them;
//! * [`oracle`] is an independent model of what must become of a packet;
//! * [`test_run`] loads the programs and runs them on one packet at a time (`BPF_PROG_TEST_RUN`);
//! * [`routed`] tests every kind of frontend from every kind of client, over routes and a tunnel;
//! * [`scene`] puts other people's rules on a node: the kubelet's, a CNI's, a firewall's;
//! * [`limits`] takes memory and CPU from a running agent;
//! * [`steps`] kills the agent at each of its steps;
//! * [`strays`] sends packets that no service is for, and sees which of them leave;
//! * [`verifier`] shows what the kernel says of each program;
//! * [`programs`] builds edited eBPF programs for tests of the tests.
//!
//! All but [`cluster`] on loopback needs root and `ip` (iproute2); nothing touches the links and
//! addresses of the namespace it is started in.

pub mod agent;
pub mod churn;
pub mod cluster;
pub mod external_client;
pub mod fixture;
pub mod guide;
pub mod incident;
pub mod kube_proxy_diff;
pub mod limits;
pub mod lockstep;
pub mod oracle;
pub mod peers;
pub mod ping;
pub mod programs;
pub mod random;
pub mod routed;
pub mod scene;
pub mod steps;
pub mod strays;
pub mod test_run;
pub mod topology;
pub mod update_race;
pub mod verifier;
