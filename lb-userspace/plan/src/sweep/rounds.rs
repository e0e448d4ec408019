//! When which table is read: a state machine that gets the time.

use std::time::Duration;

use super::{PART, PAUSE, RATE, REMOVAL, SweptTable};
use lb_model::Monotonic;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub table: SweptTable,
    /// How many entries, at most.
    pub count: usize,
    /// A round begins.
    pub starts: bool,
}

/// Rounds over the tables, with rests between them.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// When the next part is due.
    at: Monotonic,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resting,
    Reading { table: SweptTable, since: Monotonic },
}

impl Rounds {
    /// The first one comes after a rest.
    pub fn new(now: Monotonic, lot: u32) -> Self {
        Self { at: now + pause(lot), state: State::Resting }
    }

    pub fn due(&self) -> Monotonic {
        self.at
    }

    /// What is to be read; `None`: nothing is due.
    pub fn next(&mut self, now: Monotonic) -> Option<Order> {
        if now < self.at {
            return None;
        }
        let starts = self.state == State::Resting;
        if starts {
            self.state = State::Reading { table: SweptTable::FIRST, since: now };
        }
        let State::Reading { table, .. } = self.state else { return None };
        Some(Order { table, count: PART, starts })
    }

    /// So many entries were read and removed; `is_last`: the table has no more. Returns how long the round took, if it is
    /// over. What was done is paid for by waiting, so that no second sees more than [`RATE`].
    pub fn done(&mut self, looked: usize, removed: usize, is_last: bool, now: Monotonic, lot: u32) -> Option<Duration> {
        let State::Reading { table, since } = self.state else { return None };
        let cost = looked as u64 + (removed * REMOVAL) as u64;
        self.at = now + Duration::from_nanos(cost * (1_000_000_000 / RATE));
        if !is_last {
            return None;
        }
        if let Some(table) = table.after() {
            self.state = State::Reading { table, since };
            return None;
        }
        self.state = State::Resting;
        self.at = now + pause(lot);
        Some(now.since(since))
    }

    /// A table could not be read: the round is given up, and the next one begins after a rest.
    pub fn give_up(&mut self, now: Monotonic, lot: u32) {
        self.state = State::Resting;
        self.at = now + pause(lot);
    }
}

/// A random pause.
fn pause(lot: u32) -> Duration {
    let least = PAUSE * 4 / 5;
    least + (PAUSE * 2 / 5) * (lot % 1024) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_duration(Duration::from_millis(ms))
    }

    #[test]
    fn empty_tables_are_a_round_at_once_and_then_there_is_a_rest() {
        let mut rounds = Rounds::new(at(0), 0);
        assert_eq!((rounds.due(), rounds.next(at(3_999))), (at(4_000), None));
        let mut seen = Vec::new();
        loop {
            let order = rounds.next(at(4_000)).expect("due");
            assert_eq!(order.starts, seen.is_empty());
            seen.push(order.table);
            if let Some(took) = rounds.done(0, 0, true, at(4_000), 512) {
                assert_eq!(took, Duration::ZERO);
                break;
            }
        }
        assert_eq!((seen, rounds.due()), (SweptTable::all().collect(), at(9_000)));
    }

    #[test]
    fn no_second_sees_more_than_the_rate_and_the_tables_keep_their_order() {
        let mut rounds = Rounds::new(at(0), 0);
        let (mut now, mut looked, mut last) = (rounds.due(), 0, SweptTable::FIRST);
        let started = now;
        for part in 0..500 {
            let order = rounds.next(now).expect("due");
            assert!(order.table >= last && order.count <= PART);
            last = order.table;
            let removed = part % 7;
            looked += order.count as u64 + (removed * REMOVAL) as u64;
            rounds.done(order.count, removed, part % 60 == 59, now, 0);
            now = rounds.due();
            let millis = u64::try_from(now.since(started).as_millis()).unwrap();
            assert!(looked <= RATE * (millis + 1) / 1000);
        }
    }

    #[test]
    fn a_round_that_fails_comes_again_from_the_start() {
        let mut rounds = Rounds::new(at(0), 0);
        let now = rounds.due();
        rounds.next(now);
        rounds.done(10, 0, true, now, 0);
        rounds.give_up(now, 0);
        let order = rounds.next(rounds.due()).expect("due");
        assert!(order.starts && order.table == SweptTable::FIRST);
    }
}
