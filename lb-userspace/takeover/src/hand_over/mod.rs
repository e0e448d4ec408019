//! The way back: connections of Ballast are given to the host's NAT, while another proxy has its rules there.
//!
//! New connections pass to the other proxy from the beginning on. The tables are read from end to end; of each connection
//!
//! 1. both entries are **held**: programs drop its packets, and its ends send them again;
//! 2. conntrack forgets the untranslated connection that it may know: its tuples would be in the way of
//! 3. the translated one, which is written;
//! 4. both entries are **adopted**: programs leave its packets alone, and netfilter translates them.
//!
//! Without step 1 a packet between 2 and 3 would make the untranslated connection known again, or get another source port by NAT.
//!
//! Entries that are held and stay so are given up by the programs after [`lb_common::limits::HOLD_S`].

pub(crate) mod entry;

use std::io;
use std::time::Duration;

use lb_common::{
    abi::{Flow, FlowKey, HalfOpen, flow_flags, flow_state},
    decide::{Now, is_pair, pair_key},
    limits::HAND_OVER,
    map::{self, Map},
    state::{Timeouts, expired},
};
use rustix::time::{ClockId, clock_gettime};

use crate::conntrack::{self, Conntrack, ConntrackError, NewEntry, nat_hooks};
use lb_tables::pause::pause;
use lb_tables::{MapError, Pinned, Table};

/// Connections that are held together.
const TOGETHER: usize = 64;
/// Entries read in one go.
const PART: usize = 4_096;
/// After this, no CPU works on a packet any more that found its entry unheld.
const IN_FLIGHT: Duration = Duration::from_millis(2);
/// A packet that was on its way may bring an untranslated connection back: how often it is removed.
const ATTEMPTS: usize = 4;
/// How long handshakes under way may take to end, and the pause between two looks for them.
const HANDSHAKES: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How many connections that could not be given are named.
const MOST_NAMED: usize = 20;

/// Why connections could not be given.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("cannot change flow entries: {0}; run as root")]
    Entries(#[from] io::Error),
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
    #[error("cannot keep NAT at work: {0}; the kernel must have nf_tables with NAT")]
    Nat(io::Error),
    #[error("the tables are of a version that cannot give its connections away; start the agent of this version once")]
    Old,
}

/// What was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub connections: usize,
    /// The longest time that a connection was held.
    pub longest_hold: Duration,
    /// How many could not be given, and some of them by name.
    pub failed: usize,
    pub names: Vec<String>,
}

/// In which families there are connections to give, or to let pass.
pub fn families(maps: &Pinned) -> Result<Vec<conntrack::Family>, HandOverError> {
    let timeouts = timeouts(maps)?;
    let v4 =
        has_given(&maps.of::<map::Flows<4>>(), &timeouts)? || has_given(&maps.of::<map::UdpFlows<4>>(), &timeouts)?;
    let v6 =
        has_given(&maps.of::<map::Flows<16>>(), &timeouts)? || has_given(&maps.of::<map::UdpFlows<16>>(), &timeouts)?;
    let all = [(v4, conntrack::Family::V4), (v6, conntrack::Family::V6)];
    Ok(all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, family)| family).collect())
}

fn has_given<const N: usize>(table: &Table<FlowKey<N>, Flow<N>>, timeouts: &Timeouts) -> io::Result<bool> {
    let (now, mut found) = (now(), false);
    table.each(|key, flow| found |= entry::is_given(key, flow, timeouts, now))?;
    Ok(found)
}

fn access(map: &'static str, action: &'static str) -> impl Fn(io::Error) -> MapError {
    move |source| MapError::Access { map, action, source: aya::maps::MapError::IoError(source) }
}

fn timeouts(maps: &Pinned) -> Result<Timeouts, MapError> {
    let settings = maps.of::<map::Settings>().get(&0).map_err(access(map::Settings::NAME, "reading"))?;
    Ok(Timeouts::noted(&settings.unwrap_or_default()))
}

/// Gives all connections away. The agent must not run: it would write the entries of new ones.
///
/// An error leaves those that were given to netfilter, and the others to the programs.
pub fn hand_over(maps: &Pinned) -> Result<Report, HandOverError> {
    let mut conntrack = Conntrack::open()?;
    // Whatever the other proxy does meanwhile, its last NAT chain is not the kernel's last one.
    nat_hooks::keep().map_err(HandOverError::Nat)?;
    let word = maps.find::<map::Adoption>().ok_or(HandOverError::Old)?;
    let before = word.get(&0).map_err(access(word.name(), "reading"))?.unwrap_or_default();
    word.put(&0, &HAND_OVER).map_err(access(word.name(), "writing"))?;
    let given = give_all(maps, &mut conntrack);
    if given.is_err() {
        word.put(&0, &before).map_err(access(word.name(), "writing"))?;
    }
    given
}

