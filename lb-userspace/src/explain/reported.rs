//! What a running agent says of the slices, which the pinned maps do not hold.

use std::net::SocketAddr;

use super::explanation::FrontendView;
use crate::observe::report::{PassReport, PortMismatchReport, Report};
use lb_model::Family;

/// What is known of endpoints that lack a service port. The default: no agent answers, and nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// All objects are read and planned, and each mismatch is here: what is not here is not so.
    is_complete: bool,
    mismatches: Vec<PortMismatchReport>,
}

impl From<Report> for Reported {
    fn from(report: Report) -> Self {
        let (source, tables) = (report.source, report.tables);
        let is_read = source.stale.is_none() && source.refused == 0 && tables.refused == 0;
        let is_written = tables.synced && tables.pending == PassReport::default();
        let is_listed = tables.port_mismatches.len() as u64 == tables.mismatched;
        Self { is_complete: is_read && is_written && is_listed, mismatches: tables.port_mismatches }
    }
}

impl Reported {
    /// The endpoints that lack the frontend's service port, of the family of its address.
    pub(super) fn mismatch(
        &self,
        frontend: &FrontendView,
        protocol: &str,
        at: SocketAddr,
    ) -> Option<&PortMismatchReport> {
        let family = Family::of(at.ip()).to_string();
        let FrontendView { namespace, name, port, .. } = frontend;
        self.mismatches.iter().find(|one| one.family == family && one.is_of(namespace, name, *port, protocol))
    }

    /// Why a backend of the service port drains.
    pub(super) fn draining(&self, mismatch: Option<&PortMismatchReport>) -> String {
        match mismatch {
            Some(mismatch) => format!("draining: no slice has its endpoint with {}", mismatch.wanted()),
            None if self.is_complete => "draining: its endpoint is gone from every slice".to_owned(),
            None => NO_ENDPOINT.to_owned(),
        }
    }
}

/// Why a backend drains, as far as the tables show it.
pub(super) const NO_ENDPOINT: &str = "draining: no endpoint of the service port any more";
