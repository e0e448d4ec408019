//! Who ends an established connection: its two endpoints, and nobody else.

use lb_common::abi::{FlowKey, ServiceKey, TCP, flow_state};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, decide};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const FRONTEND: [u8; 4] = [10, 96, 0, 1];
const BACKENDS: [[u8; 4]; 2] = [[10, 0, 1, 11], [10, 0, 1, 12]];
const PORT: u16 = 4000;

/// An endpoint: the number of what it sends next, and what it has acknowledged.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) next: u32,
    pub(crate) acked: u32,
}

/// A client and its backend, with a connection that is established.
pub(crate) struct Pair {
    pub(crate) tables: Memory,
    pub(crate) backend: [u8; 4],
    pub(crate) client: End,
    pub(crate) server: End,
}

pub(crate) fn request() -> FlowKey<4> {
    tuple(TCP, (CLIENT, PORT), (FRONTEND, 80))
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::of([0xffff_ff00, 70_000])
    }

    /// With the first number of the client and of the backend.
    pub(crate) fn of([client, server]: [u32; 2]) -> Self {
        let mut tables = Memory::default();
        tables.serve(1, 0, ServiceKey { address: FRONTEND, port: 80, protocol: TCP, pad: 0 }, &BACKENDS, 8080);
        let (client, server) = (End { next: client, acked: 0 }, End { next: server, acked: 0 });
        let mut pair = Self { tables, backend: BACKENDS[0], client, server };
        pair.backend = pair.forged(true, SYN, pair.client.next, 0, 0).address;
        pair.client.next = pair.client.next.wrapping_add(1);
        pair.server.acked = pair.client.next;
        pair.forged(false, SYN | ACK, pair.server.next, pair.server.acked, 0);
        pair.server.next = pair.server.next.wrapping_add(1);
        pair.asks(ACK, 0);
        pair
    }

    pub(crate) fn response(&self) -> FlowKey<4> {
        tuple(TCP, (self.backend, 8080), (CLIENT, PORT))
    }

    /// A segment with any numbers, in the original or the reply direction.
    pub(crate) fn forged(&mut self, from_client: bool, tcp_flags: u8, seq: u32, ack: u32, payload: u32) -> Verdict<4> {
        let (key, hook) = if from_client { (request(), Hook::POD_IN) } else { (self.response(), Hook::POD_OUT) };
        let mut work = Work::new(Packet { seq, ack, payload, ..Packet::new(key, tcp_flags) });
        decide(&mut self.tables, &mut work, hook);
        work.verdict
    }

    /// The client sends.
    pub(crate) fn asks(&mut self, tcp_flags: u8, payload: u32) -> Verdict<4> {
        self.client.acked = self.server.next;
        let End { next, acked } = self.client;
        self.client.next = next.wrapping_add(payload + u32::from(tcp_flags & FIN != 0));
        self.forged(true, tcp_flags, next, acked, payload)
    }

    /// The backend sends.
    pub(crate) fn answers(&mut self, tcp_flags: u8, payload: u32) -> Verdict<4> {
        self.server.acked = self.client.next;
        let End { next, acked } = self.server;
        self.server.next = next.wrapping_add(payload + u32::from(tcp_flags & FIN != 0));
        self.forged(false, tcp_flags, next, acked, payload)
    }

    fn states(&self) -> [u8; 2] {
        let Memory { flows, half_open, .. } = &self.tables;
        // What has ended is no established connection any more.
        let state = |key| flows.get(&key).map_or_else(|| half_open[&key].flow.state, |flow| flow.state);
        [request(), self.response()].map(state)
    }

    #[track_caller]
    fn lives(&mut self) {
        assert_eq!(self.states(), [flow_state::OPEN; 2]);
        let asked = self.asks(ACK, 10);
        assert_eq!((asked.action, asked.outcome, asked.address), (Action::ToBackend, Outcome::Forwarded, self.backend));
        assert_eq!(self.answers(ACK, 10).outcome, Outcome::Replied);
    }

    #[track_caller]
    fn is_over(&mut self) {
        assert_eq!(self.states(), [flow_state::CLOSING; 2]);
        let new = self.forged(true, SYN, 1, 0, 0);
        assert_eq!((new.action, new.outcome), (Action::ToBackend, Outcome::Selected), "the tuple is free");
    }
}

