//! What `ballast plan` prints: what a change would do on this node, and how many connections it concerns.
//!
//! Serialized, this is the JSON of `ballast plan` (docs/src/cli.md): field names and meanings are kept stable.

mod count;
mod tables;
mod text;

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::inventory::{kind_name, state_name};
use lb_model::Family;
use lb_plan::plan::{self, Change, Fate};

pub use tables::read;
pub use text::table;

/// The whole answer. The agent gives all of it but the connections, which are counted over the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PlanReport {
    /// Why the change cannot be planned; left out: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of the source's snapshot that the change was planned over.
    pub revision: u64,
    /// Why the agent's source is stale; null: it is fresh.
    pub stale: Option<String>,
    /// Whether the change would change anything.
    pub differs: bool,
    /// Service ports that would differ, by namespace, name, port and protocol.
    pub services: Vec<ServicePlan>,
    /// Health-check node ports that would answer otherwise.
    pub health_checks: Vec<HealthCheckPlan>,
    /// What of the change, or because of it, would not be served.
    pub refusals: Vec<String>,
    /// Objects of kinds that are not planned.
    pub ignored: Vec<String>,
    /// Connections that would not stay as they are.
    pub connections: Concerned,
}

/// How many connections a change concerns, each once, by what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Concerned {
    pub drain: u64,
    #[serde(rename = "move")]
    pub moved: u64,
    pub end: u64,
    /// Host sockets, translated at connect, whose backend would drain or end. They are not among the others.
    pub host_sockets: u64,
}

/// What would happen to a service port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePlan {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub protocol: String,
    pub change: Change,
    /// Backends that take new connections, before and after.
    pub taking_before: usize,
    pub taking_after: usize,
    pub settings: Vec<SettingPlan>,
    pub frontends: Vec<FrontendPlan>,
    pub backends: Vec<BackendPlan>,
}

/// A setting that would differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SettingPlan {
    pub name: String,
    pub before: String,
    pub after: String,
}

/// What would happen to a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FrontendPlan {
    pub address: IpAddr,
    pub port: u16,
    pub kind: String,
    pub change: Change,
    /// The service port that has it now, where it moves; null: it does not.
    pub from: Option<String>,
    pub settings: Vec<SettingPlan>,
    /// What becomes of connections that came by it, as far as their backends stay.
    pub fate: Fate,
    pub connections: u64,
}

/// What would happen to a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BackendPlan {
    pub address: IpAddr,
    pub port: u16,
    pub change: Change,
    /// Id and generation in the maps; null: it is not there yet.
    pub id: Option<u32>,
    pub generation: Option<u32>,
    /// Null: it is not there.
    pub before: Option<BackendStatePlan>,
    pub after: Option<BackendStatePlan>,
    /// Seconds until its drain period would end; null: it does not drain.
    pub drain_seconds: Option<u64>,
    /// Seconds until its last connections would be evicted; null: no deadline.
    pub deadline_seconds: Option<u64>,
    pub fate: Fate,
    /// Connections through the packet programs that go on.
    pub connections: u64,
    /// Host sockets that were translated at connect.
    pub host_sockets: u64,
}

/// What shows of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BackendStatePlan {
    pub state: String,
    pub takes_new: bool,
    pub weight: u16,
    pub local: bool,
}

/// What a health-check node port would answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheckPlan {
    pub port: u16,
    pub service: String,
    /// Ready endpoints of this node; null: nobody answers there.
    pub local_endpoints_before: Option<u64>,
    pub local_endpoints_after: Option<u64>,
}

impl PlanReport {
    /// A change that cannot be planned.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
}

impl From<&plan::Differing> for SettingPlan {
    fn from(one: &plan::Differing) -> Self {
        Self { name: one.name.to_owned(), before: one.before.clone(), after: one.after.clone() }
    }
}

impl From<&plan::PortEffect> for ServicePlan {
    fn from(effect: &plan::PortEffect) -> Self {
        let key = &effect.key;
        Self {
            namespace: key.service.namespace.to_string(),
            name: key.service.name.to_string(),
            port: key.port,
            protocol: key.protocol.to_string(),
            change: effect.change,
            taking_before: effect.taking[0],
            taking_after: effect.taking[1],
            settings: effect.settings.iter().map(Into::into).collect(),
            frontends: effect.frontends.iter().map(Into::into).collect(),
            backends: effect.backends.iter().map(Into::into).collect(),
        }
    }
}

impl From<&plan::FrontendEffect> for FrontendPlan {
    fn from(effect: &plan::FrontendEffect) -> Self {
        Self {
            address: effect.frontend.address,
            port: effect.frontend.port,
            kind: kind_name(effect.kind.number()).to_owned(),
            change: effect.change,
            from: effect.from.as_ref().map(ToString::to_string),
            settings: effect.settings.iter().map(Into::into).collect(),
            fate: effect.fate,
            connections: 0,
        }
    }
}

impl From<&plan::BackendEffect> for BackendPlan {
    fn from(effect: &plan::BackendEffect) -> Self {
        let state = |state: plan::BackendState| BackendStatePlan {
            state: state_name(state.state).to_owned(),
            takes_new: state.takes_new,
            weight: state.weight,
            local: state.local,
        };
        Self {
            address: effect.address.ip(),
            port: effect.address.port(),
            change: effect.change,
            id: effect.record.map(|(id, _)| id.id),
            generation: effect.record.map(|(_, generation)| generation),
            before: effect.before.map(state),
            after: effect.after.map(state),
            drain_seconds: effect.drain.map(rounded),
            deadline_seconds: effect.deadline.map(rounded),
            fate: effect.fate,
            connections: 0,
            host_sockets: 0,
        }
    }
}

impl BackendPlan {
    fn is_v6(&self) -> bool {
        Family::of(self.address) == Family::V6
    }
}

impl From<&plan::HealthCheckEffect> for HealthCheckPlan {
    fn from(effect: &plan::HealthCheckEffect) -> Self {
        let service = effect.after.as_ref().or(effect.before.as_ref()).map(|check| check.service.to_string());
        let local = |check: &Option<plan::HealthCheck>| check.as_ref().map(|check| check.local_ready as u64);
        Self {
            port: effect.port,
            service: service.unwrap_or_default(),
            local_endpoints_before: local(&effect.before),
            local_endpoints_after: local(&effect.after),
        }
    }
}

/// Records have tenths of a second.
fn rounded(duration: Duration) -> u64 {
    (duration + Duration::from_millis(500)).as_secs()
}

#[cfg(test)]
mod tests;
