//! What the tables should hold: a pure function of the snapshot, and the operations that lead there.
//!
//! No clock, no I/O, no map. [`plan`] computes the desired state, [`ProgrammedState`] is what was written, and [`diff_service`] lists the operations
//! between them.

mod checks;
mod claim;
mod claims;
mod cluster_ips;
mod desired;
mod diff;
mod effect;
mod endpoint_problem;
mod endpoints;
mod frontend;
mod frontends;
mod health_check;
mod hold;
mod ids;
mod layout;
mod life;
mod maglev;
mod marks;
mod mode;
mod named;
mod node_context;
mod op;
mod part;
mod planner;
mod preview;
mod programmed;
mod restore;
mod service;
mod shares;
mod sorted;
mod sweep;
mod tables;
mod work;
mod written;

use std::time::Duration;

use ipnet::IpNet;
use lb_common::limits;

use lb_model::{Mode, Scheduler, SlotShares};

pub use desired::{Desired, DesiredService, HealthCheck};
pub use diff::{Obstacle, diff_service, diff_vip, withdrawals};
pub use effect::{BackendEffect, BackendState, Change, Differing, Fate, FrontendEffect, PortEffect};
pub use endpoint_problem::{Cause, EndpointProblem};
pub use endpoints::{DesiredEndpoint, EndpointState};
pub use frontend::{Frontend, Ranges, Set, Use};
pub use hold::Hold;
pub use ids::Range;
pub use lb_common::abi::FrontendKind;
pub use lb_model::NodePortAddresses;
pub use life::{DrainLimits, OwnDrainLimits};
pub use marks::{Mark, Marks, Target};
pub use named::{Endpoints, Named, forget as forget_endpoint, named, put as put_endpoint};
pub use node_context::NodeFacts;
pub use op::{BackendId, BackendRecord, Op, config, order};
pub use part::Part;
pub use planner::{Changes, Planner, plan};
pub use preview::{HealthCheckEffect, Inputs, Preview};
pub use programmed::{
    Backends, Capacities, DrainEnds, Drains, Frontends, ProgrammedService, ProgrammedState, Services, SlotRanges, Vips,
};
pub use restore::{Loaded, Stray, restore};
pub use sorted::{SortedMap, SortedSet};
pub use sweep::{free_unreferred, sweep};
pub use tables::MaglevTables;
pub use work::{part, work};

/// What the plan depends on besides the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSettings {
    /// This node, as `nodeName` of endpoints has it; without it no endpoint counts as local.
    pub node_name: Option<String>,
    /// The node's addresses that node ports are served on.
    pub nodeport_addresses: NodePortAddresses,
    /// Whether `externalIPs` are served. A user who may write a Service may take any address with them (CVE-2020-8554).
    pub external_ips: bool,
    /// Services with this value of the label `service.kubernetes.io/service-proxy-name` are ours; `None`: those without it.
    pub service_proxy_name: Option<String>,
    /// How new flows are spread where the Service says nothing.
    pub scheduler: Scheduler,
    /// How packets of external clients reach backends of other nodes where the Service says nothing.
    pub mode: Mode,
    /// Whether other nodes are named by the settings, whatever the source knows of them.
    pub has_peers: bool,
    /// Whether connections that nobody answers are moved to another backend, where the Service says nothing.
    pub retry: bool,
    /// Networks that active checks may go to, beside those of the node's pods; `None`: nothing is checked.
    pub check_networks: Option<Vec<IpNet>>,
    /// Slots that the table has.
    pub slots: u32,
    /// How many of them a service and a namespace may take.
    pub slot_shares: SlotShares,
    /// How long connections of a backend that is gone from the API may go on.
    pub drain_limits: DrainLimits,
    /// How long flows to a terminating backend may go on at most.
    pub terminating_max: Duration,
    /// How long an unused slot range is not written again: longer than any program runs.
    pub slot_grace: Duration,
    /// How often ids of backends that are gone are looked for in the flow tables.
    pub reclaim_interval: Duration,
    /// How much one run of the programmer handles, at most, before others have their turn: endpoints of service ports, those of before
    /// included, addresses and releases. At least one of each is handled.
    pub run_max: usize,
    /// Pause before the first retry of what failed or was refused; doubled up to `retry_max`.
    pub retry_min: Duration,
    pub retry_max: Duration,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            node_name: None,
            nodeport_addresses: NodePortAddresses::All,
            external_ips: false,
            service_proxy_name: None,
            scheduler: Scheduler::Random,
            mode: Mode::Snat,
            has_peers: false,
            retry: true,
            check_networks: None,
            slots: limits::SLOTS,
            slot_shares: SlotShares::default(),
            drain_limits: DrainLimits { period: Duration::from_secs(30), max: Duration::from_hours(1) },
            terminating_max: Duration::from_hours(1),
            slot_grace: Duration::from_secs(1),
            reclaim_interval: Duration::from_mins(1),
            run_max: 2_048,
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
        }
    }
}

impl PlanSettings {
    /// The default, but all drains end with their period.
    pub fn without_drain_max() -> Self {
        let drain_limits = DrainLimits { max: Duration::ZERO, ..Self::default().drain_limits };
        Self { drain_limits, ..Self::default() }
    }
}
