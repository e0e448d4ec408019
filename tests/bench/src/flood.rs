//! `flood`: SYNs, ten times what the half-open table holds, while connections are open and others are made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::incident::Clients;
use lb_tests::incident::raw_tcp::{Flood, lend};
use lb_tests::peers::{Server, Stream};
use lb_tests::topology::{NetNs, Topology};
use serde_json::json;

use crate::figures::{Better, Figure, Part};
use crate::machine::{load, machine};

/// Port of the backend.
const TARGET: u16 = 8080;
/// The half-open table, in entries: a flow takes two.
const HALF_OPEN: u64 = 4_096;
/// The table of answered flows: room for every connection that is meant, and for none of a flood.
const FLOWS: u64 = 16 * HALF_OPEN;
/// SYNs of the flood.
const FLOOD: u64 = 10 * HALF_OPEN;
/// Connections that are open before the flood.
const ESTABLISHED: usize = 200;
/// Connections that are made meanwhile, again and again.
const LEGITIMATE: Clients =
    Clients { connections: 1_000, at_a_time: 8, patience: Duration::from_secs(10), first_port: None };
/// Rounds of them at most.
const ROUNDS_MAX: usize = 50;

/// Measures and prints.
pub fn run(stop: &AtomicBool) -> Result<Part> {
    let load_before = load();
    let topology = Topology::new("flood")?;
    let node = topology.node()?;
    let [client, attacker, backend, dead] = ["client", "attacker", "backend", "dead"].map(|name| node.pod(name));
    let (client, attacker, backend, dead) = (client?, attacker?, backend?, dead?);
    let _server = Server::tcp(backend.netns(), "backend", SocketAddr::new(backend.addresses().v4.into(), TARGET))?;
    // Nobody at the attacker's takes an answer, and nobody at the dead pod's gives one.
    let from: Vec<_> = lend(&node, &attacker, 64..126)?.iter().map(|addresses| addresses.v4).collect();
    let silent = lend(&node, &dead, 0..2)?.into_iter().map(Endpoint::ready).collect();
    let target = Service::standard("target", 11, silent);
    let web = Service::web(vec![Endpoint::ready(backend.addresses())]);
    let to = web.frontends(Protocol::Tcp)[0];
    let SocketAddr::V4(flooded) = target.frontends(Protocol::Tcp)[0] else { bail!("the first frontend is IPv4") };
    let sizes = format!("--map-sizes=half_open={HALF_OPEN},flows4={FLOWS},flows6=4096");
    let _agent = Agent::start_with(&node, &Manifest::of([web, target]), &[&sizes])?;
    let mut established = open(client.netns(), to, ESTABLISHED).context("before the flood")?;

    let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (is_over, counted) = (Arc::clone(&over), Arc::clone(&sent));
    let flooding = attacker.netns().spawn(move || {
        let Ok(flood) = Flood::new() else { return };
        // As long as the others connect, and in any case until it is ten tables long.
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) && u64::from(number) >= FLOOD {
                break;
            }
            flood.syn(from[number as usize % from.len()], number, flooded);
            counted.store(u64::from(number) + 1, Ordering::Relaxed);
        }
    });
    let mut round = LEGITIMATE.run(client.netns(), to);
    for _ in 1..ROUNDS_MAX {
        if sent.load(Ordering::Relaxed) >= FLOOD || stop.load(Ordering::Relaxed) || flooding.is_finished() {
            break;
        }
        round.attempts.extend(LEGITIMATE.run(client.netns(), to).attempts);
    }
    over.store(true, Ordering::Relaxed);
    flooding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    ensure!(sent.load(Ordering::Relaxed) >= FLOOD, "no flood could be sent");
    let lost = established.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count();
    let made = precise(round.attempts.len() - round.failed()) / precise(round.attempts.len());
    let what = format!("{} SYNs, ten times the half-open table", sent.load(Ordering::Relaxed));
    println!("{what}; {} connections made meanwhile, {} failed.", round.attempts.len(), round.failed());
    let figures = vec![
        Figure::single("flood: established connections lost", precise(lost), "", Better::Less).aims(10, 0.0),
        Figure::single("flood: legitimate connections made", made * 100.0, "%", Better::More).aims(10, 99.9),
    ];
    let details = json!({"machine": machine()?, "loadBefore": load_before, "loadAfter": load()});
    Ok(Part { bench: "flood", figures, details, left_out: Vec::new() })
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

fn precise(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
