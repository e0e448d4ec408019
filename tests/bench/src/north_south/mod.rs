//! `north-south`: external clients. Frames as fast as one CPU does all the work of their way, beside kube-proxy, plain forwarding and
//! XDP that only sends on; and Ballast's programs on one frame at a time.

mod fixture;
pub mod frames;
mod kube;
mod lane;
mod print;
mod proxy;
mod rate;
mod single;
pub mod wire;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};
use serde::Serialize;

use self::fixture::Fixture;
use crate::figures::{Better, Figure, Part};
use crate::machine::{Cpus, Machine, load, machine};
use crate::packet::runner::Yardstick;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

const ROUNDS: u32 = 40;
const FRAMES: u32 = 20_000;
const PACKETS: u32 = 200;

#[derive(Debug, clap::Args)]
pub struct NorthSouthArguments {
    /// How often everything takes turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=400))]
    rounds: u32,
    /// Frames of one burst over a wire; there are two of each arm in a round.
    #[arg(long, default_value_t = FRAMES, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    frames: u32,
    /// Frames of each kind in a round, one by one.
    #[arg(long, default_value_t = PACKETS, value_parser = clap::value_parser!(u32).range(25..=1_000))]
    packets: u32,
    /// Few rounds: whether it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Leave kube-proxy out: it needs an API server.
    #[arg(long)]
    without_kube_proxy: bool,
}

impl NorthSouthArguments {
    /// As without any option but this one.
    pub fn of(without_kube_proxy: bool) -> Self {
        Self { rounds: ROUNDS, frames: FRAMES, packets: PACKETS, quick: false, without_kube_proxy }
    }
}

/// Everything that was measured, and where.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Results {
    machine: Machine,
    load_before: String,
    load_after: String,
    rounds: u32,
    frames_per_burst: u32,
    frame_bytes: usize,
    known_flows: u16,
    packets_per_round: u32,
    live: Vec<rate::Figures>,
    single: Vec<single::Figures>,
}

/// Measures and prints.
pub fn run(arguments: &NorthSouthArguments, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let rounds = if arguments.quick { arguments.rounds.min(5) } else { arguments.rounds };
    let new = (rounds + 1) * arguments.packets.next_multiple_of(25);
    ensure!(
        new <= single::NEW_MAX,
        "{new} new connections of a kind, at most {}: fewer --rounds or --packets",
        single::NEW_MAX
    );
    let _here = Cpus::one()?;
    eprintln!("==> building the programs that do the least");
    let object = crate::yardstick::object()?;
    let load_before = load();
    let mut yardstick = Yardstick::load(&object)?;
    let mut fixture = Fixture::new(&object, agent, !arguments.without_kube_proxy)?;
    eprintln!("==> frames over the wires");
    let live = rate::measure(&mut fixture, rounds, arguments.frames, stop)?;
    eprintln!("==> frames one by one");
    let single = single::measure(&fixture, &mut yardstick, rounds, arguments.packets, stop)?;
    drop(fixture);
    let results = Results {
        machine: machine()?,
        load_before,
        load_after: load(),
        rounds,
        frames_per_burst: arguments.frames,
        frame_bytes: frames::FRAME,
        known_flows: frames::FLOWS,
        packets_per_round: arguments.packets,
        live,
        single,
    };
    print::print(&results);
    let figures = figures(&results);
    Ok(Part { bench: "north-south", figures, details: serde_json::to_value(&results)?, left_out: Vec::new() })
}

/// The results that runs compare: none of these has a goal.
fn figures(results: &Results) -> Vec<Figure> {
    let figure = |name: String, ratio: &rate::Ratio, better| Figure {
        name: format!("north-south, {name}"),
        value: ratio.median,
        unit: String::new(),
        better,
        interval: Some(ratio.interval),
        goal: None,
    };
    let live = results
        .live
        .iter()
        .map(|row| figure(format!("{}: {} / plain forwarding", row.family, row.arm), &row.to_plain, Better::More));
    let single = results.single.iter().map(|row| {
        figure(format!("{}, {}: {}, one frame / the least", row.family, row.hook, row.kind), &row.ratio, Better::Less)
    });
    live.chain(single).collect()
}
