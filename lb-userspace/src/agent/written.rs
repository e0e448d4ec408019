//! The log of runs over the tables: one line once all of a change is written, in however many runs.

use lb_plan::apply::Report;

/// The writes since all was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    writes: usize,
    waits: bool,
}

impl Written {
    /// Whether the last run left something for the next one.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Logs a run that is over. `is_news`: also if nothing was written.
    pub fn log(&mut self, report: &Report, is_news: bool) {
        self.writes += report.writes;
        self.waits = report.waiting > 0;
        let (revision, waiting) = (report.revision, report.waiting);
        if self.waits {
            tracing::debug!(revision, writes = report.writes, waiting, "a part is written");
            return;
        }
        let writes = std::mem::take(&mut self.writes);
        if writes > 0 || is_news {
            let (services, backends, draining) = (report.services, report.backends.active, report.backends.draining);
            tracing::info!(revision, services, backends, draining, writes, "in the tables");
        } else {
            tracing::debug!(revision, "nothing to write");
        }
    }
}
