//! `all`: every bench, one after the other, in one result.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::figures::Part;
use crate::{connect, control, flood, memory, north_south, packet, scale};

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct AllArguments {
    /// Fewer rounds of everything, and neither 100,000 services through the API nor external clients: ten minutes.
    #[arg(long)]
    pub quick: bool,
    /// Leave kube-proxy out of connections and streams.
    #[arg(long)]
    pub without_kube_proxy: bool,
}

/// A bench, ready to run.
type Bench<'a> = &'a dyn Fn() -> Result<Vec<Part>>;

/// Runs them. A failed bench is named, and the rest goes on: a missing figure is better than none at all.
pub fn run(asked: AllArguments, agent: &Path, stop: &AtomicBool) -> Result<Vec<Part>> {
    let quick = asked.quick;
    let connect = connect::ConnectArguments::of(quick, asked.without_kube_proxy);
    let benches: [(&'static str, Bench<'_>); 7] = [
        ("connect and stream", &|| {
            let fixture = connect.fixture(agent, stop)?;
            let first = connect::connect(&connect, &fixture, stop)?;
            Ok(vec![first, connect::stream(&connect, &fixture, stop)?])
        }),
        ("packet", &|| Ok(vec![packet::run(&packet::PacketArguments::of(quick), agent, stop)?])),
        ("scale", &|| Ok(vec![scale::run(&scale::ScaleArguments::of(quick), agent, stop)?])),
        ("memory", &|| Ok(vec![memory::run(agent, stop)?])),
        ("flood", &|| Ok(vec![flood::run(stop)?])),
        ("control", &|| Ok(vec![control::run(&control::ControlArguments::of(quick), agent, stop)?])),
        ("north-south", &|| {
            if quick {
                return Ok(Vec::new());
            }
            Ok(vec![north_south::run(&north_south::NorthSouthArguments::default(), agent, stop)?])
        }),
    ];
    let mut parts = Vec::new();
    for (name, bench) in benches {
        eprintln!("==> bench {name}");
        let begun = Instant::now();
        match bench() {
            Ok(found) => parts.extend(found),
            Err(error) if stop.load(Ordering::Relaxed) => return Err(error.context(name)),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                let left_out = vec![format!("{name}: it failed: {error}")];
                parts.push(Part { bench: name, figures: Vec::new(), details: json!({}), left_out });
            }
        }
        eprintln!("==> bench {name} took {:.0} s", begun.elapsed().as_secs_f64());
    }
    Ok(parts)
}
