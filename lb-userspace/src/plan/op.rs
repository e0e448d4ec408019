//! One change of the tables, as data, and the order that keeps readers safe.

use std::{fmt, net::SocketAddr};

use lb_common::abi;

use super::{Frontend, Range};
use crate::model::{Family, Monotonic};

/// Index into `backends4` or `backends6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId {
    pub family: Family,
    pub id: u32,
}

/// An [`abi::Backend`] of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendRecord {
    pub address: SocketAddr,
    /// [`abi::backend_state`].
    pub state: u8,
    /// [`abi::backend_flags`].
    pub flags: u8,
    pub generation: u32,
    /// Id of the service port.
    pub service: u32,
    /// Tenths of a second of `CLOCK_MONOTONIC`; 0: never.
    pub deadline_ds: u32,
    pub uid_hash: u32,
    pub weight: u16,
}

impl BackendRecord {
    /// The same backend after its end: no flow of its generation is forwarded any more. One that was terminating keeps its
    /// deadline: as long as the API lists it, it has had its time.
    #[must_use]
    pub fn gone(self) -> Self {
        let generation = next_generation(self.generation);
        let deadline_ds = if self.state == abi::backend_state::TERMINATING { self.deadline_ds } else { 0 };
        Self { state: abi::backend_state::GONE, deadline_ds, generation, ..self }
    }

    /// True if `now` is at or after the deadline.
    pub fn is_struck(&self, now: Monotonic) -> bool {
        self.deadline_ds != 0 && now >= Monotonic::from_tenths(self.deadline_ds)
    }
}

/// The generation after this one. 0 means never used; flows keep the low 16 bits.
pub fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

/// One change of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    WriteName {
        id: u32,
        name: abi::ServiceName,
    },
    /// A backend that the slots to come refer to, or a new one.
    WriteBackend {
        id: BackendId,
        record: BackendRecord,
    },
    WriteSlots {
        base: u32,
        slots: Vec<abi::Slot>,
    },
    /// The one entry that makes an update visible.
    WriteFrontend {
        frontend: Frontend,
        entry: abi::Service,
    },
    RemoveFrontend {
        frontend: Frontend,
    },
    /// A backend that takes no new flows from here on.
    RetireBackend {
        id: BackendId,
        record: BackendRecord,
    },
    /// Nothing refers to this id any more; its generation is kept, so that the next use has another one.
    FreeBackend {
        id: BackendId,
        generation: u32,
    },
    /// The range may be written again. Changes the book alone.
    ReleaseSlots {
        range: Range,
    },
    /// Nothing refers to this service port any more: its name and its counters go.
    ForgetService {
        id: u32,
    },
    /// The tables hold this revision.
    WriteConfig {
        revision: u64,
        programmed_ds: u32,
    },
}

impl Op {
    /// Place in the order: what a reader may reach is complete before the entry that leads there is written, and nothing is
    /// taken away before no entry leads there any more.
    fn rank(&self) -> u8 {
        match self {
            Self::WriteName { .. } => 0,
            Self::WriteBackend { .. } => 1,
            Self::WriteSlots { .. } => 2,
            Self::WriteFrontend { .. } => 3,
            Self::RemoveFrontend { .. } => 4,
            Self::RetireBackend { .. } => 5,
            Self::FreeBackend { .. } | Self::ReleaseSlots { .. } | Self::ForgetService { .. } => 6,
            Self::WriteConfig { .. } => 7,
        }
    }
}

/// Brings operations into the order backends → slots → service → release; within a step the order stays.
pub fn order(ops: &mut [Op]) {
    ops.sort_by_key(Op::rank);
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteName { id, .. } => write!(f, "write name of service port {id}"),
            Self::WriteBackend { record, .. } => write!(f, "write backend {}", record.address),
            Self::WriteSlots { base, slots } => write!(f, "write {} slots from {base}", slots.len()),
            Self::WriteFrontend { frontend, .. } => write!(f, "write frontend {frontend}"),
            Self::RemoveFrontend { frontend } => write!(f, "remove frontend {frontend}"),
            Self::RetireBackend { record, .. } => write!(f, "retire backend {}", record.address),
            Self::FreeBackend { id, .. } => write!(f, "free backend id {}", id.id),
            Self::ReleaseSlots { range } => write!(f, "release {} slots from {}", range.count, range.base),
            Self::ForgetService { id } => write!(f, "forget service port {id}"),
            Self::WriteConfig { revision, .. } => write!(f, "note revision {revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Ranges, Set, Use};

    #[test]
    fn readers_never_reach_what_is_not_written_yet_or_no_more() {
        let id = BackendId { family: Family::V4, id: 1 };
        let record = BackendRecord {
            address: "10.0.0.1:80".parse().unwrap(),
            state: abi::backend_state::ACTIVE,
            flags: 0,
            generation: 1,
            service: 1,
            deadline_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        let frontend =
            Frontend { address: "10.96.0.1".parse().unwrap(), port: 80, protocol: crate::model::Protocol::Tcp };
        let uses = Use { kind: Kind::ClusterIp, inside: Set::Cluster, outside: Set::Cluster, flags: 0 };
        let ranges = Ranges { cluster: Range { base: 0, count: 1 }, local: Range::default() };
        let entry = frontend.entry(1, 1, uses, ranges, 0);
        let backend = Op::WriteBackend { id, record };
        let slots = Op::WriteSlots { base: 0, slots: vec![abi::Slot::default()] };
        let service = Op::WriteFrontend { frontend, entry };
        let retire = Op::RetireBackend { id, record };
        let release = Op::ReleaseSlots { range: Range { base: 5, count: 1 } };
        let wanted = [backend.clone(), slots.clone(), service.clone(), retire.clone(), release.clone()];
        let mut ops = vec![release, retire, service, slots, backend];
        order(&mut ops);
        assert_eq!(ops, wanted);
    }
}
