//! A client's own direct traffic to an address that also is a backend of one of its connections to a service.
//!
//! Both look the same to the backend, and a reply entry would translate the direct connection's replies. So the second comer
//! gets another source port (TCP), or the replies (UDP).

use super::commit::tuple as commit;
use super::connection::set_opposite_key;
use super::lifetime::is_over;
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::FlowTables;
use super::verdict::Action;
use super::work::{Work, allocation};
use crate::abi::{flow_flags, flow_state};
use crate::outcome::Outcome;
use crate::words;

/// The step for a packet of no service: whether it collides with a connection of its sender's, if that is a client.
#[inline(always)]
pub fn direct<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let Work { packet, connection, .. } = &mut *work;
    if !hook.has(Hook::FROM_CLIENT) || !packet.begins() {
        return Step::Decided;
    }
    let (key, reply) = (&packet.key, &mut connection.reply_key);
    words::address(&key.dst, &mut reply.src);
    words::address(&key.src, &mut reply.dst);
    (reply.src_port, reply.dst_port, reply.protocol) = (key.dst_port, key.src_port, key.protocol);
    if !is_held(tables, work) && !is_held_by_handshake(tables, work) {
        return Step::Decided;
    }
    let Work { packet, connection, verdict, .. } = &mut *work;
    if packet.is_udp() {
        verdict.settle(Action::Pass, Outcome::AmbiguousUdp);
        return Step::Decided;
    }
    connection.begin(packet, Now::from_ns(tables.now_ns()));
    let (key, flow) = (&packet.key, &mut connection.original.flow);
    words::address(&key.dst, &mut flow.address);
    words::address(&key.src, &mut flow.client);
    flow.port = key.dst_port;
    flow.client_port = key.src_port;
    flow.flags = flow_flags::DIRECT;
    work.allocation = allocation::DIRECT;
    Step::Allocate
}

/// Whether an established connection holds the reply tuple. One that is over is removed; one of UDP gives the replies up.
///
/// Most tuples are free, and the clock takes longer than a look-up: it is read where there is an entry.
#[inline(always)]
fn is_held<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { packet, connection, stored, stored_key, .. } = &mut *work;
    let (reply_key, flow) = (&connection.reply_key, &mut stored.flow);
    if tables.flow(reply_key, flow).is_none() || flow.flags & flow_flags::REPLY == 0 {
        return false;
    }
    // The host's NAT tells the two apart.
    if flow_state::is_given(flow.state) {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_opposite_key(reply_key, flow, stored_key);
    if is_over(tables, reply_key.protocol, flow, now) {
        commit::release(tables, work);
        return false;
    }
    if packet.is_udp() {
        commit::take_replies(tables, work);
    }
    true
}

/// The same of a handshake, also of one that has left the backend: its answer may be under way.
#[inline(always)]
fn is_held_by_handshake<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { packet, connection, stored, stored_key, .. } = &mut *work;
    let reply_key = &connection.reply_key;
    if !tables.half_open(reply_key, stored) || stored.flow.flags & flow_flags::REPLY == 0 {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_opposite_key(reply_key, &stored.flow, stored_key);
    if is_over(tables, reply_key.protocol, &stored.flow, now) {
        commit::release_handshake(tables, work);
        return false;
    }
    if packet.is_udp() {
        commit::take_handshake_replies(tables, work);
    }
    true
}
