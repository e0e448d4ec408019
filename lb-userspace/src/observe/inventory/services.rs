//! Services: one for each service port, with its frontends and backends.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::abi::{ConnectTimes, FrontendKind, backend_state, stat_kind};
use lb_common::outcome::Outcome;
use serde::Serialize;

use super::{FamilyContents, Inventory, backend_stat_kind, health_of, ip, is_unhealthy, state_name};
use crate::observe::connect_time::ConnectTimeView;
use crate::observe::report::EndpointProblemReport;
use lb_model::Scheduler;

/// A service port.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub protocol: &'static str,
    pub id: u32,
    pub scheduler: &'static str,
    pub frontends: Vec<FrontendView>,
    pub backends: Vec<BackendOfService>,
    /// How long a client stays with its backend after its last new connection; 0: no client affinity.
    #[serde(rename = "affinitySeconds")]
    pub affinity_timeout_s: u32,
    /// New flows in a second that each network of external clients may make, and how many at once; none: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimitView>,
    /// How long its backends took to answer SYNs, those that it had before included; null: nothing was measured.
    pub connect_time: Option<ConnectTimeView>,
    /// Why it has no endpoint in a family, and which entries of its slices have one address; absent: nothing is the matter, or no agent answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_problems: Vec<EndpointProblemReport>,
    #[serde(skip)]
    pub port_name: String,
    /// Flows that were given a backend, ever.
    #[serde(skip)]
    pub selected: u64,
    /// Connections that began, ever: [`BEGINNINGS`].
    #[serde(skip)]
    pub began: u64,
    /// Packets and connects refused for want of an endpoint, ever.
    #[serde(skip)]
    pub refused: u64,
    /// SYNs that were sent again and moved to another backend, ever.
    #[serde(skip)]
    pub retries: u64,
    /// New connections that were refused or dropped, ever: [`REFUSALS`].
    #[serde(skip)]
    pub refusals: u64,
    #[serde(skip)]
    pub connect_times: Box<ConnectTimes>,
}

/// The rate limit of a service port.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RateLimitView {
    pub rate: u32,
    pub burst: u32,
    /// First packets that were dropped by it, ever.
    pub dropped: u64,
}

/// An address at which a service is reached.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FrontendView {
    pub address: IpAddr,
    pub port: u16,
    pub kind: &'static str,
    /// New flows are refused: no backend of this family takes any.
    #[serde(skip)]
    pub refuses: bool,
}

/// Outcomes that the first packet or call of a new connection may have.
pub const BEGINNINGS: [Outcome; 8] = [
    Outcome::Selected,
    Outcome::SelectedByTuple,
    Outcome::PortTranslated,
    Outcome::Masqueraded,
    Outcome::Probed,
    Outcome::Tunnelled,
    Outcome::SocketConnected,
    Outcome::SocketSent,
];

/// Outcomes of new connections that were given a backend.
pub const SELECTIONS: [Outcome; 4] =
    [Outcome::Selected, Outcome::SelectedByTuple, Outcome::SocketConnected, Outcome::SocketSent];

/// Outcomes of packets and connects that are refused for want of an endpoint.
pub const NO_ENDPOINT: [Outcome; 2] = [Outcome::RefusedNoEndpoint, Outcome::SocketRefused];

/// Outcomes of a new connection that the service does not take.
pub const REFUSALS: [Outcome; 9] = [
    Outcome::RefusedNoEndpoint,
    Outcome::DroppedNoLocalEndpoint,
    Outcome::DroppedNoPort,
    Outcome::DroppedTableFull,
    Outcome::SocketRefused,
    Outcome::DroppedSourceRange,
    Outcome::DroppedNoAddress,
    Outcome::DroppedRateLimit,
    Outcome::RefusedClientShare,
];

/// Outcomes that show how a backend fares.
pub const FARES: [Outcome; 6] = [
    Outcome::Retried,
    Outcome::SuppressedRefusal,
    Outcome::RefusedLate,
    Outcome::Probed,
    Outcome::Ejected,
    Outcome::Cleared,
];

/// A backend, within its service.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BackendOfService {
    pub address: IpAddr,
    pub port: u16,
    pub state: &'static str,
    #[serde(skip)]
    pub connect_times: Option<Box<ConnectTimes>>,
    #[serde(skip)]
    pub ejected: bool,
    #[serde(skip)]
    pub unhealthy: bool,
    /// What became of packets about it, as far as it shows how it fares: [`FARES`].
    #[serde(skip)]
    pub fares: [u64; FARES.len()],
    /// Connections that began there, ever: [`BEGINNINGS`].
    #[serde(skip)]
    pub began: u64,
    #[serde(skip)]
    pub flows: u64,
    /// Those of the flows that nobody has answered.
    #[serde(skip)]
    pub half_open: u64,
    #[serde(skip)]
    pub drain_seconds: Option<u64>,
    #[serde(skip)]
    pub deadline_seconds: Option<u64>,
}

