//! The switch from one set of tables to another: the gates at the attach points, and the slots of the programs that they call.
//!
//! A gate hangs where an entry program hung. While [`word::OLD`] stands it calls the old set's program for every packet. From the moment that
//! [`word::NEW`] is written it calls the new set's program, except for a packet of a connection that only the old tables know.

use crate::abi::{SCTP, TCP, flow_state};
use crate::state;

/// Each entry program and its gate. The place in this list gives the slots; it never changes, as two versions share it.
pub const GATES: [(&str, &str); 8] = [
    ("pod_in", "gate_pod_in"),
    ("pod_out", "gate_pod_out"),
    ("bridge_in", "gate_bridge_in"),
    ("node_in", "gate_node_in"),
    ("node_out", "gate_node_out"),
    ("node_in_l3", "gate_in_l3"),
    ("node_out_l3", "gate_out_l3"),
    ("xdp_node", "gate_xdp"),
];

/// Slots of a gate's program array.
pub const SLOTS: usize = 2 * GATES.len();

/// The slot of the old set's entry program, by the place in [`GATES`].
#[inline(always)]
#[must_use]
pub const fn old_slot(entry: usize) -> u32 {
    2 * entry as u32
}

/// The slot of the new set's entry program.
#[inline(always)]
#[must_use]
pub const fn new_slot(entry: usize) -> u32 {
    old_slot(entry) + 1
}

/// Whether one of two tables knows a connection. A packet may overtake the acknowledgement that establishes its connection, as another CPU handles
/// that one. The connection then leaves the table of handshakes for that of established connections between two look-ups, so the second table
/// is asked once more. The other way round, a connection that ends is written among the handshakes before it is removed.
#[inline(always)]
pub fn knows(is_established: impl Fn() -> bool, is_handshake: impl FnOnce() -> bool) -> bool {
    is_established() || is_handshake() || is_established()
}

/// Whether the old programs go on with a tuple whose entry is in the old table of handshakes and retained connections. They leave the tuple of an
/// ended connection (`state`) to the packet that begins another one (`opens`). Otherwise the agent could move the ended connection's entry while the
/// old programs make the new one. The new tables would then hold the ended connection, and the next packet would be refused.
#[inline(always)]
#[must_use]
pub const fn retains(state: u8, opens: bool) -> bool {
    !opens || state != flow_state::CLOSING
}

/// Offset, in the transport header, of the byte that says whether a packet begins a connection. TCP: the flags (RFC 9293, section 3.1). SCTP: the
/// type of the first chunk (RFC 9260, section 3.2). `None`: connections of this protocol do not end by a packet.
#[inline(always)]
#[must_use]
pub const fn opening_at(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(13),
        SCTP => Some(12),
        _ => None,
    }
}

/// Whether a packet with this byte at [`opening_at`] begins a connection: a SYN of TCP, an INIT of SCTP.
#[inline(always)]
#[must_use]
pub const fn opens(protocol: u8, byte: u8) -> bool {
    const INIT: u8 = 1;
    match protocol {
        TCP => state::opens(byte),
        SCTP => byte == INIT,
        _ => false,
    }
}

/// Values of the one word that all gates read.
pub mod word {
    /// The old programs take every packet.
    pub const OLD: u32 = 0;
    /// The old programs take what only the old tables know.
    pub const NEW: u32 = 1;
}

/// Names of the gates' own maps.
pub mod map {
    use crate::abi::map_name as name;

    pub use name::{SWITCH_TC as TC, SWITCH_WORD as WORD, SWITCH_XDP as XDP};

    /// Tables of the old set, under the names that the gates have for them, and under their own.
    pub const OLD: [(&str, &str); 8] = [
        (name::OLD_FLOWS4, name::FLOWS4),
        (name::OLD_FLOWS6, name::FLOWS6),
        (name::OLD_UDP_FLOWS4, name::UDP_FLOWS4),
        (name::OLD_UDP_FLOWS6, name::UDP_FLOWS6),
        (name::OLD_HALF_OPEN4, name::HALF_OPEN4),
        (name::OLD_HALF_OPEN6, name::HALF_OPEN6),
        (name::OLD_FRAGMENTS4, name::FRAGMENTS4),
        (name::OLD_FRAGMENTS6, name::FRAGMENTS6),
    ];

    /// Whether a map belongs to the gates.
    #[must_use]
    pub fn is_ours(name: &str) -> bool {
        [WORD, TC, XDP].contains(&name) || OLD.iter().any(|(map, _)| *map == name)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A connection that another CPU establishes, or ends, after this many look-ups, as the programs do: written there before it is removed here.
    fn changes_after(lookups: u32, ends: bool) -> bool {
        let made = Cell::new(0);
        let is_in = |first: bool| {
            let has_changed = made.replace(made.get() + 1) >= lookups;
            has_changed != first
        };
        knows(|| is_in(ends), || is_in(!ends))
    }

    #[test]
    fn the_tuple_of_an_ended_connection_is_left_to_what_begins_another_one() {
        assert!(!retains(flow_state::CLOSING, true));
        for state in [flow_state::HALF_OPEN, flow_state::OPEN, flow_state::EVICTED, flow_state::ADOPTED] {
            assert!(retains(state, true), "state {state}");
        }
        assert!(retains(flow_state::CLOSING, false), "late segments of the ended connection");
    }

    #[test]
    fn a_syn_and_an_init_begin_a_connection() {
        use crate::abi::UDP;
        use crate::state::tcp_flag::{ACK, SYN};
        assert!(opens(TCP, SYN) && !opens(TCP, SYN | ACK) && !opens(TCP, ACK));
        assert!(opens(SCTP, 1) && !opens(SCTP, 0) && !opens(SCTP, 2));
        assert!(!opens(UDP, SYN) && opening_at(UDP).is_none());
    }

    #[test]
    fn a_connection_that_another_cpu_establishes_or_ends_meanwhile_is_known() {
        for lookups in 0..4 {
            assert!(changes_after(lookups, false), "established after {lookups} look-ups");
            assert!(changes_after(lookups, true), "ended after {lookups} look-ups");
        }
        assert!(!knows(|| false, || false));
    }
}
