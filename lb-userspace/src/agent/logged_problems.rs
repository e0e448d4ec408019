//! Problems that the log has already, so that a retry does not repeat them.

use std::collections::BTreeSet;

/// Failures and refusals that are in the log already.
#[derive(Debug, Default)]
pub(super) struct LoggedProblems(BTreeSet<String>);

impl LoggedProblems {
    /// Logs what was not there before.
    pub fn warn(&mut self, now: BTreeSet<String>) {
        for new in now.difference(&self.0) {
            tracing::warn!("{new}");
        }
        self.0 = now;
    }
}
