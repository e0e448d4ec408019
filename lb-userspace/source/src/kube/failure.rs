//! Why the API gives no answer.

use std::time::Duration;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status, if the server sent one.
    pub status: Option<u16>,
    pub reason: String,
    /// How long the server wants nothing to be asked (RFC 9110, `Retry-After`).
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Nobody answered, or what came is no answer.
    pub fn without_status(reason: impl Into<String>) -> Self {
        Self { status: None, reason: reason.into(), retry_after: None }
    }
}
