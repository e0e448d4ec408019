//! External clients with direct server return, by every kind of frontend and to backends everywhere: a sample of the table of `north_south`.

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::incident::Counters;
use lb_tests::peers::{PATIENCE, Stream, eventually, fresh_port};
use lb_tests::routed::{
    AddressKind, Backend, Cell, Client, Due, Family, Mode, Network, Policy, Row, eventually_empty, run,
};

use crate::north_south::chosen;

/// So short that the tables are empty soon after the traffic.
const TIMEOUTS: &str = "--flow-timeouts=half-open=4s,closing=1s,udp-unreplied=3s,udp-replied=3s,udp-stream=3s";

/// After so many rounds the sweep has read every entry when it was silent for longer than [`TIMEOUTS`], and removed those that it took for unrelated.
const ROUNDS: f64 = 4.0;

/// How often the sweep of this agent has read all tables.
fn sweeps(agent: &Agent) -> f64 {
    agent.metric("ballast_sweeps_total", "").unwrap_or_default()
}

/// External clients by every kind that reaches them, all of it; of the others those of another node that ask for a node port, where direct
/// server return must leave them alone.
fn sample() -> Vec<Cell> {
    let is_asked = |cell: &Cell| match cell.client {
        Client::Outside => cell.kind != AddressKind::ClusterIp,
        Client::PodByRoute | Client::PodByTunnel | Client::ProcessOfPeer => {
            cell.kind == AddressKind::NodePort && cell.policy == Policy::Cluster
        }
        _ => false,
    };
    chosen().into_iter().filter(is_asked).collect()
}

/// Connections of the external client to backends of other nodes, by every kind.
fn connections(network: &Network) -> Vec<(Cell, Stream)> {
    let mut all = Vec::new();
    for kind in [AddressKind::NodePort, AddressKind::LoadBalancer, AddressKind::ExternalIp] {
        for backend in [Backend::PodByRoute, Backend::PodByTunnel, Backend::PeerHost] {
            for family in Family::ALL {
                let (protocol, policy, client) = (Protocol::Tcp, Policy::Cluster, Client::Outside);
                let cell = Cell { kind, protocol, family, policy, client, backend };
                let to = cell.frontend(network.nodes[0].addresses());
                // The kernel may choose the port of a connection by another kind: to the backend, both are one tuple.
                let mut stream = Stream::connect_from(network.client(cell), fresh_port(), to, PATIENCE).unwrap();
                stream.ask("begin").unwrap();
                all.push((cell, stream));
            }
        }
    }
    all
}

fn sampled(mode: Mode, xdp: &str, outer: Family) {
    let mut network = Network::over(&format!("ns-{}", mode.name()), outer).unwrap();
    network.mode = mode;
    let manifest = Manifest::of(network.services());
    network.start(&manifest, &[TIMEOUTS, &format!("--xdp-mode={xdp}")]).unwrap();
    let mut last = connections(&network);
    let swept: Vec<f64> = network.agents.iter().map(sweeps).collect();

    let cells = sample();
    let rows = run(&network, &cells);
    assert_eq!(rows.len(), cells.len(), "cells that nobody asked for");
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|Row { cell, wrong }| Some(format!("{cell:?}: due {:?}: {}\n", cell.due_in(mode), wrong.as_ref()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cells are wrong:\n{}", wrong.len(), cells.len(), wrong.concat());
    let counted = |node: usize, outcome| Counters::read(network.nodes[node].bpffs()).unwrap().get(outcome);
    let own = |cell: &&Cell| cell.due() == Due::Masqueraded && cell.due_in(mode) == Due::Own;
    let direct = cells.iter().filter(own).count();
    assert!(direct >= lb_seed::short_or_long(9, 18), "{direct} cells go whole");
    assert!(counted(0, Outcome::Tunnelled) >= direct as u64, "{direct} cells go whole");
    for node in 0..3 {
        assert_eq!(counted(node, Outcome::DroppedNoPeer) + counted(node, Outcome::DroppedNotHere), 0, "node {node}");
    }

    for (agent, before) in network.agents.iter().zip(swept) {
        eventually("the sweep has read all", SOON, || (sweeps(agent) >= before + ROUNDS).then_some(()));
    }
    for (cell, stream) in &mut last {
        let answer = stream.ask("still there").unwrap_or_else(|error| panic!("{cell:?} after the sweep: {error}"));
        assert_eq!(answer.peer, stream.local().unwrap(), "{cell:?}");
    }
    drop(last);
    eventually_empty(&network);
}

#[test]
fn direct_server_return_by_native_xdp() {
    sampled(Mode::Dsr, "native", Family::V4);
}

#[test]
fn hybrid_by_tc() {
    sampled(Mode::Hybrid, "off", Family::V6);
}
