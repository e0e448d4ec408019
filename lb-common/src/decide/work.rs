//! The scratch record of one decision.

use super::connection::Connection;
use super::packet::Packet;
use super::pick::Pick;
use super::verdict::{Action, Verdict};
use crate::abi::{FlowKey, HalfOpen};
use crate::outcome::Outcome;
use crate::words;

/// The scratch record of one decision. BPF has 512 bytes of stack, so the programs keep it in a per-CPU map.
///
/// All zeroes is a valid value of every field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<const N: usize> {
    /// In: the packet.
    pub packet: Packet<N>,
    /// In: not zero: the packet came in an outer header for this backend of this node, which another node has chosen. Nothing of the
    /// decision clears it.
    pub chosen: [u8; N],
    /// Out: the verdict.
    pub verdict: Verdict<N>,
    /// The service that was looked up, and the backend picked.
    pub(super) pick: Pick<N>,
    /// The packet's connection.
    pub(super) connection: Connection<N>,
    /// An entry as a table has it, read to compare with the connection, and the key of its own connection's original direction.
    pub(super) stored: HalfOpen<N>,
    pub(super) stored_key: FlowKey<N>,
    /// How the connection gets its tuple: bits of [`allocation`].
    pub(super) allocation: u32,
    /// What a new connection counts as.
    pub(super) beginning: Outcome,
    pub(super) pad: [u8; 3],
}

/// How a connection gets the tuple of its replies: bits.
pub(super) mod allocation {
    /// The connection goes to another backend.
    pub(in super::super) const RETRY: u32 = 1;
    /// A direct connection on the tuple of a service's.
    pub(in super::super) const DIRECT: u32 = 2;
    /// The client's own port, if it is free.
    pub(in super::super) const KEEP_PORT: u32 = 4;
    /// SNAT: the backend sees an address of this node.
    pub(in super::super) const SNAT: u32 = 8;
    /// The SNAT port is one that belongs to the tuple.
    pub(in super::super) const BY_TUPLE: u32 = 16;
    /// Few tuples are free: that of a connection that has ended lately will do.
    pub(in super::super) const TAKE_RESTING: u32 = 32;
    /// A second handshake: no tuple of its own client's connection will do.
    pub(in super::super) const SECOND: u32 = 64;
}

impl<const N: usize> Work<N> {
    /// The key of the answers to the connection.
    #[inline(always)]
    pub const fn reply_key(&self) -> &FlowKey<N> {
        &self.connection.reply_key
    }

    pub const fn new(packet: Packet<N>) -> Self {
        // SAFETY: zero is a valid value of every field.
        let mut work: Self = unsafe { core::mem::zeroed() };
        work.packet = packet;
        work
    }

    /// When the connection of a packet that goes on was first seen, seconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    pub const fn since_s(&self) -> u32 {
        let to_client = self.verdict.action as u8 == Action::ToClient as u8;
        if to_client { self.connection.reply.flow.since_s } else { self.connection.original.flow.since_s }
    }

    /// Whether another node has chosen the backend.
    #[inline(always)]
    pub fn is_chosen(&self) -> bool {
        !words::same(&self.chosen, &[0; N])
    }

    /// Starts from nothing, as the first packet of a connection does.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.verdict.pass();
        self.beginning = Outcome::Selected;
    }
}
