//! The tables as people and scripts see them: services, backends, connections, names first. Pure.
//!
//! Serialized, these are the JSON of `ballast get` (docs/src/cli.md): field names and meanings are kept stable.

mod backends;
mod connections;
mod live;
mod services;

use std::collections::HashMap;
use std::net::IpAddr;

use lb_common::abi::{
    self, BackendState, backend_flags, backend_state, flow_flags, flow_state, half_open_flags, stat_kind,
};
use lb_common::outcome::Outcome;
use lb_common::state::{self, Timeouts};
use serde::Serialize;

use super::contents::{Contents, FamilyContents};
use super::report::BackendTotals;
use lb_model::Monotonic;
use lb_tables::from_chars;

pub use backends::BackendView;
pub use connections::{ConnectionView, flow_state_name};
pub use live::{BackendRef, Live, each_live};
pub use services::{
    BackendOfService, FARES, FrontendView, NO_ENDPOINT, SELECTIONS, ServiceView, kind_name, scheduler_name,
};

/// A list as `ballast get` prints it.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Items<T> {
    pub items: Vec<T>,
}

/// Namespace, service and port that an id stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub namespace: String,
    pub service: String,
    pub port: u16,
    pub protocol: &'static str,
    /// Name of the port; empty: none.
    pub label: String,
}

impl Name {
    /// Stands for a name that is gone: the id.
    pub fn unknown(id: u32) -> Self {
        Self {
            namespace: String::new(),
            service: if id == 0 { String::new() } else { format!("#{id}") },
            port: 0,
            protocol: "",
            label: String::new(),
        }
    }
}

/// The tables, indexed for the views.
pub struct Inventory<'a> {
    contents: &'a Contents,
    now: Monotonic,
    names: HashMap<u32, Name>,
    timeouts: Timeouts,
    /// Flows that have not expired, by backend.
    flows: HashMap<BackendKey, FlowCounts>,
    counters: HashMap<(u8, u32), Vec<(Outcome, u64)>>,
    connect_times: HashMap<abi::ConnectKey, &'a abi::ConnectTimes>,
}

/// How many flows a backend has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowCounts {
    all: u64,
    /// Those of them that nobody has answered.
    half_open: u64,
}

/// A backend's id is unique in its family; the generation distinguishes it from earlier backends with the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BackendKey {
    v6: bool,
    id: u32,
    generation: u16,
}

impl<'a> Inventory<'a> {
    /// `now` is the moment at which `contents` was read.
    pub fn new(contents: &'a Contents, now: Monotonic) -> Self {
        let (timeouts, mut flows) = (Timeouts::noted(&contents.settings), HashMap::new());
        count_flows(&contents.v4, &timeouts, now, &mut flows);
        count_flows(&contents.v6, &timeouts, now, &mut flows);
        let names = contents.names.iter().map(|(id, name)| (*id, name_of(name))).collect();
        let mut counters: HashMap<_, Vec<_>> = HashMap::new();
        for (key, count) in &contents.stats {
            if let Some(outcome) = Outcome::from_number(key.outcome) {
                counters.entry((key.kind, key.id)).or_default().push((outcome, *count));
            }
        }
        let connect_times = contents.connect_times.iter().map(|(key, times)| (*key, times)).collect();
        Self { contents, now, names, timeouts, flows, counters, connect_times }
    }

    /// The name of a service port; its id where the name is gone.
    fn name(&self, id: u32) -> Name {
        self.names.get(&id).cloned().unwrap_or_else(|| Name::unknown(id))
    }

    fn flows_of<const N: usize>(&self, id: u32, backend: &abi::Backend<N>) -> FlowCounts {
        self.flows.get(&backend_key::<N>(id, low_bits(backend.generation))).copied().unwrap_or_default()
    }

    fn counted(&self, kind: u8, id: u32, outcome: Outcome) -> u64 {
        let counters = self.counters.get(&(kind, id)).map_or(&[][..], Vec::as_slice);
        counters.iter().filter(|(counted, _)| *counted == outcome).map(|(_, count)| count).sum()
    }