fn give_all(maps: &Pinned, conntrack: &mut Conntrack) -> Result<Report, HandOverError> {
    let mut work = Work { conntrack, timeouts: timeouts(maps)?, report: Report::default() };
    let started = clock();
    loop {
        work.table(&maps.of::<map::Flows<4>>())?;
        work.table(&maps.of::<map::Flows<16>>())?;
        work.table(&maps.of::<map::UdpFlows<4>>())?;
        work.table(&maps.of::<map::UdpFlows<16>>())?;
        // Handshakes that were under way become connections.
        let waits = has_handshakes(&maps.of::<map::HalfOpen<4>>())? || has_handshakes(&maps.of::<map::HalfOpen<16>>())?;
        if !waits || clock().saturating_sub(started) > HANDSHAKES {
            return Ok(work.report);
        }
        pause(LOOK_AGAIN);
    }
}

struct Work<'a> {
    conntrack: &'a mut Conntrack,
    timeouts: Timeouts,
    report: Report,
}

impl Work<'_> {
    fn table<const N: usize>(&mut self, table: &Table<FlowKey<N>, Flow<N>>) -> Result<(), HandOverError> {
        let mut cursor = table.cursor();
        while !cursor.is_done() {
            let (keys, flows) = table.read_part(&mut cursor, PART)?;
            let (timeouts, now) = (self.timeouts, now());
            let entries = keys.into_iter().zip(flows);
            let given: Vec<_> = entries.filter(|(key, flow)| entry::is_given(key, flow, &timeouts, now)).collect();
            for together in given.chunks(TOGETHER) {
                self.give(table, together)?;
            }
        }
        Ok(())
    }

    fn give<const N: usize>(
        &mut self,
        table: &Table<FlowKey<N>, Flow<N>>,
        connections: &[(FlowKey<N>, Flow<N>)],
    ) -> Result<(), HandOverError> {
        let held = clock();
        for (key, flow) in connections {
            set_state(table, key, flow, flow_state::HELD, now())?;
        }
        pause(IN_FLIGHT);
        let mut failed = Vec::new();
        for (key, flow) in connections {
            let is_written = self.write(key, flow)?;
            // What netfilter does not know stays with the programs as long as they are there.
            let state = if is_written { flow_state::ADOPTED } else { flow_state::OPEN };
            set_state(table, key, flow, state, now())?;
            if !is_written {
                failed.push((*key, *flow));
            }
        }
        let report = &mut self.report;
        report.connections += connections.len() - failed.len();
        report.longest_hold = report.longest_hold.max(clock().saturating_sub(held));
        report.failed += failed.len();
        let name = |(key, flow): &(FlowKey<N>, Flow<N>)| {
            let entry = entry::translated(key, flow, &self.timeouts, now());
            format!("{} to {} at {}", entry.original.src, entry.original.dst, entry.backend)
        };
        let room = MOST_NAMED.saturating_sub(report.names.len());
        report.names.extend(failed.iter().take(room).map(name));
        Ok(())
    }

    /// Writes one connection to conntrack. `false`: another one has a tuple of it.
    fn write<const N: usize>(&mut self, key: &FlowKey<N>, flow: &Flow<N>) -> Result<bool, ConntrackError> {
        let entry = entry::translated(key, flow, &self.timeouts, now());
        for _ in 0..ATTEMPTS {
            for tuple in entry::untranslated(key, flow) {
                self.conntrack.delete(&tuple)?;
            }
            // The kernel would give it another source port if a tuple were taken.
            if self.conntrack.insert(&entry)?
                && self.conntrack.get(&entry.original)?.is_some_and(|found| is_it(&found, &entry))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether clients wait for the end of a handshake.
fn has_handshakes<const N: usize>(table: &Table<FlowKey<N>, HalfOpen<N>>) -> io::Result<bool> {
    let (now, mut found) = (now(), false);
    let limit_s = u32::try_from(HANDSHAKES.as_secs()).unwrap_or(u32::MAX);
    table.each(|_, entry| {
        let is_original = entry.flow.flags & flow_flags::REPLY == 0;
        found |= is_original && entry.flow.state == flow_state::HALF_OPEN && !expired(&entry.flow, limit_s, now.s);
    })?;
    Ok(found)
}

/// Whether conntrack translates the connection as it was asked to.
fn is_it(found: &conntrack::Entry, wanted: &NewEntry) -> bool {
    found.original == wanted.original
        && found.reply.src == wanted.backend
        && found.reply.dst == wanted.source.unwrap_or(wanted.original.src)
}

/// Writes the state of both entries, with the time of the change.
fn set_state<const N: usize>(
    table: &Table<FlowKey<N>, Flow<N>>,
    key: &FlowKey<N>,
    flow: &Flow<N>,
    state: u8,
    now: Now,
) -> io::Result<()> {
    let reply_key = pair_key(key, flow);
    for (own, is_reply) in [(key, false), (&reply_key, true)] {
        let Some(mut entry) = table.get(own)? else { continue };
        // The reply tuple may be another connection's by now.
        if is_reply && !is_pair(key, flow, &entry) {
            continue;
        }
        entry.state = state;
        entry.seen_s = now.s;
        table.replace(own, &entry)?;
    }
    Ok(())
}

/// The programs' clock.
pub(crate) fn now() -> Now {
    Now::from_ns(u64::try_from(clock().as_nanos()).unwrap_or(u64::MAX))
}

pub(crate) fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative: it starts at boot.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
