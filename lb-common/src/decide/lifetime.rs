//! Whether a connection lives: its timeouts, and whether its backend still takes its packets.

use super::packet::Now;
use super::tables::Tables;
use crate::abi::{Backend, Flow, flow_flags};
use crate::state;

/// Whether the connection was silent for too long.
#[inline(always)]
pub(super) fn expired<const N: usize, T: Tables<N>>(tables: &mut T, protocol: u8, flow: &Flow<N>, now: Now) -> bool {
    state::expired(flow, tables.timeout_s(protocol, state::lasts_as(flow)), now.s)
}

/// Whether the connection needs its tuple no more: it has ended, or was silent for too long.
#[inline(always)]
pub(super) fn is_over<const N: usize, T: Tables<N>>(tables: &mut T, protocol: u8, flow: &Flow<N>, now: Now) -> bool {
    state::yields(flow, tables.timeout_s(protocol, state::lasts_as(flow)), now.s)
}

/// What the backend of a connection is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The backend takes the connection's packets. Always, if there is none: a direct connection whose port is translated.
    pub(super) keeps: bool,
    /// The backend's datagrams go to another one.
    pub(super) moves: bool,
    /// The backend's generation; 0: there is none.
    pub(super) generation: u32,
}

impl Standing {
    #[inline(always)]
    pub(super) fn of<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, now: Now) -> Self {
        if flow.backend == 0 {
            return Self { keeps: true, moves: false, generation: 0 };
        }
        let Some(backend) = tables.backend(flow.backend) else {
            return Self { keeps: false, moves: false, generation: 0 };
        };
        Self {
            keeps: is_of(&backend, flow) && state::keeps_flows(&backend, now.ds),
            moves: state::udp_moves(&backend),
            generation: backend.generation,
        }
    }
}

/// Whether the record under the flow's backend id still is the backend that the flow was made for.
#[inline(always)]
const fn is_of<const N: usize>(backend: &Backend<N>, flow: &Flow<N>) -> bool {
    backend.generation as u16 == flow.generation
}

/// Takes a connection off its backend's count, if it is in it.
#[inline(never)]
pub(super) fn uncount<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>) {
    if flow.flags & flow_flags::COUNTED != 0
        && let Some(backend) = tables.backend(flow.backend)
        && is_of(&backend, flow)
    {
        tables.count_connection(flow.backend, backend.generation, -1);
    }
}
