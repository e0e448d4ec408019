//! Packets that are related to a connection without being one of its own: ICMP errors about it, later fragments, headers that contradict
//! each other. They go the connection's way, or not at all, and change nothing of it.

use super::collision;
use super::forward::is_routed;
use super::lifetime::{Standing, expired};
use super::packet::{Hook, Now, Packet};
use super::tables::Tables;
use super::verdict::Action;
use super::vip::{ends_here, is_vip, unallocated};
use super::work::Work;
use crate::abi::{Flow, ServiceKey, flow_state, half_open_flags};
use crate::outcome::Outcome;

/// What the packet's tuple came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Related {
    /// The verdict says how the packet is translated.
    Translated,
    /// A connection's, but not to be translated at this hook, or not any more.
    NotHere,
    /// No connection's.
    Unknown,
}

/// Translates as a packet of this tuple would be, counted as `outcome`.
#[inline(always)]
pub(super) fn translate<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    outcome: Outcome,
) -> Related {
    let now = Now::from_ns(tables.now_ns());
    if !find(tables, work) {
        return Related::Unknown;
    }
    let Work { packet, connection, verdict, .. } = work;
    let is_reply = connection.is_reply();
    let flow = &connection.entry().flow;
    if flow.is_given() {
        verdict.settle(Action::Pass, Outcome::Adopted);
        return Related::NotHere;
    }
    if expired(tables, packet.key.protocol, flow, now) {
        return Related::Unknown;
    }
    let Some(route) = translates(tables, packet, hook, is_reply, flow) else { return Related::NotHere };
    let takes = Standing::of(tables, flow, now).takes(packet.key.protocol, flow);
    if flow.backend != 0 && (!takes || flow.state == flow_state::EVICTED) {
        verdict.backend = flow.backend;
        verdict.drop(Outcome::Evicted);
        return Related::NotHere;
    }
    verdict.translate(if is_reply { Action::ToClient } else { Action::ToBackend }, flow, outcome, route);
    Related::Translated
}

/// Whether packets of this direction are translated at this hook; and if so, whether they are routed from here.
#[inline(always)]
fn translates<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    is_reply: bool,
    flow: &Flow<N>,
) -> Option<bool> {
    if is_reply {
        hook.translates_replies(flow.flags)
    } else if collision::translates(tables, packet, hook, flow.flags) {
        Some(is_routed(flow, hook))
    } else {
        None
    }
}

/// Reads the entry of the packet's tuple, of an established connection or of a handshake; `false`: there is none.
#[inline(always)]
fn find<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let Work { packet, connection, stored, .. } = work;
    if tables.connection(&packet.key, connection).is_some() {
        return true;
    }
    // A backend that lost its handshake has no way to the client any more; a SYN on an established connection was found above.
    if !tables.half_open(&packet.key, stored) || stored.flags & (half_open_flags::LOST | half_open_flags::SECOND) != 0 {
        return false;
    }
    connection.read_handshake(stored);
    true
}

/// A later fragment, its ports known from the first one.
#[inline(always)]
pub fn later_fragment<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    work.verdict.pass();
    work.verdict.outcome = Outcome::Fragment;
    if translate(tables, work, hook, Outcome::FragmentFollowed) == Related::Unknown {
        stray_fragment(tables, work);
    }
}

/// A later fragment whose first one is not known, or went nowhere.
#[inline(always)]
pub fn stray_fragment<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    work.verdict.pass();
    if is_vip(tables, &work.packet.key.dst) {
        work.verdict.drop(Outcome::DroppedFragment);
    } else if !unallocated(tables, work) {
        work.verdict.outcome = Outcome::Fragment;
    }
}

/// A packet whose headers contradict each other, its tuple as far as it can be read, the rest zero.
#[inline(always)]
pub fn malformed<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    work.verdict.pass();
    if is_vip(tables, &work.packet.key.dst) || concerns(tables, work) {
        work.verdict.drop(Outcome::DroppedMalformed);
    } else {
        unallocated(tables, work);
    }
}

/// A packet of a protocol that is not balanced, or a message about no connection. It passes, but goes no further if its destination is a service's
/// address, or one that only a service may have.
#[inline(always)]
pub fn foreign<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    work.verdict.pass();
    if ends_here(tables, &work.packet.key.dst, hook) {
        work.verdict.drop(Outcome::RefusedUnserved);
    } else if hook.has(Hook::REQUESTS) {
        unallocated(tables, work);
    }
}

/// Whether this packet is a connection's, or may begin one.
#[inline(always)]
pub fn concerns<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let key = &work.packet.key;
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    find(tables, work) || tables.service(&frontend, &mut work.pick.service)
}
