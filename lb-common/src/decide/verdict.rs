//! The verdict over a packet: what the hook must do.

use super::packet::Packet;
use crate::abi::{Flow, FlowKey, flow_flags};
use crate::outcome::Outcome;
use crate::words;

/// What the hook must do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave it as it is.
    Pass = 0,
    /// Write `address:port` as destination and `client:client_port` as source; send it on its way. Port 0: leave it as it is, and send it
    /// to `address` in an outer header.
    ToBackend,
    /// Write `address:port` as source and `client:client_port` as destination; send it on its way.
    ToClient,
    /// Answer the sender: TCP RST, else ICMP port unreachable.
    Refuse,
    Drop,
}

/// The decision, one record for both directions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<const N: usize> {
    pub action: Action,
    pub outcome: Outcome,
    /// The packet's further way does not lead on from this hook: route it from here.
    pub route: bool,
    /// The packet's other address changes, too: else `client` is what it has already. Such a packet is routed from this hook.
    pub masquerade: bool,
    pub address: [u8; N],
    pub client: [u8; N],
    pub port: u16,
    pub client_port: u16,
    /// Service port id, where one was looked up; else 0.
    pub service: u32,
    /// Backend id; 0: none.
    pub backend: u32,
    /// The connection's link ([`Flow::link`]). On the fast path, a reply goes there; a pod's request does, if the packet may.
    pub link: u32,
    /// The link by which a packet must have come that goes there ([`Flow::own_link`]).
    pub own_link: u32,
}

impl<const N: usize> Verdict<N> {
    /// Whether both addresses of the packet trade places: the backend is the client itself, and the packet goes back over the link that
    /// it came by.
    #[inline(always)]
    pub fn turns_back(&self, key: &FlowKey<N>) -> bool {
        self.masquerade && self.reverses(key)
    }

    /// Not inline: the verifier would walk what follows once for each word that differs.
    #[inline(never)]
    fn reverses(&self, key: &FlowKey<N>) -> bool {
        let (to, from) = if self.action as u8 == Action::ToBackend as u8 {
            (&self.address, &self.client)
        } else {
            (&self.client, &self.address)
        };
        words::same(to, &key.src) && words::same(from, &key.dst)
    }

    /// The link that the packet may go to past the host's stack, if it came by this one; 0: none.
    #[inline(always)]
    pub const fn link_from(&self, came_by: u32) -> u32 {
        if self.own_link == came_by { self.link } else { 0 }
    }

    /// The packet passes, and is no service's.
    #[inline(always)]
    pub(super) fn pass(&mut self) {
        self.settle(Action::Pass, Outcome::Passed);
        self.masquerade = false;
        self.service = 0;
        self.backend = 0;
    }

    /// A verdict that rewrites nothing.
    #[inline(always)]
    pub(super) fn settle(&mut self, action: Action, outcome: Outcome) {
        self.action = action;
        self.outcome = outcome;
    }

    #[inline(always)]
    pub(super) fn drop(&mut self, outcome: Outcome) {
        self.settle(Action::Drop, outcome);
    }

    /// A verdict that translates the packet as the flow entry of its direction says.
    #[inline(always)]
    pub(super) fn translate(&mut self, action: Action, entry: &Flow<N>, outcome: Outcome, route: bool) {
        self.settle(action, outcome);
        self.masquerade = entry.flags & flow_flags::MASQUERADED != 0;
        self.route = route || self.masquerade || entry.port == 0;
        words::address(&entry.address, &mut self.address);
        words::address(&entry.client, &mut self.client);
        self.port = entry.port;
        self.client_port = entry.client_port;
        self.backend = entry.backend;
        self.link = entry.link;
        self.own_link = entry.own_link;
    }

    /// Answers the sender. A RST is never answered by a RST (RFC 9293, section 3.10.7.1).
    #[inline(always)]
    pub(super) fn refuse(&mut self, packet: &Packet<N>, outcome: Outcome) {
        self.settle(if packet.resets() { Action::Drop } else { Action::Refuse }, outcome);
    }

    /// The connection's backend is gone: nothing is forwarded any more. A sender of TCP or SCTP gets a reset.
    #[inline(always)]
    pub(super) fn evict(&mut self, packet: &Packet<N>, backend: u32) {
        self.refuse(packet, Outcome::Evicted);
        if packet.is_udp() {
            self.action = Action::Drop;
        }
        self.backend = backend;
    }

    /// An answer of a backend that lost the connection: what accepts it gets a reset, nothing is forwarded.
    #[inline(always)]
    pub(super) fn late(&mut self, packet: &Packet<N>, backend: u32) {
        self.settle(if packet.accepts() { Action::Refuse } else { Action::Drop }, Outcome::RefusedLate);
        self.backend = backend;
    }
}
