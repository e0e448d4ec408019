//! One change of the tables, as data, and the order that keeps readers safe.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use lb_common::abi;

use super::{Frontend, Range, Use};
use lb_model::{Family, Monotonic};

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
    /// The eviction deadline: tenths of a second of `CLOCK_MONOTONIC`; 0: never.
    pub deadline_ds: u32,
    /// End of the drain period, by the same clock; 0: it does not drain.
    pub drain_ds: u32,
    pub uid_hash: u32,
    pub weight: u16,
}

/// Flags of a backend that takes new flows.
const IN_SETS: u8 = abi::backend_flags::IN_CLUSTER_SET | abi::backend_flags::IN_LOCAL_SET;

impl BackendRecord {
    /// The backend after its end: no flow of its generation is forwarded any more. One that was terminating keeps its
    /// deadline: once that has passed, it has had its time, as long as the API lists it.
    #[must_use]
    pub fn gone(self) -> Self {
        let generation = next_generation(self.generation);
        let deadline_ds = if self.state == abi::backend_state::TERMINATING { self.deadline_ds } else { 0 };
        Self {
            state: abi::backend_state::GONE,
            flags: self.flags & !IN_SETS,
            deadline_ds,
            drain_ds: 0,
            generation,
            ..self
        }
    }

    /// The backend after it left every slice: until when its drain period lasts, and its eviction deadline.
    #[must_use]
    pub fn draining(self, drain_ds: u32, deadline_ds: u32) -> Self {
        Self { state: abi::backend_state::DRAINING, flags: self.flags & !IN_SETS, deadline_ds, drain_ds, ..self }
    }

    /// True if its drain period is over.
    pub fn is_drained(&self, now: Monotonic) -> bool {
        self.drain_ds != 0 && now >= Monotonic::from_tenths(self.drain_ds)
    }

    /// True if `now` is at or after the eviction deadline.
    pub fn is_evictable(&self, now: Monotonic) -> bool {
        self.deadline_ds != 0 && now >= Monotonic::from_tenths(self.deadline_ds)
    }
}

/// The generation after this one. 0 means never used; flows keep the low 16 bits.
pub fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

/// The note of what the tables hold.
pub fn config(revision: u64, programmed_ds: u32) -> abi::Config {
    abi::Config {
        abi_version: abi::ABI_VERSION,
        programmed_ds,
        revision_low: u32::try_from(revision & u64::from(u32::MAX)).unwrap_or_default(),
        revision_high: u32::try_from(revision >> 32).unwrap_or_default(),
    }
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
    /// A network that the frontends to come admit.
    WriteSource {
        id: u32,
        network: IpNet,
    },
    /// The one entry that makes an update visible.
    WriteFrontend {
        frontend: Frontend,
        entry: abi::Service,
        /// The set of each range of the entry; only the programmed state records it.
        uses: Use,
    },
    RemoveFrontend {
        frontend: Frontend,
    },
    /// A backend that takes no new flows from here on.
    RetireBackend {
        id: BackendId,
        record: BackendRecord,
    },
    /// No frontend of this service port admits the network any more.
    RemoveSource {
        id: u32,
        network: IpNet,
    },
    /// Nothing refers to this id any more; its generation is kept, so that the next use has another one.
    FreeBackend {
        id: BackendId,
        generation: u32,
    },
    /// The range may be written again. Changes only the programmed state.
    ReleaseSlots {
        range: Range,
    },
    /// Nothing refers to this service port any more: its name and its counters go.
    ForgetService {
        id: u32,
    },
    /// What becomes of packets to this address that no frontend serves.
    WriteVip {
        address: IpAddr,
        vip: abi::Vip,
    },
    RemoveVip {
        address: IpAddr,
    },
    /// The tables hold this revision.
    WriteConfig {
        revision: u64,
        programmed_ds: u32,
    },
}

/// What an operation adds.
pub(super) enum Added<'a> {
    Name(u32),
    Backend(BackendId),
    /// The first slot of the range, and what is in it.
    Slots(u32, &'a [abi::Slot]),
    Source(u32, IpNet),
    Frontend(Frontend),
    Vip(IpAddr),
}

impl Op {
    /// The address that a packet may find something at, once this is written.
    pub fn address(&self) -> Option<IpAddr> {
        match self.added()? {
            Added::Frontend(frontend) => Some(frontend.address),
            Added::Vip(address) => Some(address),
            Added::Name(_) | Added::Backend(_) | Added::Slots(..) | Added::Source(..) => None,
        }
    }

