//! The reply tuple of a new connection is allocated, and its entries are written.

use super::commit::{claim, second, tuple as commit};
use super::connection::set_opposite_key;
use super::flow_tables::{FlowTables, Reserved};
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::Tables;
use super::verdict::Action;
use super::work::{Work, allocation};
use super::{connect_time, fast_path, nat, outlier, schedule};
use crate::abi::{SCTP, TCP, flow_flags, second as second_bits, second_key};
use crate::limits::{ADDRESS_ATTEMPTS, PORT_ATTEMPTS, SOCKET_ATTEMPTS};
use crate::outcome::Outcome;
use crate::words;

/// The step before [`allocate`]: whether the connection takes the fast path, and to which link.
#[inline(always)]
pub fn lead<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, step: Step) -> Step {
    fast_path::lead(tables, work, hook);
    step
}

/// The step for a new connection, or one that goes to another backend: it gets its entries, or the packet is dropped.
#[inline(always)]
pub fn allocate<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let retries = work.allocation & allocation::RETRY != 0;
    let reserved = reserve(tables, work, hook, now);
    if reserved == Reserved::Yes && retries {
        claim::leave(tables, work);
    }
    if reserved != Reserved::Yes || !commit::begin(tables, work) {
        let full = reserved != Reserved::Taken;
        work.verdict.drop(if full { Outcome::DroppedTableFull } else { Outcome::DroppedNoPort });
        work.verdict.backend = work.connection.original.flow.backend;
        return Step::Decided;
    }
    if retries {
        claim::settle(tables, work, now);
    }
    if work.allocation & allocation::SECOND != 0 {
        second::mark(tables, work, second_bits::BESIDE);
    }
    let (outcome, route) = if work.allocation & allocation::DIRECT != 0 {
        (Outcome::DirectTranslated, false)
    } else {
        (begun(tables, work, retries, now), hook.has(Hook::ROUTED))
    };
    work.verdict.translate(Action::ToBackend, &work.connection.original.flow, outcome, route);
    Step::Decided
}

/// Counts a new connection of a service. What it counts as.
///
/// A function of its own: Linux 6.1 would walk it once for each way out of the search for a port.
#[inline(never)]
fn begun<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, retries: bool, now: Now) -> Outcome {
    let flow = &work.connection.original.flow;
    let is_encapsulated = flow.port == 0;
    let keeps_port = flow.client_port == work.packet.key.src_port;
    if retries {
        return Outcome::Retried;
    }
    // No answer passes here of what is encapsulated.
    if is_encapsulated {
        return Outcome::Tunnelled;
    }
    outlier::begun(tables, work, now);
    tables.begun(now.s);
    if work.pick.probes != 0 {
        Outcome::Probed
    } else if work.allocation & allocation::BY_TUPLE != 0 {
        work.beginning
    } else if work.allocation & allocation::SNAT != 0 {
        Outcome::Masqueraded
    } else if keeps_port || work.allocation & allocation::SECOND != 0 {
        work.beginning
    } else {
        Outcome::PortTranslated
    }
}

/// Reserves a reply tuple for the connection: at the client's own port if it is to be kept. Otherwise at a SNAT port of the range, at each SNAT
/// address in turn. If three quarters of the attempts find none that is free, one that rests will do, at the few ports that are reused
/// ([`SourcePorts`](crate::state::SourcePorts)).
#[inline(always)]
fn reserve<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Reserved {
    let Work { packet, connection, allocation, .. } = &mut *work;
    let flow = &connection.original.flow;
    words::copy(&packet.key, &mut connection.original_key);
    if *allocation & allocation::SECOND != 0 {
        second_key(&mut connection.original_key);
    }
    set_opposite_key(&packet.key, flow, &mut connection.reply_key);
    // Only the client's own link names its namespace, and only TCP has sockets that the kernel can be asked for.
    let asks_sockets =
        hook.has(Hook::FROM_CLIENT) && packet.key.protocol == TCP && flow.flags & flow_flags::MASQUERADED == 0;
    // A tuple that a socket of this node has stays that socket's.
    let asks_node = !hook.has(Hook::FROM_CLIENT)
        && packet.key.protocol != SCTP
        && *allocation & (allocation::SNAT | allocation::DIRECT) != 0;
    let by_tuple = *allocation & allocation::BY_TUPLE != 0;
    let ports = tables.source_ports();
    let keeps = *allocation & allocation::KEEP_PORT != 0
        && (*allocation & allocation::SNAT == 0 || ports.keeps(packet.key.src_port));
    let start = if by_tuple { schedule::of_tuple(&packet.key) } else { tables.random() };
    let link = fast_path::opposite_link(flow);
    connection.derive_reply(link);
    connect_time::begin(tables, work);
    // The client's own sockets are dear to ask.
    let attempts = if asks_sockets { SOCKET_ATTEMPTS } else { PORT_ATTEMPTS };
    // Of a number of 64 bits that it must keep on the stack every kernel knows the bounds.
    let mut next = u64::from(!keeps);
    while next <= u64::from(attempts) {
        let attempt = next as u32;
        next += 1;
        let reuses = attempt > attempts - attempts / 4;
        let mut number = start;
        if reuses {
            work.allocation |= allocation::TAKE_RESTING;
            // Starts that find none lie at like distances, and so would what they take here.
            number = start.rotate_left(16);
        }
        let mut port = 0;
        if attempt != 0 {
            port = ports.pick(number.wrapping_add(attempt.wrapping_mul(0x9e37_79b1)), reuses);
        }
        if !asks_sockets
            && attempt > ADDRESS_ATTEMPTS
            && attempt % ADDRESS_ATTEMPTS == 1
            && work.allocation & allocation::SNAT != 0
        {
            // Only an external client has several addresses here, and no sockets that can be asked for.
            nat::next_source(tables, work, attempt / ADDRESS_ATTEMPTS);
        }
        if asks_sockets || asks_node {
            work.connection.set_reply_port(port);
            if if asks_sockets { tables.direct_connection(work) } else { tables.node_socket(work) } {
                continue;
            }
            port = 0;
        }
        let reserved = tables.reserve(work, u32::from(port), now.s);
        if reserved != Reserved::Taken {
            return reserved;
        }
    }
    Reserved::Taken
}
