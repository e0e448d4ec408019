//! What an agent answers, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The state of a node: its digest, and how fresh it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    pub node_name: String,
    /// Of the agent.
    pub version: String,
    /// The tables hold what the source listed.
    pub synced: bool,
    /// Why the source must be taken as stale; null: it is fresh.
    pub stale: Option<String>,
    /// Seconds since the watches of services and slices were last proven.
    pub freshness_seconds: f64,
    /// Seconds that a change waits to be in the tables; 0: all are there.
    pub lag_seconds: f64,
    /// Of the objects in the tables: 16 hexadecimal digits.
    pub digest: String,
    /// The sums that the digest is made of.
    pub buckets: Vec<String>,
    /// Digests before this one, the last one first; at most 16.
    pub recent: Vec<Past>,
    /// The last changes in the tables.
    pub programmed: Versions,
    /// Every change up to these is known to the agent.
    pub known: Versions,
}

/// A digest that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    pub digest: String,
    /// Seconds since another one replaced it.
    pub age_seconds: f64,
}

/// Resource versions; 0: none, or one that cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Versions {
    pub services: u64,
    pub endpoint_slices: u64,
}

impl Versions {
    /// Whether these are at least the other ones, for both kinds.
    pub fn reach(self, other: Self) -> bool {
        self.services >= other.services && self.endpoint_slices >= other.endpoint_slices
    }
}

/// The services of some buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BucketServices {
    /// `NAMESPACE/NAME` with the hash of its objects in the tables.
    pub services: BTreeMap<String, String>,
}

/// What a command of the node said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CommandOutput {
    pub exit_code: u8,
    pub stdout: String,
    pub stderr: String,
}