#[test]
fn a_reset_with_the_number_that_the_other_end_acknowledged_ends_the_connection() {
    for from_client in [true, false] {
        let mut pair = Pair::new();
        pair.lives();
        let verdict = if from_client {
            pair.asks(ACK, 0);
            pair.answers(ACK, 0);
            pair.asks(RST | ACK, 0)
        } else {
            pair.asks(ACK, 0);
            pair.answers(RST | ACK, 0)
        };
        assert!(matches!(verdict.outcome, Outcome::Forwarded | Outcome::Replied), "the other end gets it");
        pair.is_over();
    }
}

/// A host that knows no such connection answers with the number that the segment acknowledges (RFC 9293, section 3.10.7.1).
#[test]
fn a_backend_that_has_restarted_ends_the_connection_by_its_reset() {
    let mut pair = Pair::new();
    pair.lives();
    pair.asks(ACK, 5);
    pair.forged(false, RST, pair.client.acked, 0, 0);
    pair.is_over();
}

#[test]
fn forged_segments_of_any_kind_end_nothing_in_any_order() {
    let kinds = [SYN, SYN | ACK, RST, RST | ACK, FIN | ACK, FIN, ACK, SYN | RST, 0];
    // Far from what the ends send, and the same in all three, so that one forged segment could vouch for another.
    let number = 0x4000_0000;
    for first in kinds {
        for second in kinds {
            for third in kinds {
                for directions in 0..8_u8 {
                    let mut pair = Pair::new();
                    pair.lives();
                    for (i, flags) in [first, second, third].into_iter().enumerate() {
                        let seq = number + u32::from(flags & (FIN | SYN) != 0);
                        pair.forged(directions >> i & 1 == 0, flags, seq, number, u32::from(i == 1) * 100);
                    }
                    pair.lives();
                }
            }
        }
    }
}

#[test]
fn a_reset_that_fits_one_forged_acknowledgement_alone_ends_nothing() {
    let mut pair = Pair::new();
    pair.lives();
    // The third party has guessed where the client is, not where the backend is.
    let seq = pair.client.next.wrapping_add(1_000);
    pair.forged(true, ACK, seq, 0x4000_0000, 0);
    pair.forged(false, RST, 0x4000_0000, 0, 0);
    pair.lives();
}

#[test]
fn fins_end_the_connection_once_both_are_acknowledged() {
    for client_first in [true, false] {
        let mut pair = Pair::new();
        pair.lives();
        if client_first {
            pair.asks(FIN | ACK, 20);
            pair.answers(ACK, 500);
            pair.asks(ACK, 0);
            assert_eq!(pair.states(), [flow_state::OPEN; 2], "half closed");
            pair.answers(FIN | ACK, 0);
            assert_eq!(pair.states(), [flow_state::OPEN; 2], "the last FIN is not acknowledged");
            pair.asks(ACK, 0);
        } else {
            pair.answers(FIN | ACK, 20);
            pair.asks(FIN | ACK, 0);
            pair.answers(ACK, 0);
        }
        pair.is_over();
    }
}

/// An external client opens a direct connection to the backend, from the ports that its connection to the service had. No hook sees its
/// requests.
#[test]
fn the_handshake_of_a_direct_connection_on_the_ports_of_one_that_is_over_passes_untouched() {
    for is_ended in [true, false] {
        let mut pair = Pair::new();
        assert_eq!(pair.forged(false, SYN | ACK, 5, 6, 0).outcome, Outcome::Replied, "the service's connection lives");
        if is_ended {
            pair.asks(FIN | ACK, 20);
            pair.answers(FIN | ACK, 0);
            pair.asks(ACK, 0);
            assert_eq!(pair.states(), [flow_state::CLOSING; 2]);
            pair.tables.pass_seconds(1);
        } else {
            // Silent for longer than the timeout of an established connection.
            let timeout_s = pair.tables.timeouts.with_room().open_s;
            pair.tables.pass_seconds(u64::from(timeout_s) + 1);
        }
        for _ in 0..2 {
            let verdict = pair.forged(false, SYN | ACK, 5, 6, 0);
            assert_eq!(verdict.action, Action::Pass, "{:?}, ended: {is_ended}", verdict.outcome);
        }
        assert_eq!(pair.forged(false, ACK, 6, 6, 100).action, Action::Pass);
    }
}

