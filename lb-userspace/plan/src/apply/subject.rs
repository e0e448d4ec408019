//! What a change of the tables is for.

use std::{fmt, net::IpAddr};

use crate::plan::{BackendId, Op};
use lb_model::PortKey;

/// What a change is for: the failure of one is no other's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Service(PortKey),
    Vip(IpAddr),
    /// An id or a slot range that is given up.
    Release(Released),
    /// The note of what the tables hold.
    Note,
}

/// What is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Released {
    /// First slot of the range.
    Slots(u32),
    Backend(BackendId),
    Service(u32),
}

impl Released {
    pub fn by(op: &Op) -> Option<Self> {
        match op {
            Op::ReleaseSlots { range } => Some(Self::Slots(range.base)),
            Op::FreeBackend { id, .. } => Some(Self::Backend(*id)),
            Op::ForgetService { id } => Some(Self::Service(*id)),
            Op::WriteName { .. }
            | Op::WriteBackend { .. }
            | Op::WriteSlots { .. }
            | Op::WriteSource { .. }
            | Op::WriteFrontend { .. }
            | Op::RemoveFrontend { .. }
            | Op::RetireBackend { .. }
            | Op::RemoveSource { .. }
            | Op::WriteVip { .. }
            | Op::RemoveVip { .. }
            | Op::WriteConfig { .. } => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => write!(f, "Service {key}"),
            Self::Vip(address) => write!(f, "address {address}"),
            Self::Release(Released::Slots(base)) => write!(f, "slots from {base}"),
            Self::Release(Released::Backend(id)) => write!(f, "backend id {}", id.id),
            Self::Release(Released::Service(id)) => write!(f, "service port {id}"),
            Self::Note => write!(f, "the note of the revision"),
        }
    }
}
