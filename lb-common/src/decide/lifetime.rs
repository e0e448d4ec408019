//! Whether a connection lives: its timeouts, and whether its backend still takes its packets.

use super::packet::Now;
use super::share;
use super::tables::Tables;
use crate::abi::{Backend, Flow, FlowKey, flow_flags, flow_state};
use crate::state;

/// Whether the connection was silent for too long.
#[inline(always)]
pub(super) fn expired<const N: usize, T: Tables<N>>(tables: &mut T, protocol: u8, flow: &Flow<N>, now: Now) -> bool {
    state::expired(flow, tables.timeout_s(protocol, state::lasts_as(flow)), now.s)
}

/// Whether the connection was silent for longer than an open one may be.
#[inline(always)]
pub(super) fn is_silent_as_open<const N: usize, T: Tables<N>>(
    tables: &mut T,
    protocol: u8,
    flow: &Flow<N>,
    now: Now,
) -> bool {
    state::expired(flow, tables.timeout_s(protocol, flow_state::OPEN), now.s)
}

/// Whether the connection needs its tuple no more: it has ended, or was silent for too long.
#[inline(always)]
pub(super) fn is_over<const N: usize, T: Tables<N>>(tables: &mut T, protocol: u8, flow: &Flow<N>, now: Now) -> bool {
    state::yields(flow, tables.timeout_s(protocol, state::lasts_as(flow)), now.s)
}

/// What the backend of a connection is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The backend takes the connection's packets, whatever its phase. Always, if there is none: a direct connection whose port is
    /// translated.
    pub(super) keeps: bool,
    /// The backend takes the packets of established connections, though its drain period may be over.
    pub(super) lasts: bool,
    /// When the backend's drain period ends; 0: it does not drain.
    pub(super) drain_ds: u32,
    /// The backend's datagrams go to another one.
    pub(super) moves: bool,
    /// The backend's generation; 0: there is none.
    pub(super) generation: u32,
}

impl Standing {
    #[inline(always)]
    pub(super) fn of<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, now: Now) -> Self {
        if flow.backend == 0 {
            return Self { keeps: true, lasts: true, drain_ds: 0, moves: false, generation: 0 };
        }
        let Some(backend) = tables.backend(flow.backend) else {
            return Self { keeps: false, lasts: false, drain_ds: 0, moves: false, generation: 0 };
        };
        let is_of = is_of(&backend, flow);
        Self {
            keeps: is_of && state::keeps_flows(&backend, now.ds),
            lasts: is_of && state::lasts(&backend, now.ds),
            drain_ds: backend.drain_ds,
            moves: state::udp_moves(&backend),
            generation: backend.generation,
        }
    }

    /// Whether the backend takes the packets of this connection.
    #[inline(always)]
    pub(super) const fn takes<const N: usize>(self, protocol: u8, flow: &Flow<N>) -> bool {
        if state::ends_with_drain_period(protocol, flow) { self.keeps } else { self.lasts }
    }
}

/// Whether the record under the flow's backend id still is the backend that the flow was made for.
#[inline(always)]
const fn is_of<const N: usize>(backend: &Backend<N>, flow: &Flow<N>) -> bool {
    backend.generation as u16 == flow.generation
}

/// Takes a connection, one of whose entries this is, off the counts of its client and of its backend.
#[inline(never)]
pub(super) fn uncount<const N: usize, T: Tables<N>>(tables: &mut T, key: &FlowKey<N>, flow: &Flow<N>) {
    share::count(tables, key, flow, -1);
    if flow.flags & flow_flags::COUNTED != 0
        && let Some(backend) = tables.backend(flow.backend)
        && is_of(&backend, flow)
    {
        tables.count_connection(flow.backend, backend.generation, -1);
    }
}
