//! Maglev's tables as they stand in the kernel: how even they are, and what moves when a backend leaves.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use lb_tables::Pinned;
use lb_tests::agent::{Agent, Endpoint, Manifest, Service};
use lb_tests::topology::{Addresses, Topology};

use super::precise;
use crate::figures::{Better, Figure};
use crate::statistics::Samples;

/// Backends of the service.
const BACKENDS: u8 = 100;

pub fn measure(leavings: u8, stop: &AtomicBool) -> Result<Vec<Figure>> {
    let topology = Topology::new("maglev")?;
    let node = topology.node()?;
    let endpoint = |number: u8| {
        let v6 = format!("fd00:244:1:7::{number:x}").parse();
        v6.map(|v6| Endpoint::ready(Addresses { v4: address(number), v6 }))
    };
    let all: Vec<Endpoint> = (0..BACKENDS).map(endpoint).collect::<Result<_, _>>()?;
    let service = |endpoints: Vec<Endpoint>| Service::web(endpoints).annotated("scheduler", "maglev");
    let agent =
        Agent::start_with(&node, &Manifest::of([service(all.clone())]), &["--drain-period=2s", "--drain-max=0s"])?;
    let cluster_ip = service(Vec::new()).cluster_ips.v4;
    let before = table(&agent, cluster_ip)?;
    ensure!(!before.is_empty(), "the service has no slots");
    let mut needless = Vec::new();
    for gone in (0..BACKENDS).step_by(usize::from(BACKENDS / leavings)) {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let mut rest = all.clone();
        rest.remove(gone.into());
        agent.apply(&Manifest::of([service(rest)]))?;
        let after = table(&agent, cluster_ip)?;
        ensure!(after.len() == before.len(), "{} slots became {}", before.len(), after.len());
        needless.push(needless_moves(&before, &after, address(gone)) * 100.0);
    }
    agent.apply(&Manifest::of([service(all)]))?;
    let again = table(&agent, cluster_ip)?;
    let back = precise(before.iter().zip(&again).filter(|(one, other)| one == other).count()) / precise(before.len());
    let needless: Samples = needless.into_iter().collect();
    println!("A Maglev table of {} slots for {BACKENDS} backends, of which one leaves.", before.len());
    let name = format!("Maglev: slots of the largest of {BACKENDS} backends / their mean");
    Ok(vec![
        Figure::single(name, max_over_mean(&before), "", Better::Less).aims(11, 1.05),
        Figure::single("Maglev: needless moves when one leaves, most", needless.quantile(1.0), "%", Better::Less)
            .aims(11, 1.5),
        Figure::single("Maglev: needless moves when one leaves, median", needless.median(), "%", Better::Less),
        Figure::single("Maglev: slots as before, once it is back", back * 100.0, "%", Better::More),
    ])
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 250, 1, number)
}

/// The backend's address in each slot of the service.
fn table(agent: &Agent, cluster_ip: Ipv4Addr) -> Result<Vec<Ipv4Addr>> {
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables"))?;
    let services = maps.services4.read()?;
    let is_tcp = |port: u16| port == 80;
    let found = services.iter().find(|(key, _)| key.address == cluster_ip.octets() && is_tcp(key.port));
    let (_, service) = found.context("the service is not in the tables")?;
    let backends: BTreeMap<u32, Ipv4Addr> =
        maps.backends4.read()?.into_iter().map(|(id, backend)| (id, backend.address.into())).collect();
    let slots = maps.slots.read_range(service.slot_base, service.slot_count)?;
    let addresses = slots.iter().map(|slot| backends.get(&slot.backend).copied().context("a slot without a backend"));
    addresses.collect()
}

/// The largest number of slots of a backend by the mean.
fn max_over_mean(slots: &[Ipv4Addr]) -> f64 {
    let mut counts: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for address in slots {
        *counts.entry(*address).or_default() += 1;
    }
    precise(counts.values().max().copied().unwrap_or_default() * counts.len()) / precise(slots.len())
}

/// Slots that change hands when `gone` leaves, beside those that it had, as a share of all.
fn needless_moves(before: &[Ipv4Addr], after: &[Ipv4Addr], gone: Ipv4Addr) -> f64 {
    let moved = before.iter().zip(after).filter(|(was, is)| **was != gone && was != is).count();
    precise(moved) / precise(before.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_one_had_is_no_needless_move() {
        let slots = |numbers: [u8; 4]| numbers.map(address);
        let before = slots([1, 2, 3, 1]);
        assert!((needless_moves(&before, &slots([1, 2, 1, 1]), address(3)) - 0.0).abs() < 1e-9);
        assert!((needless_moves(&before, &slots([2, 2, 1, 1]), address(3)) - 0.25).abs() < 1e-9);
        assert!((max_over_mean(&before) - 1.5).abs() < 1e-9);
    }
}
