//! `breakage`: what a flood of SYNs and changes of other backends do to connections, and how many flows Maglev moves needlessly.

mod changes;
mod flood;
mod maglev;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use lb_tests::peers::{Server, Stream};
use lb_tests::topology::{NetNs, Pod};
use serde_json::json;

use crate::figures::Part;
use crate::machine::{load, machine};

/// Port of the backends.
const TARGET: u16 = 8080;

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct BreakageArguments {
    /// Fewer changes.
    #[arg(long)]
    pub quick: bool,
}

/// Measures and prints.
pub fn run(asked: BreakageArguments, stop: &AtomicBool) -> Result<Part> {
    let load_before = load();
    let mut figures = Vec::new();
    eprintln!("==> a flood");
    figures.extend(flood::measure(stop)?);
    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    eprintln!("==> other backends come and go");
    figures.push(changes::measure(if asked.quick { 30 } else { 200 }, stop)?);
    eprintln!("==> Maglev tables");
    figures.extend(maglev::measure(if asked.quick { 5 } else { 20 }, stop)?);
    let details = json!({"machine": machine()?, "loadBefore": load_before, "loadAfter": load()});
    Ok(Part { bench: "breakage", figures, details, left_out: Vec::new() })
}

/// A server in a pod, for many connections at once.
fn serve(pod: &Pod, name: &str) -> Result<Server> {
    Server::tcp(pod.netns(), name, SocketAddr::new(pod.addresses().v4.into(), TARGET))
}

/// Connections that have been answered, and stay open.
fn open(client: &NetNs, to: SocketAddr, count: usize) -> Result<Vec<Stream>> {
    let one = |_| {
        let mut stream = Stream::connect(client, to)?;
        stream.ask("before")?;
        Ok(stream)
    };
    (0..count).map(one).collect()
}

/// How many of them are not answered any more.
fn broken(streams: &mut [Stream]) -> usize {
    streams.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count()
}

fn precise(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
