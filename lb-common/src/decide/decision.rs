//! The decision over a packet: its first step, and all of its steps one after the other.

use super::allocate::{allocate, lead};
use super::collision::{self, direct};
use super::established::{self, established};
use super::flow_tables::FlowTables;
use super::open::{complete, open};
use super::packet::Hook;
use super::retry::retry;
use super::select::select;
use super::step::Step;
use super::tables::Tables;
use super::work::Work;
use crate::state::tcp_flag;

/// Decides over the packet in `work`; the verdict stands there afterwards.
///
/// The programs call the steps themselves: [`begin`] inline, each other one as a function that the kernel verifies by itself.
#[inline(always)]
pub fn decide<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let mut step = begin(tables, work, hook);
    if step == Step::Unrelated {
        return work.verdict.pass();
    }
    step = established(tables, work, hook, step);
    if step == Step::Handshake {
        step = open(tables, work, hook, step);
    }
    if step == Step::Retry {
        step = retry(tables, work, hook, step);
    }
    if step == Step::Select {
        step = select(tables, work, hook, step);
    }
    if step == Step::MidStream {
        step = complete(tables, work, hook, step);
    }
    if step == Step::Direct {
        step = direct(tables, work, hook, step);
    }
    if step == Step::Allocate {
        step = lead(tables, work, hook, step);
        allocate(tables, work, hook, step);
    }
}

/// The first step, and the only one for most packets: of an established connection, or of no service.
#[inline(always)]
pub fn begin<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    if let Some(entry) = tables.connection(&work.packet.key, &mut work.connection) {
        work.begin();
        return established::packet(tables, work, hook, entry);
    }
    let step = unknown(tables, work, hook);
    if step != Step::Unrelated {
        work.begin();
    }
    step
}

/// A packet of no established connection. Most are of no service: the fewer look-ups, the better.
#[inline(always)]
fn unknown<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> Step {
    let packet = &work.packet;
    // Other segments meet no handshake before their service was looked up, but one that has lost its entries. A FIN may be sent again once
    // its connection has ended. To a SNAT tuple that was reused, a backend may speak of the connection before.
    let may_be_handshake = packet.is_udp()
        || packet.tcp_flags & (tcp_flag::SYN | tcp_flag::RST | tcp_flag::FIN) != 0
        || packet.is_for_reused_port(tables.source_ports());
    if (may_be_handshake || tables.is_after_flood()) && tables.may_be_half_open(&packet.key) {
        return Step::Handshake;
    }
    if !is_unrelated(tables, work, hook) {
        let is_retained = !may_be_handshake && tables.is_retained(&packet.key);
        return if is_retained { Step::Handshake } else { Step::Select };
    }
    let is_direct = packet.begins()
        && (hook.has(Hook::FROM_CLIENT)
            || collision::is_own(tables, packet, hook)
            || collision::may_be_node_port(tables, packet, hook));
    if is_direct { Step::Direct } else { Step::Unrelated }
}

/// Whether the packet asks for no service and for no address that only a service may have, or is not asked for one here.
#[inline(always)]
fn is_unrelated<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> bool {
    // For what another node has chosen, the destination says nothing.
    let is_chosen = hook.has(Hook::FROM_OUTSIDE) && work.is_chosen();
    let dst = &work.packet.key.dst;
    !hook.has(Hook::REQUESTS) || (!is_chosen && tables.is_ruled_out(dst) && !tables.may_be_in_service_cidr(dst))
}
