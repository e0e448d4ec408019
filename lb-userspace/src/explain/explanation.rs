//! The explanation as data: what `ballast explain -o json` prints. Field names and meanings are kept stable.

use std::net::SocketAddr;

use serde::Serialize;

use super::question::Seat;
use crate::observe::report::EndpointProblemReport;

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub packet: PacketView,
    pub hook: Seat,
    /// Null: the destination is no frontend, and the packet is no answer of one.
    pub frontend: Option<FrontendView>,
    /// Why the service port has no endpoint, and which entries of its slices have one address; empty: nothing is the matter, or no agent answers.
    pub endpoint_problems: Vec<EndpointProblemReport>,
    /// Null: the tables hold no entry for the tuple.
    pub connection: Option<ConnectionView>,
    /// Null: the service has no client affinity.
    pub affinity: Option<AffinityView>,
    /// Null: there is no frontend.
    pub policy: Option<PolicyView>,
    pub candidates: Vec<CandidateView>,
    pub result: ResultView,
    /// What would change the result.
    pub change: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PacketView {
    pub source: SocketAddr,
    /// No source port was given: this one stands for any.
    pub port_is_assumed: bool,
    pub destination: SocketAddr,
    pub protocol: &'static str,
    /// `first`, or `later`: of a connection that the tables hold.
    pub segment: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FrontendView {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub port_name: String,
    /// Service port id in the tables.
    pub id: u32,
    pub address: SocketAddr,
    pub kind: &'static str,
    pub scheduler: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConnectionView {
    /// `established`, `udp` or `half-open`: the table that holds the entry.
    pub table: &'static str,
    /// As in `ballast get connections`.
    pub state: &'static str,
    /// `original` or `reply`.
    pub direction: &'static str,
    /// Null: the backend's record is gone.
    pub backend: Option<SocketAddr>,
    pub backend_state: Option<&'static str>,
    pub age_seconds: u32,
    pub idle_seconds: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AffinityView {
    pub timeout_seconds: u32,
    /// Null: none is stored for this client.
    pub backend: Option<SocketAddr>,
    pub age_seconds: Option<u32>,
    /// Whether it decides over this packet.
    pub used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyView {
    /// `local`, `pod`, `node`, `external` or `martian`.
    pub client: &'static str,
    /// `internal` or `external`: the traffic policy that holds for this client.
    pub applies: &'static str,
    /// `Cluster` or `Local`.
    pub traffic_policy: &'static str,
    /// Null: the service has no source ranges. Else whether they admit the client.
    pub source_ranges_admit: Option<bool>,
    /// New connections of each client network in a second; null: no limit.
    pub rate_limit: Option<u32>,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON")]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CandidateView {
    pub address: SocketAddr,
    pub id: u32,
    pub state: &'static str,
    pub local: bool,
    /// Slots of the set that serves this client.
    pub slots: u32,
    /// Whether a new connection of this client may go there.
    pub eligible: bool,
    /// It is avoided, but has slots: it is chosen if the bounded search meets no better one.
    pub last_resort: bool,
    pub chosen: bool,
    /// Chance of being chosen, where chance decides; else null.
    pub chance: Option<f64>,
    pub reason: String,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResultView {
    /// `pass`, `to-backend`, `to-client`, `refuse` or `drop`.
    pub action: &'static str,
    /// As in metrics and events.
    pub outcome: &'static str,
    /// Whether the packet is served or passes; else it is refused or dropped.
    pub served: bool,
    /// Whether the same packet would meet the same backend. `false`: chance decides.
    pub deterministic: bool,
    /// Null where chance decides, or where none is chosen.
    pub backend: Option<SocketAddr>,
    /// The packet's addresses afterwards; null: they stay, or chance decides.
    pub source_after: Option<SocketAddr>,
    pub destination_after: Option<SocketAddr>,
    /// The source becomes an address of this node, or the service's for a backend that is its own client.
    pub masquerade: bool,
    /// `stack`, `fast-path` (the connection has it), `encapsulated` or `none`.
    pub route: &'static str,
    /// Whether a new connection of a pod to such a backend gets the fast path, if the routes of both ends allow it.
    pub fast_path_open: bool,
}
