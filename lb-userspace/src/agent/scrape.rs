//! What is read at each scrape: little, however much the tables hold.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::clock;
use crate::observe::contents::{self, Contents, Counted, Wanted};
use crate::observe::process::ProcessReading;
use crate::observe::report::Report;
use crate::observe::series::{self, Series};
use lb_tables::{MapError, Pinned};

/// Up to how many service ports each has its own series: what would be thirty thousand series with ten thousand of them belongs
/// into no scrape. `ballast get services -o wide` shows them all.
const SERVICE_SERIES_MAX: u64 = 1_000;
/// How often flows are counted at most: that walks their tables, which the programs own.
const COUNT_EVERY: Duration = Duration::from_mins(1);

/// Reads the pinned maps for scrapes.
#[derive(Debug)]
pub(super) struct Scrape {
    maps: PathBuf,
    /// And when that was.
    counted: Mutex<Option<(Instant, Counted)>>,
}

impl Scrape {
    pub fn new(maps: PathBuf) -> Self {
        Self { maps, counted: Mutex::new(None) }
    }

    /// All series of this moment. One scrape at a time: others wait for it.
    pub fn series(&self, report: &Report) -> Vec<Series> {
        let mut report = report.clone();
        let mut states = Vec::new();
        match self.flows() {
            Ok(Counted { fill, states: counted }) => {
                report.tables.fill.extend(fill.into_iter().map(|(map, fill)| (map.to_owned(), fill)));
                states = counted;
            }
            Err(error) => tracing::warn!("metrics without the number of flows: {error}"),
        }
        let mut all = series::of_report(&report);
        all.extend(series::of_states(&states));
        let process = ProcessReading::take();
        if let Err(error) = &process {
            tracing::warn!("metrics without the agent's process: {error}");
        }
        all.extend(series::of_process(process.as_ref().ok()));
        let each = report.tables.services <= SERVICE_SERIES_MAX;
        all.extend(series::of_omitted(!each));
        match read(&self.maps, each) {
            Ok(read) => all.extend(read),
            Err(error) => tracing::warn!("metrics without the tables: {error}"),
        }
        all
    }

    fn flows(&self) -> Result<Counted, MapError> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = &*counted
            && at.elapsed() < COUNT_EVERY
        {
            return Ok(known.clone());
        }
        let new = contents::count_flows(&self.maps)?;
        *counted = Some((Instant::now(), new.clone()));
        Ok(new)
    }
}

fn read(maps: &Path, each_service: bool) -> Result<Vec<Series>, MapError> {
    if each_service {
        let contents =
            Contents::read(maps, Wanted { stats: true, health: true, connect_times: true, ..Wanted::default() })?;
        let mut all = series::of_outcomes(&contents.outcomes);
        all.extend(series::of_services(&contents, clock::monotonic()));
        return Ok(all);
    }
    Ok(series::of_outcomes(&contents::outcomes(&Pinned::open(maps)?)?))
}
