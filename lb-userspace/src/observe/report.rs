//! What the running agent says of itself: read by `ballast status`, judged by [`super::health`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use lb_source::PATIENT;

mod endpoint_problem;
mod following;
mod sockets;
mod tables;

pub use endpoint_problem::EndpointProblemReport;
pub use following::{ConfirmingReport, FailingReport, ProofReport, ResourceReport};
pub use sockets::SocketsReport;
pub use tables::{
    AuditReport, BackendTotals, DrainReport, FillReport, HealthCheckReport, PassReport, ShortageReport, SweepReport,
    TablesReport,
};

/// Everything, at one moment. Ages are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    pub pid: u32,
    pub version: String,
    pub node_name: String,
    /// The node is being deleted or drained by the autoscaler: load balancers must not choose it.
    pub node_leaving: bool,
    pub uptime_seconds: f64,
    pub kernel: KernelReport,
    pub source: SourceReport,
    pub tables: TablesReport,
    pub datapath: DatapathReport,
    pub sockets: SocketsReport,
    pub checks: ChecksReport,
    pub adoption: AdoptionReport,
    pub health: HealthReport,
}

/// Connections of another proxy, from before the first start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AdoptionReport {
    /// What keeps some of them from living on; null: nothing does.
    pub problem: Option<String>,
}

/// Active checks of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ChecksReport {
    /// How many are checked, each of one service port.
    pub endpoints: u64,
    /// Those of them whose checks fail: they are unhealthy.
    pub failing: u64,
    pub under_way: u64,
    /// How long the most overdue check has waited: long, if --check-limits are too low.
    pub late_seconds: f64,
    /// Some of those that fail, each with its service port and the reason.
    pub failures: Vec<String>,
}

/// What this kernel is and offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KernelReport {
    pub release: String,
    /// Which features are used, by name; false: a fallback stands in.
    pub features: BTreeMap<String, bool>,
    /// What the kernel lacks, and what is lost by that.
    pub lacks: Vec<String>,
}

/// Where the truth comes from, and how old the last proof of it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SourceReport {
    /// `file` or `kube`.
    pub kind: String,
    /// Path or URL.
    pub origin: String,
    /// Services and slices have both been listed once.
    pub synced: bool,
    /// Why it must be taken as stale; null: fresh.
    pub stale: Option<String>,
    /// Number of the last snapshot; 0: none yet.
    pub revision: u64,
    /// Seconds since each resource was last known to be true.
    pub age_seconds: BTreeMap<String, f64>,
    /// Whether the API answers requests on new connections; null: a file, or no answer and no error yet.
    pub api_reachable: Option<bool>,
    /// Since when that is so.
    pub api_seconds: Option<f64>,
    /// Why nobody can answer at the API server's address, and the remedy: it is a cluster IP that nothing serves; null: no such reason is known.
    pub api_address_problem: Option<String>,
    /// How long a watch has been dead while the API answers others; null: none is.
    pub wedged_seconds: Option<f64>,
    /// How each resource of the API is followed; empty for a file.
    pub resources: BTreeMap<String, ResourceReport>,
    pub last_error: Option<String>,
    /// What is not known of the own Node, and why; null: nothing is missing.
    pub missing_node: Option<String>,
    /// Objects that are not served, and why; at most 256, of which each namespace has an equal share.
    pub refusals: Vec<String>,
    /// How many there are.
    pub refused: u64,
    /// Objects that are of no concern here.
    pub notes: Vec<String>,
}

impl SourceReport {
    /// Age of the oldest proof; 0: there is none. What is asked for rarely is left out: nothing that is forwarded waits for it.
    pub fn oldest_age_seconds(&self) -> f64 {
        let forwarded = self.age_seconds.iter().filter(|(resource, _)| !PATIENT.contains(&resource.as_str()));
        forwarded.map(|(_, age)| *age).fold(0.0, f64::max)
    }
}

