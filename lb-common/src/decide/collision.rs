//! A client's own direct traffic to an address that also is a backend of one of its connections to a service.
//!
//! Both look the same to the backend, and a reply entry would translate the direct connection's replies. So the second comer
//! gets another source port (TCP), or the replies (UDP): if it comes by the link that leads to its source, as no forged one does.
//!
//! Connections of this node itself collide with those that are masqueraded with its address. The client may be anybody, so the node's own
//! connection gets another port whatever its protocol.
//!
//! A datagram may leave from the number of a node port: the node's NAT has kept the port of a pod, or a process has that port. Its answers look like
//! requests of a client, so the conversation gets entries of its own. TCP needs none: only a SYN begins a connection.

use super::commit::tuple as commit;
use super::connection::set_opposite_key;
use super::flow_tables::{FlowTables, Reserved};
use super::frontend::asked;
use super::lifetime::is_over;
use super::node_port::node_port;
use super::packet::{Hook, Now, Packet};
use super::step::Step;
use super::tables::Tables;
use super::verdict::Action;
use super::work::{Work, allocation};
use crate::abi::flow_flags;
use crate::outcome::Outcome;
use crate::words;

/// The step for a packet of no service: whether it collides with a connection of its sender's, if that is a client or this node.
#[inline(always)]
pub fn direct<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let Work { packet, connection, .. } = &mut *work;
    let is_clients = hook.has(Hook::FROM_CLIENT);
    if !packet.begins() {
        return Step::Decided;
    }
    let (key, reply) = (&packet.key, &mut connection.reply_key);
    words::address(&key.dst, &mut reply.src);
    words::address(&key.src, &mut reply.dst);
    (reply.src_port, reply.dst_port, reply.protocol) = (key.dst_port, key.src_port, key.protocol);
    if !is_clients && !is_own(tables, packet, hook) {
        if may_be_node_port(tables, packet, hook) {
            keep_answers(tables, work);
        }
        return Step::Decided;
    }
    if !is_held(tables, work, is_clients) && !is_held_by_handshake(tables, work, is_clients) {
        return Step::Decided;
    }
    if is_clients && work.packet.is_udp() {
        work.verdict.settle(Action::Pass, Outcome::AmbiguousUdp);
        return Step::Decided;
    }
    // Replies to this node are translated where they come in.
    begin(tables, work, if is_clients { flow_flags::DIRECT } else { OWN });
    work.allocation = allocation::DIRECT;
    Step::Allocate
}

/// Makes the original entry of a direct connection, from the client's own port.
#[inline(always)]
fn begin<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, flags: u8) {
    let Work { packet, connection, .. } = work;
    connection.begin(packet, Now::from_ns(tables.now_ns()));
    let (key, flow) = (&packet.key, &mut connection.original.flow);
    words::address(&key.dst, &mut flow.address);
    words::address(&key.src, &mut flow.client);
    flow.port = key.dst_port;
    flow.client_port = key.src_port;
    flow.flags = flags;
}

/// Whether a datagram that leaves this node may come from the number of a node port. No masqueraded connection has such a port.
#[inline(always)]
pub(super) fn may_be_node_port<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>, hook: Hook) -> bool {
    hook.has(Hook::ROUTED)
        && packet.is_udp()
        && !tables.source_ports().may_have(packet.key.src_port)
        && !tables.is_ruled_out(&packet.key.src)
}

/// Writes entries for a datagram that leaves from the number of a node port, and translate nothing: its answers pass to the host's stack, which knows
/// whose they are. Not for what answers a client of the service, even if an entry of that client is in other tables, or was evicted.
#[inline(always)]
fn keep_answers<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>) {
    let Work { connection, stored, pick, .. } = &mut *work;
    let reply_key = &connection.reply_key;
    if tables.is_translated()
        || node_port(tables, &asked(reply_key), &mut pick.service) == 0
        || tables.flow(reply_key, &mut stored.flow).is_some()
        || tables.half_open(reply_key, stored)
    {
        return;
    }
    begin(tables, work, OWN);
    work.connection.derive_reply(0);
    let now = Now::from_ns(tables.now_ns());
    work.allocation = allocation::DIRECT | allocation::KEEP_PORT;
    if tables.reserve(work, 0, now.s) == Reserved::Yes {
        commit::begin(tables, work);
    }
}

/// Flags of a direct connection of this node itself.
const OWN: u8 = flow_flags::DIRECT | flow_flags::EARLY;

/// Whether this node has sent the packet itself, from a port that a masqueraded connection may have.
#[inline(always)]
pub(super) fn is_own<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>, hook: Hook) -> bool {
    hook.has(Hook::REPLIES) && tables.source_ports().may_have(packet.key.src_port) && tables.is_from_node()
}

/// Whether packets of an original direction with these flags are translated here ([`Hook::translates`]). Where this node's own packets leave, those
/// with the same tuple that are masqueraded leave as well.
#[inline(always)]
pub(super) fn translates<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    flags: u8,
) -> bool {
    hook.translates(flags) || (flags & OWN == OWN && is_own(tables, packet, hook))
}

/// Whether a reply entry with these flags is of another connection than the packet's. A packet of this node that was translated here may be seen
/// once more where it leaves, and its own entry masquerades nobody.
#[inline(always)]
const fn collides(flags: u8, is_clients: bool) -> bool {
    flags & flow_flags::REPLY != 0 && (is_clients || flags & flow_flags::MASQUERADED != 0)
}

/// Whether an established connection holds the reply tuple. One that is over is removed; one of UDP may give the replies up.
///
/// Most tuples are free, and the clock takes longer than a look-up: it is read where there is an entry.
#[inline(always)]
fn is_held<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, is_clients: bool) -> bool {
    let Work { packet, connection, stored, stored_key, .. } = &mut *work;
    let (reply_key, flow) = (&connection.reply_key, &mut stored.flow);
    if tables.flow(reply_key, flow).is_none() || !collides(flow.flags, is_clients) {
        return false;
    }
    // The host's NAT tells the two apart.
    if flow.is_given() {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_opposite_key(reply_key, flow, stored_key);
    if is_over(tables, reply_key.protocol, flow, now) {
        commit::release(tables, work);
        return false;
    }
    if is_clients && packet.is_udp() && tables.comes_by_its_link(packet) {
        commit::take_replies(tables, work);
    }
    true
}

/// Whether a handshake holds the tuple, even one that has left the backend: its answer may be under way.
#[inline(always)]
fn is_held_by_handshake<const N: usize, T: FlowTables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    is_clients: bool,
) -> bool {
    let Work { packet, connection, stored, stored_key, .. } = &mut *work;
    let reply_key = &connection.reply_key;
    if !tables.half_open(reply_key, stored) || !collides(stored.flow.flags, is_clients) {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_opposite_key(reply_key, &stored.flow, stored_key);
    if is_over(tables, reply_key.protocol, &stored.flow, now) {
        commit::release_handshake(tables, work);
        return false;
    }
    if is_clients && packet.is_udp() && tables.comes_by_its_link(packet) {
        commit::take_handshake_replies(tables, work);
    }
    true
}
