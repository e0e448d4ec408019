//! Packets of an adopted connection, which the host's NAT translates: another proxy made it before the node's first start, or Ballast has given
//! it away. While it is given away, it is held: its packets are dropped.

use super::commit::adopted as commit;
use super::flow_tables::FlowTables;
use super::lifetime::is_silent_as_open;
use super::packet::{Hook, Now};
use super::step::Step;
use super::tables::Tables;
use super::verdict::Action;
use super::work::Work;
use crate::abi::{Flow, fin, flow_state};
use crate::limits::HOLD_S;
use crate::outcome::Outcome;
use crate::state;

/// The packet passes untouched, whatever the hook. A SYN on the tuple of a connection that is over begins a new one.
#[inline(always)]
pub(super) fn packet<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    work.verdict.settle(Action::Pass, Outcome::Adopted);
    let Some(entry) = tables.connection(&work.packet.key, &mut work.connection) else { return Step::Decided };
    let now = Now::from_ns(tables.now_ns());
    let Work { packet, connection, .. } = &mut *work;
    connection.set_keys(&packet.key);
    let flow = &connection.entry().flow;
    if flow.state == flow_state::HELD {
        if state::expired(flow, HOLD_S, now.s) {
            commit::give_up(tables, work, entry, now);
        }
        work.verdict.drop(Outcome::HeldForHandOver);
        return Step::Decided;
    }
    if packet.opens() {
        let begins = hook.has(Hook::REQUESTS) && !connection.is_reply();
        if begins && is_over(tables, packet.key.protocol, &connection.original.flow, now) {
            commit::leave(tables, work);
            // What becomes of it is decided anew: there may be no service any more.
            work.verdict.pass();
            return Step::Select;
        }
    }
    commit::seen(tables, work, entry, now);
    if !work.packet.is_udp() && state::closes(work.packet.tcp_flags) {
        commit::end(tables, work, entry);
    }
    Step::Decided
}

/// Whether the connection is over, by its original entry. Both directions have ended, or conntrack says so; or it was silent for as long as one of
/// Ballast's own may be.
#[inline(always)]
fn is_over<const N: usize, T: Tables<N>>(tables: &mut T, protocol: u8, flow: &Flow<N>, now: Now) -> bool {
    flow.fin & flow.opposite_fin & fin::SENT != 0 || is_silent_as_open(tables, protocol, flow, now)
}
