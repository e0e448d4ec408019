//! What the data path reports: its status, warnings, what failed, and what somebody else changed.

use tokio::sync::watch;

use super::{fault::Fault, status::Status};

/// Faults that nobody has asked for yet; more are counted in the log alone.
const FAULTS_KEPT: usize = 1024;

#[derive(Debug)]
pub(super) struct Reports {
    status: watch::Sender<Status>,
    /// Of what keeps external clients from being served.
    warnings: Vec<String>,
    /// Why no external link is known; `None`: one is.
    no_external_link: Option<String>,
    /// What failed in the last settlement, each by itself: it is tried again in the next.
    troubles: Vec<String>,
    /// Attachments that somebody else changed and that nobody has asked for yet.
    faults: Vec<Fault>,
}

impl Reports {
    pub fn new(status: watch::Sender<Status>) -> Self {
        Self { status, warnings: Vec::new(), no_external_link: None, troubles: Vec::new(), faults: Vec::new() }
    }

    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Tells the subscribers, if the status changed.
    pub fn publish(&self, new: impl FnOnce(&Status) -> Status) {
        self.status.send_if_modified(|status| {
            let new = new(status);
            let changed = *status != new;
            *status = new;
            changed
        });
    }

    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.warnings.iter()
    }

    /// What keeps external clients from being served.
    pub fn set_warnings(&mut self, warnings: Vec<String>) {
        self.warnings = warnings;
    }

    pub fn no_external_link(&self) -> Option<&String> {
        self.no_external_link.as_ref()
    }

    /// Whether an external link is known, and if not, why; a change is logged.
    pub fn set_no_external_link(&mut self, reason: Option<String>) {
        match (&self.no_external_link, &reason) {
            (None, Some(reason)) => tracing::warn!("{reason}"),
            (Some(_), None) => tracing::info!("an external link is known"),
            _ => {}
        }
        self.no_external_link = reason;
    }

    pub fn troubles(&self) -> &[String] {
        &self.troubles
    }

    /// What failed in a settlement; what the one before had not is logged.
    pub fn set_troubles(&mut self, troubles: Vec<String>) {
        for new in troubles.iter().filter(|trouble| !self.troubles.contains(trouble)) {
            tracing::warn!("tried again in the next round: {new}");
        }
        self.troubles = troubles;
    }

    /// Logs the fault, and keeps it for the next question.
    pub fn keep_fault(&mut self, fault: Fault) {
        let Fault { table, entry, is_replaced, is_repaired } = &fault;
        tracing::warn!(table, entry, is_replaced, is_repaired, "somebody else changed what is ours");
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    pub fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }
}
