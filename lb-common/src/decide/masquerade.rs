//! Whether a new flow's backend sees an address of this node in the client's place, so that its answers come back here.

use super::place::placing;
use super::{Client, Hook, Tables, Work};
use crate::abi::{backend_flags, flow_flags, frontend_kind, network_flags};
use crate::words;

/// Sets the source of the new flow `work.half`, whose backend is in `work.pick`. `false`: it needs an address of this node, which has none.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub(super) fn source<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if !is_needed(tables, work) {
        return true;
    }
    work.placing |= placing::FROM_NODE;
    let flow = &mut work.half.flow;
    flow.flags |= flow_flags::MASQUERADED | flow_flags::EARLY;
    tables.masquerade(&work.pick.backend.address, 0, &mut flow.client)
}

/// Sets the source of the new flow `work.half` to the address whose turn it is, and with it the tuple of its answers.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub(super) fn next_source<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, turn: u32) {
    let flow = &mut work.half.flow;
    // Without an answer the one before stays.
    tables.masquerade(&flow.address, turn, &mut flow.client);
    words::address(&work.half.flow.client, &mut work.pair_key.dst);
}

/// Clients of this node never need it. A cluster IP is masqueraded for whoever is no pod, as kube-proxy does. Of the addresses that a
/// service has outside, a backend of this node answers by this node anyway, and sees its client.
#[inline(always)]
fn is_needed<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>) -> bool {
    let client = work.pick.client;
    if client == Client::Near as u32 {
        return false;
    }
    let is_local = work.pick.backend.flags & backend_flags::LOCAL != 0;
    if work.pick.service.kind != frontend_kind::CLUSTER_IP {
        return !is_local;
    }
    // This node's own processes answer by its own stack, which takes no packet from its own address.
    Client::is_outside(client) && !(is_local && tables.network(&work.pick.backend.address) & network_flags::NODE != 0)
}

/// Points the flow's source at the client itself; or, where that is the backend, at the service, so that each end sees the service's
/// address as the other's.
#[inline(always)]
pub(super) fn own_source<const N: usize>(work: &mut Work<N>, hook: Hook) {
    let (key, flow) = (&work.packet.key, &mut work.half.flow);
    let is_itself = words::same(&work.pick.backend.address, &key.src);
    words::address(if is_itself { &key.dst } else { &key.src }, &mut flow.client);
    let early = if is_itself || hook.has(Hook::CATCH_ALL) { flow_flags::EARLY } else { 0 };
    let masqueraded = if is_itself { flow_flags::MASQUERADED } else { 0 };
    flow.flags = flow.flags & !(flow_flags::EARLY | flow_flags::MASQUERADED) | early | masqueraded;
}
