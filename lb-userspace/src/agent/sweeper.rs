//! The sweep of the running agent: parts of rounds between other work, and what follows from a round that has seen everything.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use lb_common::decide::Now;
use lb_common::state::Timeouts;

use super::clock;
use crate::apply::{KernelStore, Programmer};
use crate::config::Settings;
use crate::maps::{Connections, Pinned};
use crate::model::{Family, Monotonic};
use crate::observe::report::SweepReport;
use crate::plan::{BackendId, Book, Frontend};
use crate::sweep::{Look, Order, Part, Place, Rounds, Seen, Start, correction};

/// Sweeps the programs' tables.
pub(super) struct Sweeper {
    rounds: Rounds,
    timeouts: Timeouts,
    /// Of services that have none of their own.
    drain_period: Duration,
    seen: Seen,
    place: Place,
    /// Frontends that are no more and that the last round met in flows, and since when.
    unserved: BTreeMap<Frontend, Monotonic>,
    connections4: Connections,
    connections6: Connections,
    report: SweepReport,
    lots: fn() -> u32,
}

impl Sweeper {
    /// `lots` draws numbers for the rests between rounds.
    pub fn new(maps: &Pinned, settings: &Settings, now: Monotonic, lots: fn() -> u32) -> io::Result<Self> {
        Ok(Self {
            rounds: Rounds::new(now, lots()),
            timeouts: settings.flow_timeouts.0,
            drain_period: settings.drain_period,
            seen: Seen::default(),
            place: None,
            unserved: BTreeMap::new(),
            connections4: Connections::map(&maps.health4)?,
            connections6: Connections::map(&maps.health6)?,
            report: SweepReport::default(),
            lots,
        })
    }

    /// When the next part is due.
    pub fn due(&self) -> Monotonic {
        self.rounds.due()
    }

    /// Does what is due: one part of a table that holds something, or the rest of a round over tables that do not. Returns what is
    /// to be told when a round ends, or cannot go on.
    pub fn step(&mut self, programmer: &mut Programmer<KernelStore>, now: Monotonic) -> Option<&SweepReport> {
        // Until what was done must be paid for by waiting.
        while let Some(order) = self.rounds.next(now) {
            let part = match self.part(order, programmer, now) {
                Ok(part) => part,
                Err(error) => {
                    self.rounds.give_up(now, (self.lots)());
                    self.place = None;
                    self.report.last_error = Some(format!("map {}: {error}", order.kind.name()));
                    return Some(&self.report);
                }
            };
            self.report.looked += part.looked as u64;
            *self.report.swept.entry(order.kind.name().to_owned()).or_default() += part.removed as u64;
            let lot = (self.lots)();
            if let Some(took) = self.rounds.done(part.looked, part.removed, part.is_last, clock::monotonic(), lot) {
                self.report.rounds += 1;
                self.report.took_seconds = took.as_secs_f64();
                self.report.last_error = None;
                self.finish(programmer, now);
                return Some(&self.report);
            }
        }
        None
    }

    fn part(&mut self, order: Order, programmer: &Programmer<KernelStore>, now: Monotonic) -> io::Result<Part> {
        let book = programmer.book();
        if order.starts {
            self.place = None;
            self.seen = Seen::new(self.start(book));
        }
        let since_boot = now.since(Monotonic::default());
        let look = Look {
            maps: programmer.store().maps(),
            book,
            timeouts: &self.timeouts,
            now: Now { s: since_boot.as_secs().try_into().unwrap_or(u32::MAX), ds: now.to_tenths() },
            at: now,
            drain_period: self.drain_period,
        };
        look.part(order.kind, &mut self.place, order.count, &mut self.seen)
    }

    fn start(&self, book: &Book) -> Start {
        let counts = book.backends.iter().map(|(id, record)| (*id, self.of(*id).of(id.id, record.generation)));
        Start {
            gone: book.gone.clone(),
            draining: book.drains.ids().collect(),
            connections: counts.filter(|(_, count)| *count > 0).collect(),
            unserved: self.unserved.clone(),
        }
    }

    /// Whether the programs hold this generation of the backend for suspect.
    pub fn is_suspect(&self, id: BackendId, generation: u32) -> bool {
        self.of(id).is_suspect(id.id, generation)
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
        self.recount(&seen, programmer.book());
        self.report.cut += seen.cut;
        self.report.masqueraded = seen.masqueraded;
        self.unserved.clone_from(&seen.unserved);
        programmer.note_idle(&seen.idle());
        programmer.store_mut().note_unreferred(&seen.start.gone - &seen.referred);
        programmer.reclaim_soon(now);
    }

    /// Sets right how many connections each backend has.
    fn recount(&mut self, seen: &Seen, book: &Book) {
        let ids: BTreeSet<BackendId> = seen.start.connections.keys().chain(seen.counted.keys()).copied().collect();
        for id in ids {
            let Some(record) = book.backends.get(&id) else { continue };
            let count = |counts: &BTreeMap<BackendId, u32>| counts.get(&id).copied().unwrap_or(0);
            let after = self.of(id).of(id.id, record.generation);
            let change = correction(count(&seen.start.connections), after, count(&seen.counted));
            if change != 0 && self.of(id).change(id.id, record.generation, change) {
                self.report.recounted += u64::from(change.unsigned_abs());
            }
        }
    }
}
