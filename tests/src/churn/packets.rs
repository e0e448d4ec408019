//! Captures every packet that reaches a backend, with the kernel's timestamp, and checks it against the deadlines in the tables.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Result;

use super::objects::PORT;
use crate::incident::raw_tcp::{Link, RST, SYN, Segment};
use crate::topology::NetNs;

/// Deadlines are in tenths of a second, and a packet needs a moment from the programs to the backend.
const ALLOWED_NS: u64 = 300_000_000;
/// How many violations are spelled out.
const TOLD: usize = 10;

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub packets: u64,
    /// Packets that arrived after their backend's deadline.
    pub stale: u64,
    /// Packets of a connection that a backend of an earlier life of the address had.
    pub inherited: u64,
    /// The first of both, in words.
    pub violations: Vec<String>,
    /// The last packet before a deadline that passed: the shortest time between them.
    pub closest_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    /// After this moment nothing may arrive at the address.
    deadlines: HashMap<Ipv4Addr, u64>,
    /// Since when the address is another pod's.
    returned: HashMap<Ipv4Addr, u64>,
    /// When a connection's first packet was last seen: backend and client with port.
    begun: HashMap<(Ipv4Addr, IpAddr, u16), u64>,
}

/// Watches the link of the pod that stands for all backends, until it is dropped.
#[derive(Debug)]
pub struct Packets {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Packets {
    pub fn watch(netns: &NetNs) -> Result<Self> {
        let link = Link::open(netns)?;
        let (state, stop) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let (told, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let worker = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some((segment, at_ns)) = link.next_timed() {
                    told.lock().unwrap_or_else(PoisonError::into_inner).judge(&segment, at_ns);
                }
            }
        });
        Ok(Self { state, stop, worker: Some(worker) })
    }

    pub fn seen(&self) -> Seen {
        self.with(|state| state.seen.clone())
    }

    /// The tables say when a backend's flows are evicted.
    pub fn set_deadline(&self, address: Ipv4Addr, at_ns: u64) {
        self.with(|state| state.deadlines.insert(address, at_ns));
    }

    /// From now on the address is another pod's: what comes is new, or an inheritance.
    pub fn returns(&self, address: Ipv4Addr, at_ns: u64) {
        self.with(|state| {
            state.deadlines.remove(&address);
            state.returned.insert(address, at_ns);
            state.begun.retain(|(backend, ..), _| *backend != address);
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

impl State {
    fn judge(&mut self, segment: &Segment, at_ns: u64) {
        let IpAddr::V4(backend) = segment.to.ip() else { return };
        if segment.to.port() != PORT {
            return;
        }
        self.seen.packets += 1;
        let connection = (backend, segment.from.ip(), segment.from.port());
        if segment.is(SYN) {
            self.begun.insert(connection, at_ns);
        }
        // A RST delivers nothing: it is what the programs answer to segments of a connection that is over.
        if segment.flags & RST != 0 {
            return;
        }
        if let Some(deadline) = self.deadlines.get(&backend) {
            if at_ns > deadline + ALLOWED_NS {
                self.seen.stale += 1;
                self.violation(format!("{segment:?} {} ms after the deadline", (at_ns - deadline) / 1_000_000));
            } else if at_ns < *deadline {
                let before = deadline - at_ns;
                self.seen.closest_ns = Some(self.seen.closest_ns.map_or(before, |least| least.min(before)));
            }
        }
        if let Some(returned) = self.returned.get(&backend)
            && !segment.is(SYN)
            && at_ns > *returned
            && !self.begun.contains_key(&connection)
        {
            self.seen.inherited += 1;
            self.violation(format!("{segment:?} of an earlier pod's connection"));
        }
    }

    fn violation(&mut self, text: String) {
        if self.seen.violations.len() < TOLD {
            self.seen.violations.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn segment(flags: u8) -> Segment {
        let from = "10.0.0.9:7".parse().unwrap();
        Segment { flags, ..Segment::syn(from, (BACKEND, PORT).into(), 1) }
    }

    #[test]
    fn packets_after_the_deadline_are_stale_and_those_before_it_are_not() {
        let mut state = State::default();
        state.deadlines.insert(BACKEND, 1_000_000_000);
        state.judge(&segment(16), 900_000_000);
        state.judge(&segment(16), 1_000_000_000 + ALLOWED_NS);
        assert_eq!((state.seen.packets, state.seen.stale, state.seen.closest_ns), (2, 0, Some(100_000_000)));
        state.judge(&segment(16), 1_000_000_001 + ALLOWED_NS);
        assert_eq!(state.seen.stale, 1);
    }

    #[test]
    fn an_address_inherits_no_connection() {
        let mut state = State::default();
        state.returned.insert(BACKEND, 5);
        state.judge(&segment(16), 6);
        assert_eq!(state.seen.inherited, 1);
        state.judge(&segment(RST), 6);
        state.judge(&segment(SYN), 7);
        state.judge(&segment(16), 8);
        assert_eq!(state.seen.inherited, 1, "its own are its own");
    }
}
