//! What one client notices of backends that are silent, refuse, or answer late: one of them has its connection, and nothing of another reaches it.

use crate::openings::{answers, asks, serving, syn};
use lb_common::abi::TCP;
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory};
use lb_common::state::tcp_flag::{ACK, PSH, RST, SYN};
use proptest::prelude::*;

const PORT: u16 = 4_000;
/// When Linux sends a SYN again: seconds since the one before.
const RETRANSMITS_S: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// A segment of a backend that got the SYN.
fn says(tables: &mut Memory, port: u16, sent: &Verdict<4>, flags: u8, number: u32) -> Verdict<4> {
    tables.ask_numbered(answers(asks(TCP, port), sent), flags, number, ISN + 1, Hook::POD_OUT)
}

/// The number of the answer of the backend that was asked as this one.
fn number(at: usize) -> u32 {
    500 + u32::try_from(at).unwrap()
}

/// A connection through its handshake: whom its SYN went to, and whose answer the client has.
#[derive(Default)]
struct Attempt {
    asked: Vec<Verdict<4>>,
    latest: u32,
    refused: Vec<usize>,
    winner: Option<usize>,
    is_open: bool,
}

impl Attempt {
    fn asks(&mut self, tables: &mut Memory) -> Result<(), TestCaseError> {
        let sent = syn(tables, PORT);
        prop_assert_eq!(sent.action, Action::ToBackend);
        if let Some(winner) = self.winner {
            prop_assert_eq!(sent.backend, self.asked[winner].backend, "an answered connection was moved");
        }
        if sent.outcome == Outcome::Retried {
            prop_assert_ne!(self.latest, sent.backend, "a retry that moves nowhere");
        }
        self.latest = sent.backend;
        if self.asked.iter().all(|tried| tried.backend != sent.backend) {
            self.asked.push(sent);
        }
        Ok(())
    }

    fn answered(&mut self, tables: &mut Memory, at: usize) -> Result<(), TestCaseError> {
        if self.refused.contains(&at) {
            return Ok(());
        }
        let verdict = says(tables, PORT, &self.asked[at], SYN | ACK, number(at));
        if *self.winner.get_or_insert(at) == at {
            prop_assert_eq!(verdict.action, Action::ToClient, "also a backend that the SYN has left may win");
        } else {
            prop_assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedLate));
        }
        Ok(())
    }

    /// Whether the connection goes on.
    fn refuses(&mut self, tables: &mut Memory, at: usize) -> Result<bool, TestCaseError> {
        if self.winner == Some(at) {
            return Ok(true);
        }
        let verdict = says(tables, PORT, &self.asked[at], RST | ACK, 0);
        prop_assert!(self.winner.is_none() || verdict.action != Action::ToClient, "the winner's connection is reset");
        self.refused.push(at);
        Ok(verdict.action != Action::ToClient)
    }

    fn goes_on(&mut self, tables: &mut Memory) -> Result<(), TestCaseError> {
        let Some(winner) = self.winner else { return Ok(()) };
        let segment = tables.ask_numbered(asks(TCP, PORT), ACK, ISN + 1, number(winner) + 1, Hook::POD_IN);
        prop_assert_eq!((segment.action, segment.backend), (Action::ToBackend, self.asked[winner].backend));
        self.is_open = true;
        for (at, sent) in self.asked.iter().enumerate() {
            let data = says(tables, PORT, sent, ACK | PSH, number(at) + 1);
            prop_assert_eq!(data.action == Action::ToClient, at == winner, "data of {} for {}", at, winner);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 2_000))]

    #[test]
    fn one_backend_has_the_connection_in_whatever_order_they_answer(
        count in 1..5_usize,
        steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>(), 0u64..2), 1..40),
    ) {
        let (mut tables, mut attempt) = (serving(count), Attempt::default());
        attempt.asks(&mut tables)?;
        for (what, which, seconds) in steps {
            tables.pass_seconds(seconds);
            let at = which.index(attempt.asked.len());
            match what {
                // An established connection is asked for no more.
                0..=2 if !attempt.is_open => attempt.asks(&mut tables)?,
                0..=4 => attempt.answered(&mut tables, at)?,
                5 if !attempt.refuses(&mut tables, at)? => return Ok(()),
                _ => attempt.goes_on(&mut tables)?,
            }
        }
    }
}

/// Whether the connection was made by the SYNs that a client sends. Odd ids up to `dead` are silent, even ones refuse.
fn connects(tables: &mut Memory, port: u16, dead: u32) -> bool {
    for wait_s in [0].into_iter().chain(RETRANSMITS_S) {
        tables.pass_seconds(wait_s);
        let sent = syn(tables, port);
        match sent.backend {
            live if live > dead => {
                assert_eq!(says(tables, port, &sent, SYN | ACK, 500).action, Action::ToClient);
                let next = tables.ask_numbered(asks(TCP, port), ACK, ISN + 1, 501, Hook::POD_IN);
                assert_eq!((next.outcome, next.backend), (Outcome::Forwarded, live));
                return true;
            }
            silent if silent % 2 == 1 => {}
            _ if says(tables, port, &sent, RST | ACK, 0).action == Action::ToClient => return false,
            _ => {}
        }
    }
    false
}

#[test]
fn a_client_with_a_live_backend_in_reach_is_connected_by_its_retransmits() {
    for (dead, live) in [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3)] {
        for seed in 0..20 {
            let mut tables = Memory { seed, ..serving(dead + live) };
            for port in 4_000..4_040 {
                let dead = u32::try_from(dead).unwrap();
                assert!(connects(&mut tables, port, dead), "{dead} dead, {live} live, seed {seed}, port {port}");
            }
        }
    }
}
