//! How far the tables follow the source, and what became of them, as the report has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_common::abi::BackendState;
use serde::{Deserialize, Serialize};

use super::EndpointProblemReport;
use lb_plan::sweep::Client;

/// The tables, as the agent that writes them knows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TablesReport {
    /// The first snapshot is in the tables.
    pub synced: bool,
    /// An agent before this one left tables, which serve until the first snapshot is there.
    pub inherited: bool,
    /// Number of the snapshot in the tables.
    pub revision: u64,
    /// Writes to the tables, ever.
    pub writes: u64,
    /// Why the last attempt was not carried out in full; null: it was.
    pub last_error: Option<String>,
    /// How long a change could not be written; null: all are.
    pub behind_seconds: Option<f64>,
    /// How long the tables have lacked something of the accepted objects, failed or not yet written; 0: nothing.
    pub lag_seconds: f64,
    /// How many services, addresses and ids are not written, and are tried again, each by itself.
    pub failing: u64,
    /// Why the tables cannot be written at all, whatever the subject; null: they can.
    pub unwritable: Option<String>,
    /// For how long; null: they can be.
    pub unwritable_seconds: Option<f64>,
    /// Services that could not be programmed, and why; at most 256, of which each namespace has an equal share.
    pub refusals: Vec<String>,
    /// How many there are.
    pub refused: u64,
    /// Seconds since the tables were last in step with the source.
    pub age_seconds: Option<f64>,
    /// Changes of the source that are not in the tables in full.
    pub pending: PassReport,
    /// Service ports in the tables.
    pub services: u64,
    pub backends: BackendTotals,
    /// Backends that are ejected: new flows avoid them.
    pub ejections: u64,
    pub drains: DrainReport,
    /// How full each table is, counted by what was written.
    pub fill: BTreeMap<String, FillReport>,
    /// Null: switched off, or not run yet.
    pub audit: Option<AuditReport>,
    pub sweep: SweepReport,
    /// `healthCheckNodePort`s, by port.
    pub health_checks: BTreeMap<u16, HealthCheckReport>,
    /// Node ports that sockets of this node hold, each with its service.
    pub held_ports: Vec<String>,
    /// Why the file of what is in maintenance cannot be read, and what holds meanwhile; null: it can.
    pub unread_maintenance: Option<String>,
    /// Service ports of which a new connection was refused for want of room in the last minute; at most 256.
    pub shortages: Vec<ShortageReport>,
    /// Cluster IPs that a link of this node has: the node answers there by itself.
    pub local_cluster_ips: BTreeSet<IpAddr>,
    /// Why service ports have no endpoint, and what else is the matter with their endpoints, what is wrong first. At most 256, of which each
    /// namespace has an equal share.
    pub endpoint_problems: Vec<EndpointProblemReport>,
    /// How many there are.
    pub endpoint_problem_count: u64,
}

/// What was short for a new connection of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShortageReport {
    pub service: String,
    /// `dropped_no_port`, `dropped_table_full` or `refused_client_share`.
    pub outcome: String,
    /// The client that was refused first.
    pub client: IpAddr,
}

/// Backends by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTotals {
    pub active: u64,
    pub unready: u64,
    pub terminating: u64,
    pub draining: u64,
    pub maintenance: u64,
    /// Evicted; the id rests until nothing refers to it.
    pub gone: u64,
}

impl BackendTotals {
    /// State and count, in the order of a backend's life.
    pub fn by_state(&self) -> [(&'static str, u64); 6] {
        [
            (BackendState::Active.name(), self.active),
            (BackendState::Unready.name(), self.unready),
            (BackendState::Terminating.name(), self.terminating),
            (BackendState::Draining.name(), self.draining),
            (BackendState::Maintenance.name(), self.maintenance),
            (BackendState::Gone.name(), self.gone),
        ]
    }
}

/// Changes of the source, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PassReport {
    pub services: u64,
    /// Endpoint slices.
    pub slices: u64,
}

/// Backends that are gone from the source, whose flows may still end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DrainReport {
    /// How long the drain that goes on longest has gone on; null: nothing drains.
    pub oldest_seconds: Option<f64>,
    /// Backends whose eviction deadline has passed, but which are still in the tables. The programs already evict their flows.
    pub overdue: u64,
    /// How many ended since this agent runs, by how: `empty` (at the deadline, no flow was left), `deadline`, `returned`,
    /// `replaced` (another pod came to the address).
    pub ends: BTreeMap<String, u64>,
}

/// A table's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FillReport {
    pub entries: u64,
    pub capacity: u64,
}

/// What audits of the tables found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuditReport {
    /// Seconds since the last one ended.
    pub age_seconds: f64,
    /// How long it took.
    pub took_seconds: f64,
    pub runs: u64,
    /// What the last one found, in words; at most [`AuditReport::FINDINGS`] of them.
    pub findings: Vec<String>,
    /// How many the last one found.
    pub found: u64,
    /// How many entries the last one compared.
    pub checked: u64,
    /// Found ever, by table, then by kind.
    pub drift: BTreeMap<String, BTreeMap<String, u64>>,
    /// Repaired ever, likewise.
    pub repaired: BTreeMap<String, BTreeMap<String, u64>>,
    /// Why the last one could not be carried out in full; null: it was.
    pub last_error: Option<String>,
}

impl AuditReport {
    /// How many findings are spelled out.
    pub const FINDINGS: usize = 20;
}

/// What was taken out of the programs' tables because it was over, since this agent runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SweepReport {
    /// Seconds since the last round ended; null: none has.
    pub age_seconds: Option<f64>,
    /// How long it took.
    pub took_seconds: f64,
    pub rounds: u64,
    /// Entries that were read.
    pub looked: u64,
    /// Entries that were taken out, by map.
    pub swept: BTreeMap<String, u64>,
    /// Connections by which the programs' counts were corrected.
    pub recounted: u64,
    /// Connections by which the programs' counts of clients were corrected, each in up to three counters.
    pub recounted_shares: u64,
    /// The client with most established connections, by `ipv4` and `ipv6`, as the last round met them.
    pub largest_clients: BTreeMap<String, Client>,
    /// Clients whose new connections are refused because they have more than their share, in words.
    pub greedy_clients: Vec<String>,
    /// TCP flows that were cut off because the frontend that they came by was no more, for the drain period.
    pub cut: u64,
    /// RSTs that were sent to the ends of connections whose backend or frontend is gone.
    pub resets: u64,
    /// Answered flows that the last round met whose backend sees an address of this node in the client's place.
    pub masqueraded: u64,
    /// Why the last round could not go on; null: it ended.
    pub last_error: Option<String>,
}

/// A health-check node port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheckReport {
    /// Namespace and name of the Service.
    pub service: String,
    /// Endpoints of this node that are ready.
    pub local_endpoints: u64,
    /// Why nothing listens there; null: it is open.
    pub problem: Option<String>,
}
