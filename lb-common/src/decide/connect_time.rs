//! Connect times ([`crate::connect_times`]): the time of a SYN is noted in the reply entry of the handshake, so that each backend that is tried
//! has a time of its own. SYNs that are sent again to the same backend do not change it.

use super::tables::Tables;
use super::work::Work;
use crate::abi::{HalfOpen, TCP};

/// Notes the time in the reply entry that is about to be written, if the packet is a SYN to a backend whose answer passes here.
#[inline(always)]
pub(super) fn begin<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    let reply = &mut work.connection.reply;
    // The reply tuple of an encapsulated connection has port 0: its backend answers from elsewhere.
    if work.packet.key.protocol == TCP
        && work.packet.opens()
        && reply.flow.backend != 0
        && work.connection.original.flow.port != 0
    {
        reply.answers = [tables.connect_clock(), 0];
    }
}

/// The backend of a reply entry, which is as it was read, has accepted the connection: counts how long that took. A later answer counts no more: the
/// entry is marked as answered, or as lost. An entry that was lost, or made by programs that did not measure, has no time.
#[inline(always)]
pub(super) fn end<const N: usize, T: Tables<N>>(tables: &mut T, reply: &HalfOpen<N>) {
    let asked_at = reply.asked_at();
    if asked_at == 0 {
        return;
    }
    let now = tables.connect_clock();
    if now != 0 {
        tables.count_connect_time(reply.flow.backend, now.wrapping_sub(asked_at));
    }
}
