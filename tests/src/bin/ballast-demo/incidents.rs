//! The two incidents in a few seconds each, on networks of their own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, Service};
use lb_tests::churn::{Scenario, ScenarioSettings};
use lb_tests::incident::{BackendPool, Clients, Counters, Failure};
use lb_tests::topology::{Addresses, Topology};

use crate::report::Report;

/// How long backends come and go in A.
const CHURN: Duration = Duration::from_secs(4);
/// Backends in B, and how many of them go.
const BACKENDS: u8 = 20;
const GONE: u8 = 4;
/// The clients of B. Their patience is the kernel's own, near enough: what is counted is who gets no answer at all.
const CLIENTS: Clients =
    Clients { connections: 200, at_a_time: 50, patience: Duration::from_mins(1), first_port: Some(20_000) };

/// Both.
pub fn replay(report: &mut Report) {
    report.step("incident A, in short: backends vanish under stuck connections, the agent dies", drains_end);
    report.step("incident B, in short: the agent is dead when 4 of 20 backends go silent", nobody_notices);
}

fn drains_end() -> Result<String> {
    let settings = ScenarioSettings {
        backends: 16,
        holders: 16,
        drain_period: Duration::from_secs(1),
        ..ScenarioSettings::default()
    };
    let mut scenario = Scenario::new("demo-a", settings)?;
    scenario.churn(CHURN)?;
    let churned = scenario.settle()?;
    let (seen, drains) = (&churned.seen, &churned.drains);
    ensure!(seen.stale == 0 && seen.inherited == 0, "misdelivered: {:?}", seen.violations);
    ensure!(drains.put_off == 0 && drains.draining == 0, "{drains:?}");
    Ok(format!(
        "{} drains ended by their deadline, {} stuck connections told; of {} packets at the backends 0 came after one",
        drains.begun, churned.held.told, seen.packets
    ))
}

fn nobody_notices() -> Result<String> {
    let topology = Topology::new("demo-b")?;
    let node = topology.node()?;
    let client = node.pod("client")?;
    let pool = BackendPool::new(&node, BACKENDS)?;
    let endpoint = |number: u8| {
        let v6 = format!("fd00:244:1:9::{number:x}").parse().expect("an address written here");
        Endpoint::ready(Addresses { v4: BackendPool::address(number), v6 })
    };
    let service = Service::web((0..BACKENDS).map(endpoint).collect());
    let manifest = Manifest::of([service.clone()]);
    let mut agent = Agent::start(&node, &manifest)?;
    agent.apply(&manifest)?;
    agent.kill();
    pool.vanish(&node, 0..GONE, Failure::Silent)?;
    let before = Counters::read(node.bpffs())?;
    let to: SocketAddr = service.frontends(Protocol::Tcp)[0];
    let round = CLIENTS.run(client.netns(), to);
    let retried = Counters::read(node.bpffs())?.since(&before, Outcome::Retried);
    ensure!(round.failed() == 0, "{}; the first: {:?}", round.line(), round.first_error());
    Ok(format!("{}; {retried} SYNs were moved to another backend", round.line()))
}
