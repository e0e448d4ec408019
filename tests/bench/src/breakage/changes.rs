//! Other backends come and go, one change after the other, while connections to one that stays are open.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::random::Random;
use lb_tests::topology::{Addresses, Topology};

use super::{broken, open, precise, serve};
use crate::figures::{Better, Figure};

/// Connections that are open.
const OPEN: usize = 200;
/// Other endpoints; nobody is there.
const OTHERS: u8 = 12;
/// The changes are the same in every run.
const SEED: u64 = 12;

pub fn measure(changes: u32, stop: &AtomicBool) -> Result<Figure> {
    let topology = Topology::new("changes")?;
    let node = topology.node()?;
    let (client, backend) = (node.pod("client")?, node.pod("backend")?);
    let _server = serve(&backend, "backend")?;
    let stays = Endpoint::ready(backend.addresses());
    let other = |number: u8| {
        let v6 = format!("fd00:244:1:8::{number:x}").parse();
        v6.map(|v6| Endpoint::ready(Addresses { v4: [10, 244, 1, 200 + number].into(), v6 }))
    };
    let others: Vec<Endpoint> = (0..OTHERS).map(other).collect::<Result<_, _>>()?;
    let service = |endpoints: Vec<Endpoint>| Manifest::of([Service::web(endpoints)]);
    let agent = Agent::start_with(&node, &service(vec![stays.clone()]), &["--drain-period=2s", "--drain-max=0s"])?;
    let to = Service::web(Vec::new()).frontends(Protocol::Tcp)[0];
    let mut streams = open(client.netns(), to, OPEN).context("before the changes")?;
    let mut random = Random::new(SEED);
    for _ in 0..changes {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let some = others.iter().filter(|_| random.one_in(2)).cloned();
        let mut endpoints: Vec<Endpoint> = some.collect();
        endpoints.insert(random.below(endpoints.len() + 1), stays.clone());
        agent.apply(&service(endpoints))?;
    }
    let lost = broken(&mut streams);
    println!("{changes} changes of {OTHERS} other backends beside {OPEN} open connections.");
    Ok(Figure::single("changes: established connections broken", precise(lost), "", Better::Less).aims(12, 0.0))
}