    /// What takes room in the tables, if they do not hold it yet; `None`: the operation takes none.
    pub(super) fn added(&self) -> Option<Added<'_>> {
        Some(match self {
            Self::WriteName { id, .. } => Added::Name(*id),
            Self::WriteBackend { id, .. } => Added::Backend(*id),
            Self::WriteSlots { base, slots } => Added::Slots(*base, slots),
            Self::WriteSource { id, network } => Added::Source(*id, *network),
            Self::WriteFrontend { frontend, .. } => Added::Frontend(*frontend),
            Self::WriteVip { address, .. } => Added::Vip(*address),
            Self::RemoveFrontend { .. }
            | Self::RetireBackend { .. }
            | Self::RemoveSource { .. }
            | Self::FreeBackend { .. }
            | Self::ReleaseSlots { .. }
            | Self::ForgetService { .. }
            | Self::RemoveVip { .. }
            | Self::WriteConfig { .. } => return None,
        })
    }

    /// Place in the order. What a reader may reach is complete before the entry that leads there is written, and nothing is removed while an entry
    /// still leads there.
    pub fn rank(&self) -> u8 {
        match self {
            Self::WriteName { .. } => 0,
            Self::WriteBackend { .. } => 1,
            Self::WriteSource { .. } => 2,
            Self::WriteSlots { .. } => 3,
            Self::WriteFrontend { .. } => 4,
            Self::RemoveFrontend { .. } => 5,
            Self::RetireBackend { .. } => 6,
            Self::RemoveSource { .. } => 7,
            Self::FreeBackend { .. } | Self::ReleaseSlots { .. } | Self::ForgetService { .. } => 8,
            // An address refuses what no frontend serves, so its frontends come first.
            Self::WriteVip { .. } | Self::RemoveVip { .. } => 9,
            Self::WriteConfig { .. } => 10,
        }
    }
}

/// Brings operations into the order backends → source ranges → slots → service → release; within a step the order stays.
pub fn order(ops: &mut [Op]) {
    ops.sort_by_key(Op::rank);
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteName { id, .. } => write!(f, "write name of service port {id}"),
            Self::WriteBackend { record, .. } => write!(f, "write backend {}", record.address),
            Self::WriteSlots { base, slots } => write!(f, "write {} slots from {base}", slots.len()),
            Self::WriteSource { network, .. } => write!(f, "write source range {network}"),
            Self::WriteFrontend { frontend, .. } => write!(f, "write frontend {frontend}"),
            Self::RemoveFrontend { frontend } => write!(f, "remove frontend {frontend}"),
            Self::RetireBackend { record, .. } => write!(f, "retire backend {}", record.address),
            Self::RemoveSource { network, .. } => write!(f, "remove source range {network}"),
            Self::FreeBackend { id, .. } => write!(f, "free backend id {}", id.id),
            Self::ReleaseSlots { range } => write!(f, "release {} slots from {}", range.count, range.base),
            Self::ForgetService { id } => write!(f, "forget service port {id}"),
            Self::WriteVip { address, .. } => write!(f, "write address {address}"),
            Self::RemoveVip { address } => write!(f, "remove address {address}"),
            Self::WriteConfig { revision, .. } => write!(f, "note revision {revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DesiredService, FrontendKind, Ranges, Set, Use};

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
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        let frontend = Frontend { address: "10.96.0.1".parse().unwrap(), port: 80, protocol: lb_model::Protocol::Tcp };
        let uses = Use { kind: FrontendKind::ClusterIp, inside: Set::Cluster, outside: Set::Cluster, flags: 0 };
        let ranges = Ranges { cluster: Range { base: 0, count: 1 }, local: Range::default() };
        let entry = frontend.entry(1, 1, uses, ranges, &DesiredService::default());
        let backend = Op::WriteBackend { id, record };
        let slots = Op::WriteSlots { base: 0, slots: vec![abi::Slot::default()] };
        let service = Op::WriteFrontend { frontend, entry, uses };
        let network = "192.0.2.0/24".parse().unwrap();
        let (admit, no_more) = (Op::WriteSource { id: 1, network }, Op::RemoveSource { id: 1, network });
        let vip = Op::WriteVip { address: frontend.address, vip: abi::Vip { flags: 0 } };
        let retire = Op::RetireBackend { id, record };
        let release = Op::ReleaseSlots { range: Range { base: 5, count: 1 } };
        let wanted = [backend, admit, slots, service, retire, no_more, release, vip];
        let mut ops = wanted.to_vec();
        ops.reverse();
        order(&mut ops);
        assert_eq!(ops, wanted);
    }
}