impl BackendOfService {
    /// SYNs that were sent again and left this backend, ever.
    pub fn retries(&self) -> u64 {
        FARES.iter().position(|outcome| *outcome == Outcome::Retried).map_or(0, |index| self.fares[index])
    }
}

impl ServiceView {
    /// Takes those that the agent knows of this service port.
    pub fn take_problems(&mut self, known: &[EndpointProblemReport]) {
        let is_own = |one: &&EndpointProblemReport| {
            !one.partial && one.is_of(&self.namespace, &self.name, self.port, self.protocol)
        };
        self.endpoint_problems = known.iter().filter(is_own).cloned().collect();
    }
}

impl Inventory<'_> {
    /// Every service port that has a frontend, by namespace, name and port.
    pub fn services(&self) -> Vec<ServiceView> {
        let mut views = BTreeMap::new();
        self.add_frontends(&self.contents.v4, &mut views);
        self.add_frontends(&self.contents.v6, &mut views);
        self.add_backends(&self.contents.v4, &mut views);
        self.add_backends(&self.contents.v6, &mut views);
        let mut services: Vec<_> = views.into_values().collect();
        for service in &mut services {
            service.frontends.sort_unstable();
            service.backends.sort_unstable();
            service.connect_time = ConnectTimeView::of(&service.connect_times);
        }
        services.sort_by(|a: &ServiceView, b| {
            (&a.namespace, &a.name, a.port, a.protocol, a.id).cmp(&(&b.namespace, &b.name, b.port, b.protocol, b.id))
        });
        services
    }

    fn add_frontends<const N: usize>(&self, family: &FamilyContents<N>, views: &mut BTreeMap<u32, ServiceView>) {
        for (key, service) in &family.services {
            let view = views.entry(service.id).or_insert_with(|| self.service(service.id));
            view.scheduler = scheduler_name(service.scheduler);
            view.affinity_timeout_s = service.affinity_timeout_s;
            view.rate_limit = (service.rate != 0).then(|| RateLimitView {
                rate: service.rate,
                burst: service.burst,
                dropped: self.counted(stat_kind::SERVICE, service.id, Outcome::DroppedRateLimit),
            });
            view.frontends.push(FrontendView {
                address: ip(key.address),
                port: key.port,
                kind: kind_name(service.kind),
                refuses: service.slot_count == 0,
            });
        }
    }

    fn add_backends<const N: usize>(&self, family: &FamilyContents<N>, views: &mut BTreeMap<u32, ServiceView>) {
        for (id, backend) in &family.backends {
            if let Some(view) = views.get_mut(&backend.service) {
                let connect_times = self.connect_times(backend_stat_kind::<N>(), *id);
                // What was measured stays in the sum: it only grows.
                if let Some(times) = connect_times {
                    view.connect_times.add(times);
                }
                if backend.state == backend_state::GONE {
                    continue;
                }
                let flows = self.flows_of(*id, backend);
                view.backends.push(BackendOfService {
                    address: ip(backend.address),
                    port: backend.port,
                    state: state_name(backend.state),
                    connect_times: connect_times.map(|times| Box::new(*times)),
                    ejected: health_of(family, *id, backend).ejected_s != 0,
                    unhealthy: is_unhealthy(backend),
                    fares: FARES.map(|outcome| self.counted(backend_stat_kind::<N>(), *id, outcome)),
                    began: self.began(backend_stat_kind::<N>(), *id),
                    flows: flows.all,
                    half_open: flows.half_open,
                    drain_seconds: self.deadline_seconds(backend.drain_ds),
                    deadline_seconds: self.deadline_seconds(backend.deadline_ds),
                });
            }
        }
    }

    fn began(&self, kind: u8, id: u32) -> u64 {
        BEGINNINGS.into_iter().map(|outcome| self.counted(kind, id, outcome)).sum()
    }

    fn service(&self, id: u32) -> ServiceView {
        let name = self.name(id);
        let count = |outcome| self.counted(stat_kind::SERVICE, id, outcome);
        ServiceView {
            namespace: name.namespace,
            name: name.service,
            port: name.port,
            protocol: name.protocol,
            id,
            scheduler: "",
            frontends: Vec::new(),
            backends: Vec::new(),
            port_name: name.label,
            affinity_timeout_s: 0,
            rate_limit: None,
            connect_time: None,
            endpoint_problems: Vec::new(),
            connect_times: self.connect_times(stat_kind::SERVICE, id).map(|times| Box::new(*times)).unwrap_or_default(),
            selected: SELECTIONS.into_iter().map(count).sum(),
            began: self.began(stat_kind::SERVICE, id),
            refused: NO_ENDPOINT.into_iter().map(count).sum(),
            retries: count(Outcome::Retried),
            refusals: REFUSALS.into_iter().map(count).sum(),
        }
    }
}

/// Name of a scheduler in tables and JSON.
pub fn scheduler_name(number: u8) -> &'static str {
    Scheduler::from_number(number).map_or("unknown", Scheduler::name)
}

/// Name of a kind of frontend in tables and JSON.
pub fn kind_name(kind: u8) -> &'static str {
    FrontendKind::from_number(kind).map_or("unknown", FrontendKind::name)
}
