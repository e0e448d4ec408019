//! How each resource of the API is followed, as the report has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use lb_source::ResourceStatus;

/// One resource of the API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceReport {
    /// Objects held, refused ones among them.
    pub objects: u64,
    /// The last proof that what is held is true; null: there was none yet.
    pub proof: Option<ProofReport>,
    /// Watches that were replaced before their time, by why.
    pub watch_restarts: BTreeMap<String, u64>,
    /// Complete lists, by why.
    pub relists: BTreeMap<String, u64>,
    /// Probes of a silent watch, by what came of them.
    pub probes: BTreeMap<String, u64>,
    /// How long its watch has been dead while the API answers others; null: it is not.
    pub wedged_seconds: Option<f64>,
    /// A list that would delete nearly everything waits for a second one.
    pub confirming: Option<ConfirmingReport>,
    /// Comparisons with a complete list that came to an end.
    pub compares: u64,
    /// Objects that a comparison found to differ, by how.
    pub differences: BTreeMap<String, u64>,
    pub last_error: Option<String>,
    /// Answers of the API that were errors, by code: `401`, `403`, `404`, `429`, `4xx` (any other), `5xx`.
    pub errors: BTreeMap<String, u64>,
    /// Such answers since the last proof; null: none.
    pub failing: Option<FailingReport>,
}

/// The API answers, and with errors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FailingReport {
    pub code: String,
    pub seconds: f64,
}

/// What proved a resource, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ProofReport {
    /// `event`, `bookmark`, `list`, `probe` or `silent-probe`.
    pub kind: String,
    pub age_seconds: f64,
}

/// A list that is not taken yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ConfirmingReport {
    pub seconds: f64,
    /// Objects held.
    pub held: u64,
    /// Objects in the list.
    pub listed: u64,
}

impl ResourceReport {
    /// As of `now`.
    pub fn new(status: &ResourceStatus, now: Instant) -> Self {
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        Self {
            objects: status.objects as u64,
            proof: status
                .proof
                .map(|proof| ProofReport { kind: proof.kind.as_str().to_owned(), age_seconds: seconds(proof.at) }),
            watch_restarts: status
                .watch_restarts
                .iter()
                .map(|(why, count)| (why.as_str().to_owned(), *count))
                .collect(),
            relists: status.relists.iter().map(|(why, count)| (why.as_str().to_owned(), *count)).collect(),
            probes: status.probes.iter().map(|(what, count)| (what.as_str().to_owned(), *count)).collect(),
            wedged_seconds: status.wedged_since.map(seconds),
            confirming: status.confirming.map(|confirming| ConfirmingReport {
                seconds: seconds(confirming.since),
                held: confirming.held as u64,
                listed: confirming.listed as u64,
            }),
            compares: status.compares,
            differences: status.differences.iter().map(|(how, count)| (how.as_str().to_owned(), *count)).collect(),
            last_error: status.last_error.clone(),
            errors: status.errors.iter().map(|(error, count)| (error.as_str().to_owned(), *count)).collect(),
            failing: status.failing.map(|failing| FailingReport {
                code: failing.error.as_str().to_owned(),
                seconds: seconds(failing.since),
            }),
        }
    }
}
