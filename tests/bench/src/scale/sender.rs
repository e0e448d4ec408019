//! The packets for one size: which services are asked for, and in which order.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lb_tests::random::Random;

use super::subject::{FIRST_KNOWN, KNOWN, client};
use super::{BLOCK, LookupCase};
use crate::fixture::ballast::service;
use crate::packet::frames::{ACK, SYN, tcp};

/// First port of new flows, and how many there are until the next address.
const FIRST_NEW: u32 = 4_000;
const PORTS: u32 = 60_000;
/// Services that take turns as random ones: more than a CPU's second cache holds with all that belongs to them.
const POOL: usize = 4_096;
/// An address for documentation (RFC 5737).
const FOREIGN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 8_080);
/// Random services are the same in every run.
const SEED: u64 = 5;

/// What makes the packets for one size.
pub struct Sender {
    /// Services that take turns, in random order.
    pub pool: Vec<usize>,
    /// Services that nobody has asked for yet.
    untouched: Vec<usize>,
    next: usize,
    next_new: u32,
}

impl Sender {
    pub fn new(services: usize) -> Self {
        let mut random = Random::new(SEED);
        let mut all: Vec<usize> = (0..services).collect();
        for place in (1..services).rev() {
            all.swap(place, random.below(place + 1));
        }
        let untouched = all.split_off(POOL.min(services));
        Self { pool: all, untouched, next: 0, next_new: 0 }
    }

    /// The packets of one turn.
    pub fn frames(&mut self, kind: LookupCase) -> Vec<Vec<u8>> {
        (0..BLOCK).map(|number| self.frame(kind, number)).collect()
    }

    fn frame(&mut self, kind: LookupCase, number: u32) -> Vec<u8> {
        if matches!(kind, LookupCase::Known | LookupCase::KnownAgain) {
            let port = FIRST_KNOWN + u16::try_from(number % u32::from(KNOWN)).expect("below a u16");
            return tcp(client(0, port), service(0, 0), ACK, 1_001, 9_001);
        }
        if kind == LookupCase::Foreign {
            let port = FIRST_KNOWN + u16::try_from(number % u32::from(KNOWN)).expect("below a u16");
            return tcp(client(0, port), FOREIGN, ACK, 1_001, 9_001);
        }
        let (port, turn) = (FIRST_NEW + self.next_new % PORTS, self.next_new / PORTS);
        self.next_new += 1;
        // Where all were asked for, no first flow is left.
        let first = if kind == LookupCase::First { self.untouched.pop() } else { None };
        self.next = (self.next + 1) % self.pool.len();
        let to = if kind == LookupCase::Hot { 0 } else { first.unwrap_or(self.pool[self.next]) };
        tcp(client(turn, u16::try_from(port).expect("below a u16")), service(0, to), SYN, number, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_of_the_pool_has_its_turn_and_first_flows_are_first() {
        let mut sender = Sender::new(POOL + 2);
        let (pool, untouched) = (sender.pool.clone(), sender.untouched.clone());
        assert!(untouched.len() == 2 && untouched.iter().all(|number| !pool.contains(number)));
        let asked = |frame: Vec<u8>| crate::north_south::frames::ends(&frame).expect("TCP")[1];
        let first = asked(sender.frame(LookupCase::First, 0));
        assert!(untouched.iter().any(|number| service(0, *number) == first));
        let turns: std::collections::BTreeSet<_> = (0..POOL).map(|_| asked(sender.frame(LookupCase::Any, 0))).collect();
        assert_eq!(turns.len(), POOL);
        assert_eq!(asked(sender.frame(LookupCase::Hot, 0)), service(0, 0));
        assert_eq!(Sender::new(10).pool.len(), 10);
    }
}