    /// Connect times of a backend, or those that a service keeps of earlier ones.
    fn connect_times(&self, kind: u8, id: u32) -> Option<&'a abi::ConnectTimes> {
        self.connect_times.get(&abi::ConnectKey { id, kind: kind.into() }).copied()
    }

    /// Whether the programs count packets and bytes of each connection (`--flow-counters on`).
    pub fn counts_traffic(&self) -> bool {
        self.contents.settings.flow_counters != 0
    }

    /// How many of everything.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            services: self.service_ids().len() as u64,
            frontends: (self.contents.v4.services.len() + self.contents.v6.services.len()) as u64,
            flows: self.flows.values().map(|flows| flows.all).sum(),
            half_open: self.flows.values().map(|flows| flows.half_open).sum(),
            ejections: ejections(&self.contents.v4) + ejections(&self.contents.v6),
            adopted: self.adopted(&self.contents.v4) + self.adopted(&self.contents.v6),
            unhealthy: unhealthy(&self.contents.v4) + unhealthy(&self.contents.v6),
            ..Totals::default()
        };
        let backends = self.contents.v4.backends.iter().map(|(_, backend)| (backend.state, backend.deadline_ds));
        let backends =
            backends.chain(self.contents.v6.backends.iter().map(|(_, backend)| (backend.state, backend.deadline_ds)));
        for (state, deadline_ds) in backends {
            match BackendState::from_number(state) {
                Some(BackendState::Active) => totals.backends.active += 1,
                Some(BackendState::Unready) => totals.backends.unready += 1,
                Some(BackendState::Terminating) => totals.backends.terminating += 1,
                Some(BackendState::Draining) => totals.backends.draining += 1,
                Some(BackendState::Maintenance) => totals.backends.maintenance += 1,
                Some(BackendState::Gone | BackendState::Free) | None => totals.backends.gone += 1,
            }
            let passed = deadline_ds != 0 && self.now.to_tenths() >= deadline_ds;
            if passed && state != backend_state::GONE {
                totals.overdue += 1;
            }
        }
        totals
    }

    fn adopted<const N: usize>(&self, family: &FamilyContents<N>) -> u64 {
        living(family.flows.iter(), &self.timeouts, self.now).filter(|(_, flow)| is_adopted(flow)).count() as u64
    }

    fn service_ids(&self) -> std::collections::BTreeSet<u32> {
        let v4 = self.contents.v4.services.iter().map(|(_, service)| service.id);
        v4.chain(self.contents.v6.services.iter().map(|(_, service)| service.id)).collect()
    }
}

/// Counts for `ballast status` and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Totals {
    /// Service ports.
    pub services: u64,
    /// Addresses with a port.
    pub frontends: u64,
    pub backends: BackendTotals,
    /// Connections through the packet programs that have not expired.
    pub flows: u64,
    /// Those of them that nobody has answered.
    pub half_open: u64,
    /// Connections of another proxy, from before the first start: the host's NAT translates them. They are not among the flows.
    pub adopted: u64,
    /// Backends that are ejected: they left a connection unanswered that another one answered, or refused one.
    pub ejections: u64,
    /// Backends whose active checks fail.
    pub unhealthy: u64,
    /// Backends whose eviction deadline has passed, but which the agent has not taken out yet. The programs already evict their flows.
    pub overdue: u64,
}

fn count_flows<const N: usize>(
    family: &FamilyContents<N>,
    timeouts: &Timeouts,
    now: Monotonic,
    counts: &mut HashMap<BackendKey, FlowCounts>,
) {
    for (_, flow) in living(family.flows.iter(), timeouts, now).filter(|(_, flow)| !is_adopted(flow)) {
        counts.entry(backend_key::<N>(flow.backend, flow.generation)).or_default().all += 1;
    }
    for (_, entry) in half_open(family, timeouts, now) {
        let counts = counts.entry(backend_key::<N>(entry.flow.backend, entry.flow.generation)).or_default();
        counts.all += 1;
        counts.half_open += u64::from(entry.flow.state == flow_state::HALF_OPEN);
    }
}

/// Connections that have not expired: of the two entries of each, the one that the client's packets find.
fn living<'a, const N: usize, I>(
    entries: I,
    timeouts: &Timeouts,
    now: Monotonic,
) -> impl Iterator<Item = (&'a abi::FlowKey<N>, &'a abi::Flow<N>)>
where
    I: Iterator<Item = &'a (abi::FlowKey<N>, abi::Flow<N>)>,
{
    entries.map(|(key, flow)| (key, flow)).filter(move |(key, flow)| is_living(key, flow, timeouts, now))
}

