//! What a round saw of backends, and what follows once it has seen everything.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi::{Flow, HalfOpen, half_open_flags};

use super::{Clients, rules};
use crate::plan::{BackendId, Frontend};
use lb_model::{Family, Monotonic};

/// Connections of each backend that has any.
pub type Counts = BTreeMap<BackendId, u32>;

/// What is asked of a round, as it was when the round began.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Backends that are gone.
    pub gone: BTreeSet<BackendId>,
    /// Backends that drain.
    pub draining: BTreeSet<BackendId>,
    /// As the programs count them.
    pub connections: Counts,
    /// Connections of clients, as the programs count them.
    pub client_shares: Vec<u32>,
    /// Frontends that are no more and that the round before met in flows, and since when.
    pub unserved: BTreeMap<Frontend, Monotonic>,
    /// Entries of established connections that the round before left, of IPv4 and of IPv6.
    pub established: [u32; 2],
}

/// What a round has seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub start: Start,
    /// Of those that are gone: still referred to.
    pub referred: BTreeSet<BackendId>,
    /// Of those that drain: with a flow or a socket left.
    busy: BTreeSet<BackendId>,
    /// As the round counts them.
    pub counted: Counts,
    /// Connections of each client, as the round counts them.
    pub clients: Clients,
    /// Frontends that are no more and that flows came by, and since when.
    pub unserved: BTreeMap<Frontend, Monotonic>,
    /// Entries of established connections, of IPv4 and of IPv6.
    pub established: [u32; 2],
    /// Flows that were cut off.
    pub cut: u64,
    /// Flows whose backend sees an address of this node in the client's place.
    pub masqueraded: u64,
}

impl Seen {
    /// A round that begins; `client_key` is that of the programs' hashes.
    pub fn new(start: Start, client_key: u32) -> Self {
        Self { start, clients: Clients::new(client_key), ..Self::default() }
    }

    /// Whether the backend was gone at the start of the round.
    pub(super) fn is_gone(&self, id: BackendId) -> bool {
        self.start.gone.contains(&id)
    }

    /// Whether a table of so many entries had room at the end of the round before: less than half of it was taken.
    pub(super) fn has_room(&self, family: Family, capacity: u32) -> bool {
        self.start.established[usize::from(family == Family::V6)] < capacity / 2
    }

    pub(super) fn flow<const N: usize>(&mut self, family: Family, flow: &Flow<N>) {
        let id = BackendId { family, id: flow.backend };
        self.refer(id);
        if rules::is_alive(flow) && self.start.draining.contains(&id) {
            self.busy.insert(id);
        }
        if rules::is_connection(flow) {
            *self.counted.entry(id).or_default() += 1;
        }
    }

    pub(super) fn half_open<const N: usize>(&mut self, family: Family, entry: &HalfOpen<N>) {
        // A second SYN on an answered flow is noted in a copy of that flow, which counts by itself.
        if entry.flags & half_open_flags::SECOND == 0 {
            self.flow(family, &entry.flow);
        } else {
            self.refer(BackendId { family, id: entry.flow.backend });
        }
        for id in entry.tried {
            self.refer(BackendId { family, id });
        }
    }

    pub(super) fn socket(&mut self, id: BackendId) {
        self.refer(id);
        if self.start.draining.contains(&id) {
            self.busy.insert(id);
        }
    }

    pub(super) fn refer(&mut self, id: BackendId) {
        if self.start.gone.contains(&id) {
            self.referred.insert(id);
        }
    }

    /// A flow came by a frontend that is no more. Returns since when that is known.
    pub(super) fn unserved(&mut self, frontend: Frontend, now: Monotonic) -> Monotonic {
        let since = self.start.unserved.get(&frontend).copied().unwrap_or(now);
        *self.unserved.entry(frontend).or_insert(since)
    }

    /// At the end of the round: backends that drained from its start on, and have no flow left.
    pub fn idle(&self) -> BTreeSet<BackendId> {
        &self.start.draining - &self.busy
    }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{flow_flags, flow_state};

    use super::*;

    fn id(id: u32) -> BackendId {
        BackendId { family: Family::V4, id }
    }

    fn flow(backend: u32, flags: u8) -> Flow<4> {
        Flow { backend, state: flow_state::OPEN, flags, ..Flow::ZERO }
    }

    #[test]
    fn a_round_tells_who_is_referred_to_who_is_idle_and_how_many_connections_there_are() {
        let start = Start {
            gone: [id(1), id(2), id(3), id(4)].into(),
            draining: [id(5), id(6), id(7)].into(),
            ..Start::default()
        };
        let mut seen = Seen::new(start, 7);
        seen.flow(Family::V4, &flow(1, flow_flags::REPLY));
        let tried = HalfOpen {
            flow: flow(9, 0),
            tried: [2, 0, 0],
            answers: [0; 2],
            segments: 1,
            moves: 1,
            flags: 0,
            refused: 0,
        };
        seen.half_open(Family::V4, &tried);
        seen.socket(id(3));
        seen.flow(Family::V4, &flow(5, flow_flags::COUNTED));
        seen.flow(Family::V4, &flow(5, flow_flags::COUNTED | flow_flags::REPLY));
        let second = HalfOpen { flow: flow(5, flow_flags::COUNTED), flags: half_open_flags::SECOND, ..tried };
        seen.half_open(Family::V4, &second);
        seen.flow(Family::V4, &Flow { state: flow_state::CLOSING, ..flow(6, 0) });
        seen.flow(Family::V6, &flow(7, 0));
        assert_eq!(seen.referred, [id(1), id(2), id(3)].into());
        assert_eq!(seen.idle(), [id(6), id(7)].into(), "the other family's flow is another backend's");
        assert_eq!(seen.counted, [(id(5), 1)].into());
    }
}
