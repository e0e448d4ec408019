//! What a running agent says of the slices, which the pinned maps do not hold.

use std::net::SocketAddr;

use super::explanation::FrontendView;
use crate::observe::report::{EndpointProblemReport, PassReport, Report};
use lb_model::Family;

/// What is known of endpoints. The default: no agent answers, and nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// All objects are read and planned, and each problem is here: what is not here is not so.
    is_complete: bool,
    problems: Vec<EndpointProblemReport>,
}

impl From<Report> for Reported {
    fn from(report: Report) -> Self {
        let (source, tables) = (report.source, report.tables);
        let is_read = source.stale.is_none() && source.refused == 0 && tables.refused == 0;
        let is_written = tables.synced && tables.pending == PassReport::default();
        let is_listed = tables.endpoint_problems.len() as u64 == tables.endpoint_problem_count;
        Self { is_complete: is_read && is_written && is_listed, problems: tables.endpoint_problems }
    }
}

impl Reported {
    /// What is the matter with the endpoints of the frontend's service port, in the family of its address.
    pub(super) fn problems(
        &self,
        frontend: &FrontendView,
        protocol: &str,
        at: SocketAddr,
    ) -> Vec<EndpointProblemReport> {
        let family = Family::of(at.ip()).to_string();
        let FrontendView { namespace, name, port, .. } = frontend;
        let is_own = |one: &&EndpointProblemReport| one.family == family && one.is_of(namespace, name, *port, protocol);
        self.problems.iter().filter(is_own).cloned().collect()
    }

    /// Why a backend of the service port drains, which has these problems.
    pub(super) fn draining(&self, problems: &[EndpointProblemReport]) -> String {
        match problems.iter().find_map(|problem| problem.lacks.as_deref()) {
            Some(port) => format!("draining: no slice has its endpoint with {port}"),
            None if self.is_complete => "draining: its endpoint is gone from every slice".to_owned(),
            None => NO_ENDPOINT.to_owned(),
        }
    }
}

/// Why a backend drains, as far as the tables show it.
pub(super) const NO_ENDPOINT: &str = "draining: no endpoint of the service port any more";
