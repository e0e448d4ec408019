//! Each client's share of the table of established connections. UDP, handshakes and DSR have other tables, and count nowhere.

use super::tables::Tables;
use crate::abi::{Flow, FlowKey, UDP, flow_flags};
use crate::client_shares::{Counters, exceeds};
use crate::words;

/// Whether the client has more than its share, so that its next connection is refused.
#[inline(never)]
pub(super) fn is_exceeded<const N: usize, T: Tables<N>>(tables: &mut T, client: &[u8; N], flags: u8) -> bool {
    let Counters { all, first, second } = Counters::of(tables.client_key(), client, flags);
    let (all, first, second) = (tables.client_share(all), tables.client_share(first), tables.client_share(second));
    exceeds(if first < second { first } else { second }, all, tables.flow_room())
}

/// Adds to the connections of the client whose connection has this entry, under this key.
#[inline(never)]
pub(super) fn count<const N: usize, T: Tables<N>>(tables: &mut T, key: &FlowKey<N>, flow: &Flow<N>, change: i32) {
    if key.protocol == UDP {
        return;
    }
    // A copy: of two places the compiler chooses anew for each word, and the verifier walks both ways each time.
    let mut client = [0; N];
    words::address(if flow.flags & flow_flags::REPLY == 0 { &key.src } else { &flow.client }, &mut client);
    let Counters { all, first, second } = Counters::of(tables.client_key(), &client, flow.flags);
    tables.count_client_share(all, change);
    tables.count_client_share(first, change);
    tables.count_client_share(second, change);
}
