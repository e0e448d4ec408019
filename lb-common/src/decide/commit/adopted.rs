//! Writes for adopted connections.

use crate::abi::{fin, flow_state};
use crate::decide::connection::Directions;
use crate::decide::flow_tables::FlowTables;
use crate::decide::maps::FlowRef;
use crate::decide::packet::Now;
use crate::decide::work::Work;
use crate::state::tcp_flag;

/// Notes a packet in the entry of its direction, at most once a second.
#[inline(always)]
pub fn seen<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &Work<N>, entry: FlowRef<T, N>, now: Now) {
    let flow = &work.connection.entry().flow;
    if flow.seen_s != now.s {
        tables.touch(entry, flow.tag, now.s, flow.state, flow.flags);
    }
}

/// Ends the hold of a connection: the command that began it has not gone on.
#[inline(always)]
pub fn give_up<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &Work<N>, entry: FlowRef<T, N>, now: Now) {
    let flow = &work.connection.entry().flow;
    tables.touch(entry, flow.tag, now.s, flow_state::OPEN, flow.flags);
}

/// Notes the end of a direction, of which the packet tells, in the original entry. A RST of the backend ends both directions. That of the client
/// counts for nothing: anybody may have sent it, and conntrack alone knows the numbers that it must bear.
#[inline(always)]
pub fn end<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &mut Work<N>, entry: FlowRef<T, N>) {
    let Work { packet, connection, stored, .. } = work;
    let flow = &mut stored.flow;
    if !connection.is_reply() {
        if packet.tcp_flags & tcp_flag::FIN != 0 {
            let tag = connection.original.flow.tag;
            tables.set_fin(entry, tag, fin::SENT);
        }
        return;
    }
    let Directions { opposite_key, .. } = connection.directions();
    let Some(original) = tables.flow(opposite_key, flow) else { return };
    if flow.state != flow_state::ADOPTED {
        return;
    }
    tables.set_opposite_fin(original, flow.tag, fin::SENT);
    if packet.resets() {
        tables.set_fin(original, flow.tag, fin::SENT);
    }
}

/// Gives the original tuple to another connection. The reply entry stays: conntrack knows its tuple still.
#[inline(always)]
pub fn leave<const N: usize, T: FlowTables<N>>(tables: &mut T, work: &Work<N>) {
    tables.remove_flow(&work.packet.key);
}
