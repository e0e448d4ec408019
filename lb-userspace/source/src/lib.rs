//! Sources of the truth: Kubernetes YAML in a file or folder, or a Kubernetes API. Both end in the same [`Snapshot`]s.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod announce;
pub mod api_requests;
pub mod file;
pub mod kube;
mod status;

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};

use self::api_requests::ApiRequests;
pub use self::status::{
    ApiError, Confirming, Difference, Failing, PATIENT, Probed, Proof, ProofKind, Reach, Relist, ResourceStatus,
    Restart, SERVICE_CIDRS, SourceStatus,
};
use lb_model::Snapshot;

/// Why a source cannot be started or read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{path}: cannot be read: {source}; what was known of it stays as it was; give a readable file or folder")]
    Unreadable { path: String, source: std::io::Error },
    #[error("no way to the Kubernetes API: {reason}; give --kubeconfig FILE or --api-server URL, or run in a pod")]
    ApiAccess { reason: String },
}

/// A running source. Dropping it does not stop it; its cancellation token does.
pub struct Source {
    /// `None` until services and slices have both been listed once. An error never takes a snapshot back.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub status: watch::Receiver<SourceStatus>,
    pub task: JoinHandle<()>,
    /// A client of the API that is followed, with the same credentials.
    pub api: Option<::kube::Client>,
    /// All requests to that API, also those of `api`. None is ever made for a file.
    pub requests: ApiRequests,
}
