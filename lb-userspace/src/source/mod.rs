//! Sources of the truth: Kubernetes YAML in a file or folder, or a Kubernetes API. Both end in the same [`Snapshot`]s.

pub mod convert;
pub mod file;
pub mod kube;
pub mod manifest;
mod objects;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::model::{Refusal, Snapshot};

/// Why a source cannot be started or read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{path}: cannot be read: {source}; the tables stay as they were; give a readable file or folder")]
    Unreadable { path: String, source: std::io::Error },
    #[error("{path}:{line}:{column}: {reason}; the tables stay as they were")]
    Manifest { path: String, line: u64, column: u64, reason: String },

    #[error("no way to the Kubernetes API: {reason}; give --kubeconfig FILE or --api-server URL, or run in a pod")]
    ApiAccess { reason: String },
}

/// A running source. Dropping it does not stop it; its cancellation token does.
#[derive(Debug)]
pub struct Source {
    /// `None` until services and slices have both been listed once. An error never takes a snapshot back.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub status: watch::Receiver<SourceStatus>,
    pub task: JoinHandle<()>,
}

/// How much the source knows, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// `file` or `kube`.
    pub kind: &'static str,
    /// What is read: the path, or the URL of the API.
    pub origin: String,
    /// Services and slices have both been listed once.
    pub synced: bool,
    /// Revision of the last snapshot; 0: none yet.
    pub revision: u64,
    /// When each resource was last known to be true (`file`, or `services` and `endpointslices`).
    pub last_proof: BTreeMap<&'static str, Instant>,
    /// The last error, until it is overcome.
    pub last_error: Option<String>,
    /// Objects that are not served, and why.
    pub refusals: Vec<Refusal>,
    /// Objects of the manifest that are of no concern here.
    pub notes: Vec<String>,
}
