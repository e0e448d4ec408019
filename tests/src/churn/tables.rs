//! Watches drains in the tables, with the agent alive or dead.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use lb_common::abi::{Backend, V4, backend_state};
use lb_common::map;
use lb_tables::Pinned;

use super::{Packets, now_ns};

/// How often they are read.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// Nanoseconds of the tables' unit of time.
const DS: u64 = 100_000_000;
/// An agent that is ready has so long to end drains whose deadline passed before.
const STARTED_NS: u64 = 5_000_000_000;

/// What was seen so far. Times in tenths of a second, as the tables have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    pub begun: u64,
    /// The longest that a backend was draining, its deadline not passed.
    pub oldest_ds: u64,
    /// The longest that a deadline lay ahead when its drain was first seen.
    pub longest_ds: u64,
    /// Deadlines that were put off.
    pub put_off: u64,
    /// The longest that a record outlived its deadline while an agent was ready.
    pub overdue_ds: u64,
    /// Now: records that drain, and records in use for whatever reason.
    pub draining: usize,
    pub in_use: usize,
}

#[derive(Debug, Default)]
struct State {
    drains: Drains,
    /// By id and generation: when a drain was first seen, and its deadline.
    known: HashMap<(u32, u32), (u64, u64)>,
    /// Deadlines of this life of an address.
    deadlines: HashMap<Ipv4Addr, u64>,
    /// When an address was last in the tables.
    listed_ns: HashMap<Ipv4Addr, u64>,
}

/// Reads the tables until it is dropped.
#[derive(Debug)]
pub struct TableReader {
    state: Arc<Mutex<State>>,
    /// Since when an agent is ready; 0: none is.
    alive_ns: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl TableReader {
    /// Of the maps pinned below `bpffs`; tells `packets` of every deadline.
    pub fn watch(bpffs: &Path, packets: &Arc<Packets>) -> Result<Self> {
        let pinned = Pinned::open(&bpffs.join("ballast/tables"))?;
        let (state, stop) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let alive_ns = Arc::new(AtomicU64::new(now_ns()));
        let (told, stopped, packets) = (Arc::clone(&state), Arc::clone(&stop), Arc::clone(packets));
        let since_ns = Arc::clone(&alive_ns);
        let worker = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut records = Vec::new();
                let read = pinned.of::<map::Backends<4>>().each(|id, record: &Backend<V4>| {
                    if record.state != backend_state::FREE {
                        records.push((*id, *record));
                    }
                });
                read.unwrap_or_else(|error| panic!("reading backends4: {error}"));
                let ready_ns = since_ns.load(Ordering::Relaxed);
                told.lock().unwrap_or_else(PoisonError::into_inner).record(&records, now_ns(), ready_ns, &packets);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Ok(Self { state, alive_ns, stop, worker: Some(worker) })
    }

    pub fn drains(&self) -> Drains {
        self.with(|state| state.drains.clone())
    }

    /// An agent is ready, or was killed.
    pub fn agent_is(&self, alive: bool) {
        self.alive_ns.store(if alive { now_ns() } else { 0 }, Ordering::Relaxed);
    }

    /// Whether the address is past its time: its deadline passed a while ago, or a running agent has not had it for a while, for it never learnt of
    /// it.
    pub fn is_past(&self, address: Ipv4Addr) -> bool {
        let (now, alive) = (now_ns(), self.alive_ns.load(Ordering::Relaxed));
        self.with(|state| {
            if let Some(deadline) = state.deadlines.get(&address) {
                return now > deadline + 5 * DS;
            }
            let since = state.listed_ns.get(&address).copied().unwrap_or(0).max(alive);
            alive != 0 && now > since + STARTED_NS
        })
    }

    /// From now on the address is another pod's.
    pub fn returns(&self, address: Ipv4Addr) {
        self.with(|state| state.deadlines.remove(&address));
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for TableReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

impl State {
    fn record(&mut self, records: &[(u32, Backend<V4>)], now_ns: u64, alive_ns: u64, packets: &Packets) {
        let now = now_ns / DS;
        self.drains.in_use = records.len();
        let listed = records.iter().filter(|(_, record)| record.state != backend_state::GONE);
        self.listed_ns.extend(listed.map(|(_, record)| (record.address.into(), now_ns)));
        let draining: Vec<_> = records.iter().filter(|(_, record)| record.state == backend_state::DRAINING).collect();
        self.drains.draining = draining.len();
        self.known.retain(|key, _| draining.iter().any(|(id, record)| (*id, record.generation) == *key));
        for (id, record) in draining {
            let deadline = u64::from(record.deadline_ds);
            let first = self.known.entry((*id, record.generation)).or_insert_with(|| {
                self.drains.begun += 1;
                self.drains.longest_ds = self.drains.longest_ds.max(deadline.saturating_sub(now));
                self.deadlines.insert(record.address.into(), deadline * DS);
                packets.set_deadline(record.address.into(), deadline * DS);
                (now, deadline)
            });
            self.drains.put_off += u64::from(deadline > first.1);
            first.1 = deadline;
            if now < deadline {
                self.drains.oldest_ds = self.drains.oldest_ds.max(now - first.0);
            } else if alive_ns != 0 && now_ns.saturating_sub(alive_ns) > STARTED_NS {
                self.drains.overdue_ds = self.drains.overdue_ds.max(now - deadline);
            }
        }
    }
}
