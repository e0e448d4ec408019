//! The sweep of the running agent: parts of rounds between other work, and what follows from a round that has seen everything.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;

use lb_common::client_shares::{Counters, exceeds};
use lb_common::decide::Now;
use lb_common::map;
use lb_common::state::Timeouts;

use super::clock;
use crate::config::Settings;
use crate::observe::report::SweepReport;
use lb_datapath::resets::{self, ResetSender};
use lb_model::{Family, Monotonic};
use lb_plan::apply::{KernelStore, Programmer};
use lb_plan::plan::{BackendId, DrainLimits, Frontend, ProgrammedState};
use lb_plan::sweep::{
    Client, Clients, Counts, Order, Part, Position, Reset, Rounds, Seen, Start, SweepContext, correction,
};
use lb_tables::{ClientShares, Connections, Pinned};

/// Backends whose connections are counted or corrected in one step.
const BACKENDS: usize = 8_192;

/// What a round does with the connections of all backends, some of them in each step: those behind this one are left.
enum Walk {
    /// Before any table is read.
    Counts(Option<BackendId>),
    /// After all are.
    Corrects(Option<BackendId>),
}

fn behind_of(id: Option<BackendId>) -> (Bound<BackendId>, Bound<BackendId>) {
    (id.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// Without the right to send RSTs the agent does all else.
fn open_resets() -> Option<ResetSender> {
    let opened = ResetSender::open();
    let warn = |error: &io::Error| {
        tracing::warn!(
            "connections of backends that are gone end at their next segment, not at the eviction deadline: no raw socket: {error}; grant CAP_NET_RAW"
        );
    };
    opened.inspect_err(warn).ok()
}

/// `false`: it may be sent later. One that a packet filter drops, or that has no route, is not sent at all: then the programs answer the next segment.
fn send(sender: &ResetSender, reset: &Reset, sent: &Cell<u64>) -> bool {
    match sender.send(reset.from, reset.to, reset.seq, reset.ack) {
        Ok(()) => sent.set(sent.get() + 1),
        Err(error) if resets::is_full(&error) => return false,
        Err(error) => tracing::debug!(to = %reset.to, "a RST cannot be sent: {error}"),
    }
    true
}

/// Sweeps the programs' tables.
pub(super) struct Sweeper {
    rounds: Rounds,
    walk: Option<Walk>,
    timeouts: Timeouts,
    /// Of services that have none of their own.
    drain_limits: DrainLimits,
    seen: Seen,
    position: Position,
    /// Frontends that are no more and that the last round met in flows, and since when.
    unserved: BTreeMap<Frontend, Monotonic>,
    /// Entries of established connections that the last round left, of IPv4 and of IPv6.
    established: [u32; 2],
    /// Key of the hashes of `client_shares`.
    client_key: u32,
    /// Connections that fit, of IPv4 and of IPv6.
    room: [u32; 2],
    connections4: Connections,
    connections6: Connections,
    /// `None`: it may not send any.
    resets: Option<ResetSender>,
    /// RSTs that the kernel has taken.
    sent: Cell<u64>,
    report: SweepReport,
    lots: fn() -> u32,
}

impl Sweeper {
    /// `lots` draws numbers for the rests between rounds.
    pub fn new(maps: &Pinned, settings: &Settings, now: Monotonic, lots: fn() -> u32) -> io::Result<Self> {
        Ok(Self {
            rounds: Rounds::new(now, lots()),
            walk: None,
            timeouts: settings.flow_timeouts.0,
            drain_limits: DrainLimits { period: settings.drain_period, max: settings.drain_max },
            seen: Seen::default(),
            position: None,
            unserved: BTreeMap::new(),
            established: [0; 2],
            client_key: maps.of::<map::Settings>().get(&0)?.unwrap_or_default().client_key,
            room: [maps.of::<map::Flows<4>>().capacity() / 2, maps.of::<map::Flows<16>>().capacity() / 2],
            connections4: Connections::map(&maps.of::<map::Health<4>>())?,
            connections6: Connections::map(&maps.of::<map::Health<16>>())?,
            resets: open_resets(),
            sent: Cell::default(),
            report: SweepReport::default(),
            lots,
        })
    }

    /// When the next part is due.
    pub fn due(&self) -> Monotonic {
        if self.walk.is_some() { Monotonic::default() } else { self.rounds.due() }
    }

    /// Does what is due: one part of a table that holds something, or the rest of a round over tables that do not. Returns the report of a round that
    /// ends, or cannot go on.
    pub fn step(&mut self, programmer: &mut Programmer<KernelStore>, now: Monotonic) -> Option<&SweepReport> {
        match self.walk.take() {
            Some(Walk::Counts(behind)) => {
                self.walk = self.count(programmer.programmed(), behind).map(|last| Walk::Counts(Some(last)));
                return None;
            }
            Some(Walk::Corrects(behind)) => {
                self.walk = self.correct(programmer.programmed(), behind).map(|last| Walk::Corrects(Some(last)));
                if self.walk.is_some() {
                    return None;
                }
                self.finish(programmer, now);
                return Some(&self.report);
            }
            None => {}
        }
        // Until what was done must be paid for by waiting.
        while let Some(order) = self.rounds.next(now) {
            if order.starts {
                self.begin(programmer);
                self.walk = Some(Walk::Counts(None));
                return None;
            }
            let part = match self.part(order, programmer, now) {
                Ok(part) => part,
                Err(error) => {
                    self.rounds.give_up(now, (self.lots)());
                    self.position = None;
                    self.report.last_error = Some(format!("map {}: {error}", order.table.name()));
                    return Some(&self.report);
                }
            };
            self.report.looked += part.looked as u64;
            self.report.resets = self.sent.get();
            *self.report.swept.entry(order.table.name().to_owned()).or_default() += part.removed as u64;
            let lot = (self.lots)();
            if let Some(took) =
                self.rounds.done(part.looked, part.removed + part.resets, part.is_last, clock::monotonic(), lot)
            {
                self.report.rounds += 1;
                self.report.took_seconds = took.as_secs_f64();
                self.report.last_error = None;
                self.walk = Some(Walk::Corrects(None));
                return None;
            }
        }
        None
    }

    fn part(&mut self, order: Order, programmer: &Programmer<KernelStore>, now: Monotonic) -> io::Result<Part> {
        let programmed = programmer.programmed();
        let since_boot = now.since(Monotonic::default());
        let send = |reset: &Reset| self.resets.as_ref().is_some_and(|sender| send(sender, reset, &self.sent));
        let look = SweepContext {
            maps: programmer.store().maps(),
            programmed,
            timeouts: &self.timeouts,
            now: Now { s: since_boot.as_secs().try_into().unwrap_or(u32::MAX), ds: now.to_tenths() },
            at: now,
            drain_limits: self.drain_limits,
            send_reset: self.resets.is_some().then_some(&send),
        };
        look.part(order.table, &mut self.position, order.count, &mut self.seen)
    }

    fn begin(&mut self, programmer: &Programmer<KernelStore>) {
        let (programmed, maps) = (programmer.programmed(), programmer.store().maps());
        self.position = None;
        let start = Start {
            gone: programmed.backends().gone().clone(),
            draining: programmed.drains().ids().collect(),
            connections: Counts::default(),
            client_shares: maps.client_shares.read(),
            unserved: self.unserved.clone(),
            established: self.established,
        };
        self.seen = Seen::new(start, self.client_key);
    }

    /// Notes how many connections the next backends have; the last one of them, if there may be more.
    fn count(&mut self, programmed: &ProgrammedState, behind: Option<BackendId>) -> Option<BackendId> {
        let next = programmed.backends().records().range(behind_of(behind)).take(BACKENDS);
        let counts: Vec<_> = next.map(|(id, record)| (*id, self.of(*id).of(id.id, record.generation))).collect();
        let last = counts.last().map(|(id, _)| *id);
        self.seen.start.connections.extend(counts.into_iter().filter(|(_, count)| *count > 0));
        last
    }

    /// Whether the programs hold this generation of the backend for ejected.
    pub fn is_ejected(&self, id: BackendId, generation: u32) -> bool {
        self.of(id).is_ejected(id.id, generation)
    }

    fn of(&self, id: BackendId) -> &Connections {
        match id.family {
            Family::V4 => &self.connections4,
            Family::V6 => &self.connections6,
        }
    }

    /// A round has seen everything.
    fn finish(&mut self, programmer: &mut Programmer<KernelStore>, now: Monotonic) {
        let seen = std::mem::take(&mut self.seen);
        self.report.cut += seen.cut;
        self.report.masqueraded = seen.masqueraded;
        self.unserved.clone_from(&seen.unserved);
        self.established = seen.established;
        self.correct_shares(&seen, &programmer.store().maps().client_shares);
        self.report.largest_clients = (["ipv4", "ipv6"].into_iter().zip(seen.clients.largest()))
            .filter_map(|(family, client)| Some((family.to_owned(), client?)))
            .collect();
        self.report.greedy_clients = self.greedy(&seen.clients);
        programmer.note_idle(&seen.idle());
        programmer.store_mut().note_unreferred(&seen.start.gone - &seen.referred);
        programmer.reclaim_soon(now);
    }

    /// Sets right how many connections each client has.
    fn correct_shares(&mut self, seen: &Seen, shares: &ClientShares) {
        let counts = seen.start.client_shares.iter().zip(shares.read()).zip(&seen.clients.counted);
        for (index, ((before, after), counted)) in (0..).zip(counts) {
            let change = correction(*before, after, *counted);
            if change != 0 {
                shares.change(index, change);
                self.report.recounted_shares += u64::from(change.unsigned_abs());
            }
        }
    }

    /// Which clients' new connections are refused because they have more than their share; of each family, the one that has most.
    fn greedy(&self, clients: &Clients) -> Vec<String> {
        let all = Counters::families().map(|all| clients.counted[all as usize]);
        let families = clients.largest().into_iter().zip(all).zip(self.room);
        let greedy = families.filter_map(|((client, all), room)| {
            let Client { client, connections } = client?;
            let own = u32::try_from(connections).unwrap_or(u32::MAX);
            let is_greedy = exceeds(own, all, room);
            is_greedy.then(|| {
                format!("client {client} has more connections than the table has room for: its new ones are refused")
            })
        });
        greedy.collect()
    }

    /// Sets right how many connections the next backends have; the last one of them, if there may be more.
    fn correct(&mut self, programmed: &ProgrammedState, behind: Option<BackendId>) -> Option<BackendId> {
        let mut last = None;
        for (id, record) in programmed.backends().records().range(behind_of(behind)).take(BACKENDS) {
            last = Some(*id);
            let count = |counts: &Counts| counts.get(id).copied().unwrap_or(0);
            let after = self.of(*id).of(id.id, record.generation);
            let change = correction(count(&self.seen.start.connections), after, count(&self.seen.counted));
            if change != 0 && self.of(*id).change(id.id, record.generation, change) {
                self.report.recounted += u64::from(change.unsigned_abs());
            }
        }
        last
    }
}
