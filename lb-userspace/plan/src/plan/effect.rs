//! What a change of the desired state would do: to frontends, backends, and the connections that these have.

use std::{net::SocketAddr, time::Duration};

use lb_common::abi::{backend_flags, backend_state};
use serde::{Deserialize, Serialize};

use super::{BackendId, BackendRecord, Frontend, FrontendKind};
use lb_model::{PortKey, Protocol};

/// What would happen to a service port, a frontend or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Add,
    /// Frontends only: another service port gets it.
    Move,
    /// Backends only: it takes no new connections, and those that it has go on within the drain's limits.
    Drain,
    /// Backends only: another pod comes to its address.
    Replace,
    End,
    /// It stays, and something of it differs.
    #[default]
    Change,
}

/// What becomes of connections that are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    #[default]
    Stay,
    /// They go on until a limit.
    Drain,
    /// UDP: another backend gets the next packet.
    Move,
    /// TCP and SCTP: each side gets a RST or an ABORT at its next packet. UDP: no backend gets the next packet.
    End,
}

/// What would happen to one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEffect {
    pub key: PortKey,
    pub change: Change,
    pub settings: Vec<Differing>,
    /// Backends that take new connections, before and after.
    pub taking: [usize; 2],
    /// In the order of their addresses, as the backends.
    pub frontends: Vec<FrontendEffect>,
    pub backends: Vec<BackendEffect>,
}

/// A setting that differs, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Name in JSON.
    pub name: &'static str,
    pub before: String,
    pub after: String,
}

impl Differing {
    /// `None`: both are the same.
    pub(super) fn new(name: &'static str, [before, after]: [String; 2]) -> Option<Self> {
        (before != after).then_some(Self { name, before, after })
    }
}

/// What would happen to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendEffect {
    pub frontend: Frontend,
    pub kind: FrontendKind,
    pub change: Change,
    /// Who has it now, where it moves.
    pub from: Option<PortKey>,
    pub settings: Vec<Differing>,
    /// Of connections that came by it, as far as their backends stay.
    pub fate: Fate,
}

/// What would happen to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendEffect {
    pub address: SocketAddr,
    pub change: Change,
    /// Id and generation in the tables; `None`: it has no record yet.
    pub record: Option<(BackendId, u32)>,
    /// `None`: it is not there.
    pub before: Option<BackendState>,
    pub after: Option<BackendState>,
    /// Until the drain period ends.
    pub drain: Option<Duration>,
    /// Until the last connections are evicted.
    pub deadline: Option<Duration>,
    pub fate: Fate,
}

/// What shows of a backend's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendState {
    /// [`backend_state`].
    pub state: u8,
    /// It takes new connections.
    pub takes_new: bool,
    pub weight: u16,
    pub local: bool,
}

impl BackendState {
    /// `takes_new`: a set has the backend.
    pub(super) fn of(record: &BackendRecord, takes_new: bool) -> Self {
        let local = record.flags & backend_flags::LOCAL != 0;
        Self { state: record.state, takes_new, weight: record.weight, local }
    }
}

/// What becomes of a backend's connections. `after`: its record then; `has_other`: a backend of the family takes new connections then.
pub(super) fn fate(protocol: Protocol, change: Change, after: Option<&BackendRecord>, has_other: bool) -> Fate {
    let is = |state| after.is_some_and(|record| record.state == state);
    let serves = after.is_some_and(|record| record.flags & backend_flags::SERVING != 0);
    let is_over = matches!(change, Change::End | Change::Replace);
    if protocol == Protocol::Udp {
        let is_silent = (is(backend_state::UNREADY) || is(backend_state::TERMINATING)) && !serves;
        return match (is_over || change == Change::Drain || is_silent, has_other) {
            (false, _) => Fate::Stay,
            (true, true) => Fate::Move,
            (true, false) => Fate::End,
        };
    }
    match change {
        Change::End | Change::Replace => Fate::End,
        Change::Drain => Fate::Drain,
        Change::Add | Change::Move | Change::Change => {
            if is(backend_state::TERMINATING) {
                Fate::Drain
            } else {
                Fate::Stay
            }
        }
    }
}