#[test]
fn a_fin_that_its_sender_goes_on_after_was_none() {
    let mut pair = Pair::new();
    pair.lives();
    let next = pair.client.next;
    pair.forged(true, FIN | ACK, next, pair.client.acked, 0);
    pair.forged(false, FIN | ACK, pair.server.next, pair.server.acked, 0);
    for _ in 0..10 {
        pair.lives();
    }
}

#[test]
fn a_fin_whose_data_is_still_under_way_ends_nothing() {
    let mut pair = Pair::new();
    pair.lives();
    pair.asks(FIN | ACK, 0);
    let before = pair.server.next;
    pair.answers(FIN | ACK, 1_000);
    // Of the data, the client has the first half.
    pair.forged(true, ACK, pair.client.next, before + 500, 0);
    assert_eq!(pair.states(), [flow_state::OPEN; 2]);
    pair.asks(ACK, 0);
    pair.is_over();
}

#[test]
fn a_half_closed_connection_lives_for_the_timeout_of_an_established_one() {
    let mut pair = Pair::new();
    pair.asks(FIN | ACK, 0);
    pair.answers(ACK, 0);
    pair.tables.pass_seconds(7_000);
    assert_eq!(pair.answers(ACK, 100).outcome, Outcome::Replied);
    assert_eq!(pair.asks(ACK, 0).outcome, Outcome::Forwarded);
    assert_eq!(pair.states(), [flow_state::OPEN; 2]);
}

#[test]
fn syns_begin_a_second_handshake_only_while_the_backend_is_silent() {
    let mut pair = Pair::new();
    pair.lives();
    for second in 0..20 {
        pair.tables.pass_seconds(1);
        let verdict = pair.forged(true, SYN, 1_000 + second, 0, 0);
        assert_eq!((verdict.outcome, verdict.address), (Outcome::Forwarded, pair.backend));
        // A challenge ACK (RFC 5961, section 4).
        pair.answers(ACK, 0);
    }
    pair.lives();
    // All within a second: no client repeats so fast.
    pair.tables.pass_seconds(1);
    for number in 0..20 {
        assert_eq!(pair.forged(true, SYN, number, 0, 0).outcome, Outcome::Forwarded);
    }
    assert_eq!(pair.states(), [flow_state::OPEN; 2]);
    let outcomes: Vec<Outcome> = (0..3)
        .map(|_| {
            pair.tables.pass_seconds(1);
            pair.forged(true, SYN, 5, 0, 0).outcome
        })
        .collect();
    assert!(outcomes.contains(&Outcome::SecondHandshake), "the backend has been silent: {outcomes:?}");
    pair.lives();
}

#[test]
fn segments_beyond_a_lost_one_and_late_ones_leave_the_end_recognisable() {
    let mut pair = Pair::new();
    pair.lives();
    let lost = pair.client.next;
    pair.client.next = pair.client.next.wrapping_add(1_448);
    for _ in 0..40 {
        pair.asks(ACK, 1_448);
        pair.forged(false, ACK, pair.server.next, lost, 0);
    }
    pair.forged(true, ACK, lost, pair.client.acked, 1_448);
    pair.answers(ACK, 0);
    pair.asks(FIN | ACK, 0);
    pair.answers(FIN | ACK, 0);
    pair.asks(ACK, 0);
    pair.is_over();
}

/// A third party guesses both numbers to within 16 MiB. The FIN may come only once, so it is claimed, but it vouches for nothing.
#[test]
fn a_forged_fin_behind_a_gap_hides_no_end() {
    for forged_by_client in [true, false] {
        for (client_closes, far) in [(true, 1 << 20), (false, 1 << 20), (true, (1 << 24) - 1), (false, (1 << 24) - 1)] {
            let mut pair = Pair::new();
            pair.lives();
            let (own, opposite) =
                if forged_by_client { (pair.client, pair.server) } else { (pair.server, pair.client) };
            pair.forged(
                forged_by_client,
                FIN | ACK,
                own.next.wrapping_add(far - 1),
                opposite.next.wrapping_sub(far),
                0,
            );
            pair.lives();
            if client_closes {
                pair.asks(FIN | ACK, 0);
                pair.answers(FIN | ACK, 0);
                pair.asks(ACK, 0);
            } else {
                pair.answers(FIN | ACK, 0);
                pair.asks(FIN | ACK, 0);
                pair.answers(ACK, 0);
            }
            pair.is_over();
        }
    }
}
