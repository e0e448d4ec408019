//! `connect` and `stream`: connections through cluster IPs beside direct ones and beside kube-proxy's, on sides that are alike.
//!
//! Clients and servers share one CPU: the work on the way is compared, not the scheduler's luck (waking another CPU takes several
//! times as long as all the rest).

mod compare;
mod measure;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::measure::{Row, Workload, measure};
use crate::figures::{Figure, Part};
use crate::fixture::{FAMILIES, Fixture, Route};
use crate::machine::{Cpus, load, machine};

const ROUNDS: u32 = 40;
const TURNS: u32 = 5;
const SERVICES: u32 = 10_000;
/// Bytes of one stream, and of one of a quick run.
const STREAM_BYTES: u64 = 128 << 20;
const STREAM_BYTES_QUICK: u64 = 32 << 20;
/// Connections begun by the clock load the direct way to this part of what it can take.
const LOADED: f64 = 0.4;

#[derive(Clone, Debug, clap::Args)]
pub struct ConnectArguments {
    /// How often everything takes turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Turns of each arm in a round, there and back: of 20 connections, of 20 questions, of 100 connections by the clock.
    #[arg(long, default_value_t = TURNS, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Services of the large clusters.
    #[arg(long, default_value_t = SERVICES, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    services: u32,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Leave kube-proxy out: it needs an API server.
    #[arg(long)]
    without_kube_proxy: bool,
    /// Only ways whose name holds this, and the direct ones: for a profile of one of them.
    #[arg(long)]
    way: Option<String>,
}

impl ConnectArguments {
    /// As without any option but these.
    pub fn of(quick: bool, without_kube_proxy: bool) -> Self {
        Self { rounds: ROUNDS, turns: TURNS, services: SERVICES, quick, without_kube_proxy, way: None }
    }

    fn rounds(&self) -> u32 {
        if self.quick { self.rounds.min(12) } else { self.rounds }
    }

    /// Makes what both benches need.
    pub fn fixture(&self, agent: &Path, stop: &AtomicBool) -> Result<Fixture> {
        Fixture::new(agent, self.services as usize, !self.without_kube_proxy, self.way.as_deref(), stop)
    }
}

/// Connections, and requests on one connection.
pub fn connect(asked: &ConnectArguments, fixture: &Fixture, stop: &AtomicBool) -> Result<Part> {
    let load_before = load();
    let _here = Cpus::one()?;
    eprintln!("==> connections");
    let closed = measure(fixture, Workload::Connect, asked.rounds(), asked.turns, stop)?;
    eprintln!("==> requests on one connection");
    let exchanges = measure(fixture, Workload::Exchange, asked.rounds(), asked.turns, stop)?;
    let direct = closed.iter().find(|row| row.arm.route == Route::Direct).context("the direct way is always there")?;
    let interval = Duration::from_secs_f64(direct.median() / 1e6 / LOADED);
    eprintln!("==> connections by the clock");
    let rate = Workload::Rate { interval };
    let open = measure(fixture, rate, asked.rounds(), asked.turns.div_ceil(5), stop)?;
    println!(
        "TCP connect + request + response (64 bytes each) + close, one after the other:\n\n{}",
        table(&closed, fixture.many)
    );
    println!("Request + response on one connection:\n\n{}", table(&exchanges, fixture.many));
    println!(
        "TCP connect + request + response, begun every {:.0} µs; times count from when each was due:\n\n{}",
        interval.as_secs_f64() * 1e6,
        table(&open, fixture.many)
    );
    let kinds = [(Workload::Connect, &closed), (Workload::Exchange, &exchanges), (rate, &open)];
    let figures = kinds.iter().flat_map(|(kind, rows)| compare::figures(*kind, rows, fixture.many)).collect();
    let details = json!({
        "machine": machine()?, "loadBefore": load_before, "loadAfter": load(),
        "rounds": asked.rounds(), "round_robin": asked.turns, "services": fixture.many,
        "connect": rows_json(&closed, fixture.many), "exchange": rows_json(&exchanges, fixture.many),
        "byTheClock": {"intervalMicroseconds": interval.as_secs_f64() * 1e6, "arms": rows_json(&open, fixture.many)},
    });
    Ok(Part { bench: "connect", figures, details, left_out: fixture.left_out.clone() })
}

/// Bulk streams.
pub fn stream(asked: &ConnectArguments, fixture: &Fixture, stop: &AtomicBool) -> Result<Part> {
    let load_before = load();
    let bytes = if asked.quick { STREAM_BYTES_QUICK } else { STREAM_BYTES };
    let _here = Cpus::one()?;
    eprintln!("==> streams");
    let rows = measure(fixture, Workload::Stream { bytes }, asked.rounds(), 1, stop)?;
    println!("One TCP stream of {} MiB:\n\n{}", bytes >> 20, table(&rows, fixture.many));
    let figures: Vec<Figure> = compare::figures(Workload::Stream { bytes }, &rows, fixture.many);
    let details = json!({
        "machine": machine()?, "loadBefore": load_before, "loadAfter": load(),
        "rounds": asked.rounds(), "bytes": bytes, "stream": rows_json(&rows, fixture.many),
    });
    Ok(Part { bench: "stream", figures, details, left_out: fixture.left_out.clone() })
}

/// All arms: their times, and their rates by that of what they are compared with.
fn table(rows: &[Row], many: usize) -> String {
    let mut text =
        "| | way | µs, median | µs, p99 | rate / direct | failed |\n|---|---|---:|---:|---:|---:|\n".to_owned();
    for row in rows {
        let same = |other: &&Row| other.arm.route == row.arm.route.reference() && other.arm.family == row.arm.family;
        let ratio = rows.iter().find(same).map(|reference| row.rate_to(reference));
        let ratio = ratio.map_or_else(String::new, |ratio| {
            let [low, high] = ratio.interval();
            format!("{:.3} ({low:.3} – {high:.3})", ratio.median())
        });
        let (family, name) = (FAMILIES[row.arm.family], row.arm.name(many));
        let (median, p99) = (row.median(), row.all.quantile_us(0.99));
        let failed = if row.failed == 0 { "0".to_owned() } else { format!("{} of {}", row.failed, row.all.count()) };
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {family} | {name} | {median:.1} | {p99:.1} | {ratio} | {failed} |");
    }
    text
}

fn rows_json(rows: &[Row], many: usize) -> Value {
    let row = |row: &Row| {
        json!({
            "family": FAMILIES[row.arm.family], "arm": row.arm.name(many), "count": row.all.count(), "failed": row.failed,
            "microseconds": {"p50": row.all.quantile_us(0.5), "p90": row.all.quantile_us(0.9),
                "p99": row.all.quantile_us(0.99), "max": row.all.quantile_us(1.0), "medianOfRounds": row.median()},
        })
    };
    rows.iter().map(row).collect()
}
