//! `north-south`: external clients. Ballast's programs on one frame at a time, at XDP and at tc, beside the least that a program can do.

pub mod frames;
mod lane;
mod proxy;
mod single;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use lb_tests::topology::Topology;
use serde_json::json;

use self::lane::Lane;
use self::proxy::{Ballast, Hook};
use crate::figures::Part;
use crate::machine::{Cpus, load, machine};
use crate::packet::runner::Yardstick;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

const ROUNDS: u32 = 40;
const PACKETS: u32 = 200;

#[derive(Debug, clap::Args)]
pub struct NorthSouthArguments {
    /// How often everything takes turns; the result is the median.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=400))]
    rounds: u32,
    /// Frames of each kind in a round.
    #[arg(long, default_value_t = PACKETS, value_parser = clap::value_parser!(u32).range(25..=1_000))]
    packets: u32,
    /// Few rounds: whether it works, not how fast.
    #[arg(long)]
    quick: bool,
}

impl Default for NorthSouthArguments {
    fn default() -> Self {
        Self { rounds: ROUNDS, packets: PACKETS, quick: false }
    }
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
    let topology = Topology::new("outside")?;
    eprintln!("==> starting the agents");
    let start = |name, hook| Ballast::start(agent, Lane::new(&topology, name)?, hook).context(name);
    let subjects = [("XDP", start("xdp", Hook::Xdp)?), ("tc", start("tc", Hook::Tc)?)];
    eprintln!("==> frames one by one");
    let rows = single::measure(&subjects, &mut yardstick, rounds, arguments.packets, stop)?;
    println!("{}", single::table(&rows));
    let details = json!({
        "machine": machine()?, "loadBefore": load_before, "loadAfter": load(), "rounds": rounds,
        "packetsPerRound": arguments.packets, "frameBytes": frames::FRAME, "knownFlows": frames::FLOWS,
    });
    let figures = rows.into_iter().map(|row| row.figure).collect();
    Ok(Part { bench: "north-south", figures, details, left_out: Vec::new() })
}
