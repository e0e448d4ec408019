//! The fleet: do all nodes have the same Services and EndpointSlices in their tables? Each agent answers one authenticated listener, and one command
//! asks all of them (ADR 0039).

pub mod agents;
pub mod answer;
pub mod client;
pub mod command;
pub mod compare;
pub mod digest;
pub mod listener;
pub mod report;
pub mod review;
pub mod survey;
pub mod tls;

/// The audience of the tokens that the listener takes: the API server takes none of them for itself.
pub const AUDIENCE: &str = "ballast.dev/fleet";
/// The DNS name in the listener's certificate, on every node.
pub const SERVER_NAME: &str = "ballast-fleet";
/// The port of the listener, where the manifests of `deploy/` open it.
pub const DEFAULT_PORT: u16 = 10246;

/// Path of the digest, and of the services in some of its buckets.
pub const STATUS_PATH: &str = "/fleet/status";

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod test_api;
