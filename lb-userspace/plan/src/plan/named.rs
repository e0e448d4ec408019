//! How other nodes name a backend of this one: by its address and the service port (`endpoints4/6`).

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::abi::{self, backend_flags, backend_state};

use super::{BackendId, BackendRecord, Op};

/// What `endpoints4` and `endpoints6` hold: by address and service port id.
pub type Endpoints = BTreeMap<(IpAddr, u32), abi::Endpoint>;

/// How another node names a backend of this one, and where that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Address and service port.
    pub key: (IpAddr, u32),
    pub endpoint: abi::Endpoint,
    /// It drains: the name has no port, so one that follows another at the same address has the name, and the one that drains has it only
    /// where nobody follows.
    pub yields: bool,
}

impl Named {
    /// Whether `entry`, under `key` in the table, leads here and stays before one that yields.
    pub fn keeps(&self, key: (IpAddr, u32), entry: abi::Endpoint) -> bool {
        (self.key, self.endpoint, self.yields) == (key, entry, false)
    }
}

/// `None`: it is not here, or its deadline is over.
pub fn named(id: BackendId, record: &BackendRecord) -> Option<Named> {
    let is_here =
        record.flags & backend_flags::LOCAL != 0 && !matches!(record.state, backend_state::GONE | backend_state::FREE);
    is_here.then(|| Named {
        key: (record.address.ip(), record.service),
        endpoint: abi::Endpoint { backend: id.id, generation: record.generation },
        yields: record.state == backend_state::DRAINING,
    })
}

/// The entry that the operation writes.
pub(super) fn key_of(op: &Op) -> Option<(IpAddr, u32)> {
    match op {
        Op::WriteBackend { id, record } | Op::RetireBackend { id, record } => Some(named(*id, record)?.key),
        Op::WriteName { .. }
        | Op::WriteSlots { .. }
        | Op::WriteSource { .. }
        | Op::WriteFrontend { .. }
        | Op::RemoveFrontend { .. }
        | Op::RemoveSource { .. }
        | Op::FreeBackend { .. }
        | Op::ReleaseSlots { .. }
        | Op::ForgetService { .. }
        | Op::WriteVip { .. }
        | Op::RemoveVip { .. }
        | Op::WriteConfig { .. } => None,
    }
}

/// What the tables do when the record of a backend is written. True if an entry was added.
pub fn put(
    endpoints: &mut Endpoints,
    backends: &BTreeMap<BackendId, BackendRecord>,
    id: BackendId,
    record: &BackendRecord,
) -> bool {
    let Some(named_here) = named(id, record) else { return false };
    let keeps = |entry: &abi::Endpoint| {
        let id = BackendId { family: id.family, id: entry.backend };
        let other = backends.get(&id).and_then(|record| named(id, record));
        other.is_some_and(|other| other.keeps(named_here.key, *entry))
    };
    if named_here.yields && endpoints.get(&named_here.key).is_some_and(keeps) {
        return false;
    }
    endpoints.insert(named_here.key, named_here.endpoint).is_none()
}

/// What the tables do when the backend's id is given up: `record` is what it held. True if an entry was taken out.
pub fn forget(endpoints: &mut Endpoints, id: BackendId, record: &BackendRecord) -> bool {
    let key = (record.address.ip(), record.service);
    let leads_here = endpoints.get(&key).is_some_and(|endpoint| endpoint.backend == id.id);
    leads_here && endpoints.remove(&key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::Family;

    #[test]
    fn another_node_finds_a_backend_until_its_deadline() {
        let id = BackendId { family: Family::V4, id: 7 };
        let mut record = BackendRecord {
            address: "10.0.0.1:80".parse().expect("valid"),
            state: backend_state::FREE,
            flags: 0,
            generation: 3,
            service: 1,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        for (state, flags, yields) in [
            (backend_state::ACTIVE, backend_flags::LOCAL, Some(false)),
            (backend_state::TERMINATING, backend_flags::LOCAL, Some(false)),
            (backend_state::ACTIVE, 0, None),
            // Another port of the address may have come instead.
            (backend_state::DRAINING, backend_flags::LOCAL, Some(true)),
            (backend_state::GONE, backend_flags::LOCAL, None),
            (backend_state::FREE, backend_flags::LOCAL, None),
        ] {
            (record.state, record.flags) = (state, flags);
            assert_eq!(named(id, &record).map(|named| named.yields), yields, "state {state}, flags {flags}");
        }
    }
}