/// What is attached where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DatapathReport {
    /// `tcx` or `clsact`.
    pub tc: String,
    /// `host`, `all` or `off`.
    pub socket_lb: String,
    /// Root of the cgroup hierarchy with the socket programs; null: none.
    pub cgroup: Option<String>,
    /// Every interface was checked once.
    pub synced: bool,
    pub links: Vec<LinkReport>,
    /// What could not be attached or written, and why.
    pub problems: Vec<String>,
    /// Those of them that are the node's, and fail `/healthz`: not one pod's link, nor one element of a table, nor XDP of a link that tc serves.
    pub node_problems: Vec<String>,
    /// What keeps external clients from being served.
    pub warnings: Vec<String>,
    /// Why no external link is known, and what to do; null: one is.
    pub no_external_link: Option<String>,
    /// How many source ports there are for masqueraded flows that cannot keep their client's.
    pub source_ports: u16,
    pub fast_path: FastPathReport,
    pub programs: Vec<ProgramReport>,
}

/// Whether packets of pods pass the node's stack by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FastPathReport {
    /// `auto`, `on` or `off`.
    pub asked: String,
    /// Between two pods of the node.
    pub open: bool,
    /// What would be skipped: under `auto` the fast path waits until it is gone.
    pub skips: Vec<String>,
    /// Between a pod and another node.
    pub open_to_nodes: bool,
    /// What would be skipped on the way from other nodes alone.
    pub skips_to_nodes: Vec<String>,
    /// Bridges whose pods take the node's stack all the same, and why.
    pub closed_bridges: Vec<String>,
}

/// An interface with programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LinkReport {
    pub name: String,
    pub ifindex: u32,
    /// `pod`, `bridge`, `external` or `tunnel`; empty: not known.
    pub role: String,
    /// How external clients are served on a link to the outside: `native` or `generic` (XDP), or `tc`; null: another link.
    pub served_by: Option<String>,
    /// Why not by native XDP; null: it is.
    pub served_reason: Option<String>,
    pub programs: Vec<AttachmentReport>,
}

/// A program on an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentReport {
    /// `in`, `out` or `xdp`.
    pub point: String,
    pub program: String,
    /// `tcx`, `clsact`, `native` or `generic`.
    pub how: String,
}

/// A loaded program as the verifier saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramReport {
    pub name: String,
    pub verified_instructions: u32,
    pub jited_bytes: u32,
}

/// What the health server answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HealthReport {
    pub healthz: bool,
    pub livez: bool,
    pub readyz: bool,
    /// Why not.
    pub faults: Vec<String>,
}

impl From<&lb_datapath::LinkStatus> for LinkReport {
    fn from(link: &lb_datapath::LinkStatus) -> Self {
        let programs = link.programs.iter().map(|attachment| AttachmentReport {
            point: attachment.point.to_string(),
            program: attachment.program.clone(),
            how: attachment.how.to_string(),
        });
        Self {
            name: link.name.clone(),
            ifindex: link.ifindex,
            role: link.role.map(word).unwrap_or_default(),
            served_by: link.served.as_ref().map(|served| served.by.to_owned()),
            served_reason: link.served.as_ref().and_then(|served| served.reason.clone()),
            programs: programs.collect(),
        }
    }
}

impl DatapathReport {
    /// The data path's own view.
    pub fn new(status: &lb_datapath::Status) -> Self {
        Self {
            tc: word(status.tc),
            socket_lb: word(status.socket_lb),
            cgroup: status.cgroup.clone(),
            synced: status.synced,
            links: status.links.iter().map(LinkReport::from).collect(),
            problems: status.problems.clone(),
            node_problems: status.node_problems.clone(),
            warnings: status.warnings.clone(),
            no_external_link: status.no_external_link.clone(),
            source_ports: status.source_ports,
            fast_path: FastPathReport {
                asked: word(status.fast_path.asked),
                open: status.fast_path.open,
                skips: status.fast_path.skips.clone(),
                open_to_nodes: status.fast_path.open_to_nodes,
                skips_to_nodes: status.fast_path.skips_to_nodes.clone(),
                closed_bridges: status.fast_path.closed_bridges.clone(),
            },
            programs: status.programs.iter().map(ProgramReport::from).collect(),
        }
    }
}

impl From<&lb_datapath::ProgramSize> for ProgramReport {
    fn from(size: &lb_datapath::ProgramSize) -> Self {
        Self {
            name: size.name.to_owned(),
            verified_instructions: size.verified_instructions,
            jited_bytes: size.jited_bytes,
        }
    }
}

/// The word that a plain enum has in JSON.
fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
