//! Connections of the fast path are made known to the host's conntrack, before their packets meet rules that ask it.
//!
//! Netfilter has seen none of their packets. A rule that accepts what is established would stop a stream of the backend for good, and one that
//! masquerades would change the client's port. With an entry the connection is established, without NAT.

use std::io;
use std::path::Path;
use std::time::Duration;

use lb_common::{
    abi::{Flow, FlowKey, HalfOpen},
    decide::Now,
    map::{self, Map},
    state::Timeouts,
};
use lb_tables::{Calls, MapError, TableOf, open_table};

use crate::conntrack::{Conntrack, ConntrackError, NewEntry};
use crate::hand_over::{clock, entry::of_fast_path, now};

/// Entries read in one go.
const PART: usize = 4_096;
/// Entries written in one go.
const TOGETHER: usize = 128;

/// Why connections could not be made known.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("cannot read flow entries: {0}; run as root")]
    Entries(#[from] io::Error),
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
}

/// What was written.
#[derive(Debug, Default)]
pub struct Tracked {
    pub connections: usize,
    /// How many conntrack refused, and its last reason.
    pub refused: usize,
    pub reason: Option<io::Error>,
    pub took: Duration,
}

/// The moment from which on [`track`] looks for connections.
#[derive(Clone, Copy, Debug)]
pub struct Since(u32);

impl Since {
    pub const EVER: Self = Self(0);

    pub fn now() -> Self {
        Self(now().s)
    }
}

/// Makes known to conntrack what takes the fast path by the tables in this folder, or did so while it was open: all that began, or may have become
/// established, since then.
pub fn track(tables: &Path, since: Since) -> Result<Tracked, TrackError> {
    let began = clock();
    let settings: TableOf<map::Settings> = open_table::<map::Settings>(tables, &Calls::default())?;
    let timeouts = Timeouts::noted(&settings.get(&0)?.unwrap_or_default());
    let mut work = Work {
        tables,
        timeouts,
        since: since.0.saturating_sub(timeouts.half_open_s),
        conntrack: None,
        tracked: Tracked::default(),
    };
    work.family::<4>()?;
    work.family::<16>()?;
    Ok(Tracked { took: clock().saturating_sub(began), ..work.tracked })
}

struct Work<'a> {
    tables: &'a Path,
    timeouts: Timeouts,
    /// Seconds of the programs' clock.
    since: u32,
    /// Opened with the first entry that is to be written.
    conntrack: Option<Conntrack>,
    tracked: Tracked,
}

impl Work<'_> {
    fn family<const N: usize>(&mut self) -> Result<(), TrackError>
    where
        map::Flows<N>: Map<Key = FlowKey<N>, Value = Flow<N>>,
        map::UdpFlows<N>: Map<Key = FlowKey<N>, Value = Flow<N>>,
        map::HalfOpen<N>: Map<Key = FlowKey<N>, Value = HalfOpen<N>>,
    {
        self.table::<N, map::Flows<N>>(|flow| *flow)?;
        self.table::<N, map::UdpFlows<N>>(|flow| *flow)?;
        self.table::<N, map::HalfOpen<N>>(|entry| entry.flow)
    }

    fn table<const N: usize, M: Map<Key = FlowKey<N>>>(
        &mut self,
        flow: fn(&M::Value) -> Flow<N>,
    ) -> Result<(), TrackError> {
        let table = open_table::<M>(self.tables, &Calls::default())?;
        let mut cursor = table.cursor();
        while !cursor.is_done() {
            let (keys, values) = table.read_part(&mut cursor, PART)?;
            let now = now();
            let found = keys.iter().zip(values.iter().map(flow));
            let entries: Vec<_> = found.filter_map(|(key, flow)| self.entry(key, &flow, now)).collect();
            entries.chunks(TOGETHER).try_for_each(|together| self.put(together))?;
        }
        Ok(())
    }

    fn entry<const N: usize>(&self, key: &FlowKey<N>, flow: &Flow<N>, now: Now) -> Option<NewEntry> {
        if flow.since_s < self.since { None } else { of_fast_path(key, flow, &self.timeouts, now) }
    }

    fn put(&mut self, entries: &[NewEntry]) -> Result<(), TrackError> {
        let conntrack = match &mut self.conntrack {
            Some(conntrack) => conntrack,
            none => none.insert(Conntrack::open()?),
        };
        for result in conntrack.put(entries)? {
            match result {
                Ok(()) => self.tracked.connections += 1,
                Err(error) => {
                    self.tracked.refused += 1;
                    self.tracked.reason = Some(error);
                }
            }
        }
        Ok(())
    }
}
