//! NAT of a new connection: DNAT to its backend, and SNAT (masquerade) where replies would not come back here otherwise.

use super::client::Client;
use super::packet::Hook;
use super::tables::Tables;
use super::work::{Work, allocation};
use crate::abi::{backend_flags, flow_flags, frontend_kind, network_flags};
use crate::words;

/// Points the connection at the backend in `work.pick`, from the client's own address and port. Where the client is the backend, from the
/// service's, so that each end sees the service's address as the other's.
#[inline(always)]
pub(super) fn aim<const N: usize>(work: &mut Work<N>, hook: Hook) {
    let is_encapsulated = hook.has(Hook::FROM_OUTSIDE) && work.is_chosen();
    let Work { packet, pick, connection, .. } = work;
    let (key, flow) = (&packet.key, &mut connection.original.flow);
    flow.backend = pick.slot.backend;
    words::address(&pick.backend.address, &mut flow.address);
    flow.port = pick.backend.port;
    flow.generation = pick.backend.generation as u16;
    (flow.link, flow.own_link) = (0, 0);
    flow.client_port = key.src_port;
    let is_itself = words::same(&pick.backend.address, &key.src);
    words::address(if is_itself { &key.dst } else { &key.src }, &mut flow.client);
    let early = if is_itself || hook.has(Hook::CATCH_ALL) { flow_flags::EARLY } else { 0 };
    let masqueraded = if is_itself { flow_flags::MASQUERADED } else { 0 };
    let encapsulated = if is_encapsulated { flow_flags::ENCAPSULATED } else { 0 };
    flow.flags = flow.flags & !(flow_flags::EARLY | flow_flags::MASQUERADED) | early | masqueraded | encapsulated;
}

/// Sets the SNAT address of the new connection, whose backend is in `work.pick`, if it needs one. `false`: this node has none.
#[inline(never)]
pub(super) fn source<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if !is_needed(tables, work) {
        return true;
    }
    work.allocation |= allocation::SNAT;
    let flow = &mut work.connection.original.flow;
    flow.flags |= flow_flags::MASQUERADED | flow_flags::EARLY;
    tables.masquerade(&work.pick.backend.address, 0, &mut flow.client)
}

/// Sets the SNAT address of the new connection to the next one, and with it the tuple of its replies.
#[inline(never)]
pub(super) fn next_source<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, turn: u32) {
    let flow = &mut work.connection.original.flow;
    // Without another one it stays.
    tables.masquerade(&flow.address, turn, &mut flow.client);
    words::address(&flow.client, &mut work.connection.reply_key.dst);
}

/// Clients of this node never need it. A cluster IP is masqueraded for every client that is no pod, as kube-proxy does. Of the addresses that a
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