/// Connections that have not expired and that the node does not know to be established.
fn half_open<'a, const N: usize>(
    family: &'a FamilyContents<N>,
    timeouts: &Timeouts,
    now: Monotonic,
) -> impl Iterator<Item = (&'a abi::FlowKey<N>, &'a abi::HalfOpen<N>)> {
    // A second SYN under the tuple of an answered flow is no connection yet. Nor is a second handshake, and a claim is none beside its own.
    let is_own = |key, entry: &abi::HalfOpen<N>| {
        !abi::is_claim(key) && !abi::is_second(key) && entry.flags & half_open_flags::SECOND == 0
    };
    let first = family.half_open.iter().filter(move |(key, entry)| is_own(key, entry));
    first.map(|(key, entry)| (key, entry)).filter(move |(key, entry)| is_living(key, &entry.flow, timeouts, now))
}

fn is_living<const N: usize>(key: &abi::FlowKey<N>, flow: &abi::Flow<N>, timeouts: &Timeouts, now: Monotonic) -> bool {
    is_forward(flow) && !state::expired(flow, timeouts.of_flow(key.protocol, flow), seconds(now))
}

fn is_adopted<const N: usize>(flow: &abi::Flow<N>) -> bool {
    flow.state == flow_state::ADOPTED
}

/// What was seen of a backend; nothing, where that was of an earlier one of its id.
fn health_of<const N: usize>(family: &FamilyContents<N>, id: u32, backend: &abi::Backend<N>) -> abi::Health {
    let found = usize::try_from(id).ok().and_then(|index| family.health.get(index));
    found.filter(|health| health.generation == backend.generation).copied().unwrap_or_default()
}

/// How many are ejected.
fn ejections<const N: usize>(family: &FamilyContents<N>) -> u64 {
    let living = family.backends.iter().filter(|(_, backend)| backend.state != backend_state::GONE);
    living.filter(|(id, backend)| health_of(family, *id, backend).ejected_s != 0).count() as u64
}

fn unhealthy<const N: usize>(family: &FamilyContents<N>) -> u64 {
    family.backends.iter().filter(|(_, backend)| is_unhealthy(backend)).count() as u64
}

/// Its active checks fail, as the agent last wrote it.
fn is_unhealthy<const N: usize>(backend: &abi::Backend<N>) -> bool {
    backend.state != backend_state::GONE && backend.flags & backend_flags::UNHEALTHY != 0
}

/// The direction from client to service: one such entry is one connection.
fn is_forward<const N: usize>(flow: &abi::Flow<N>) -> bool {
    flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) == 0
}

fn backend_key<const N: usize>(id: u32, generation: u16) -> BackendKey {
    BackendKey { v6: N == abi::V6, id, generation }
}

#[expect(clippy::cast_possible_truncation, reason = "flows keep the low 16 bits")]
fn low_bits(generation: u32) -> u16 {
    generation as u16
}

fn seconds(now: Monotonic) -> u32 {
    // Rounded down, as the programs do.
    u32::try_from(now.since(Monotonic::default()).as_secs()).unwrap_or(u32::MAX)
}

pub(super) fn name_of(name: &abi::ServiceName) -> Name {
    Name {
        namespace: from_chars(&name.namespace),
        service: from_chars(&name.name),
        port: name.port,
        protocol: protocol_name(name.protocol),
        label: from_chars(&name.port_name),
    }
}

/// An address of a record.
pub fn ip<const N: usize>(address: [u8; N]) -> IpAddr {
    let mut v6 = [0; abi::V6];
    v6[..N].copy_from_slice(&address);
    if N == abi::V6 { IpAddr::from(v6) } else { IpAddr::from([v6[0], v6[1], v6[2], v6[3]]) }
}

/// Name of a protocol in tables and JSON.
pub fn protocol_name(protocol: u8) -> &'static str {
    match protocol {
        abi::TCP => "TCP",
        abi::UDP => "UDP",
        abi::SCTP => "SCTP",
        _ => "?",
    }
}

/// Name of a backend's state in tables, JSON and metrics.
pub fn state_name(state: u8) -> &'static str {
    BackendState::from_number(state).unwrap_or(BackendState::Free).name()
}

const fn backend_stat_kind<const N: usize>() -> u8 {
    if N == abi::V6 { stat_kind::BACKEND6 } else { stat_kind::BACKEND4 }
}

#[cfg(test)]
pub(crate) mod tests;
