//! A connection that is idle at the eviction deadline ends then, at both ends: neither has to send for it.

use std::io::ErrorKind;

use lb_common::abi::{Flow, FlowKey};
use lb_common::map;
use lb_tables::{Pinned, Table};
use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::peers::{PATIENCE, Stream, eventually, fresh_port};
use lb_tests::routed::{AddressKind, Cell, Due, Family, Mode, Network, Policy};
use lb_tests::topology::NodeOptions;

/// Without the hook, packets of processes are translated where they leave the node: those to cluster IPs, for pods.
const NO_HOOK: &str = "--socket-lb=off";

/// The tables of this agent get an acknowledgement number that is one too high in about half of their entries, as if that acknowledgement was still
/// under way. A RST by this number ends no connection, but its receiver answers (RFC 5961, section 3.2).
fn shift_numbers(agent: &Agent) {
    fn shift<const N: usize>(table: &Table<FlowKey<N>, Flow<N>>) {
        for (key, flow) in table.read().unwrap() {
            if flow.isn % 2 == 0 {
                table.replace(&key, &Flow { ack: flow.ack.wrapping_add(1), ..flow }).unwrap();
            }
        }
    }
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    shift(&maps.of::<map::Flows<4>>());
    shift(&maps.of::<map::Flows<16>>());
}

/// Connections of every client to every backend, by every kind of frontend.
fn connections(network: &Network, is_hooked: bool) -> Vec<(Cell, Stream)> {
    let is_held = |cell: &Cell| {
        let leads_there = !matches!(cell.due_in(network.mode), Due::Dropped | Due::Refused);
        let is_seen = cell.kind == AddressKind::ClusterIp && cell.backend.is_pod();
        cell.protocol == Protocol::Tcp && leads_there && (is_hooked || !cell.client.is_process() || is_seen)
    };
    let connect = |cell: Cell| {
        let to = cell.frontend(network.nodes[0].addresses());
        let mut stream = Stream::connect_from(network.client(cell), fresh_port(), to, PATIENCE)
            .unwrap_or_else(|error| panic!("{cell:?}: {error}"));
        stream.ask("begin").unwrap_or_else(|error| panic!("{cell:?}: {error}"));
        (cell, stream)
    };
    Cell::all().into_iter().filter(is_held).map(connect).collect()
}

/// Services of the policy `Cluster` lose their backends, those of the policy `Local` keep them.
fn end_at_the_deadline(subject: &str, mode: Mode, flags: &[&str]) {
    let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
    let mut network = Network::of(subject, Family::V4, options).unwrap();
    network.mode = mode;
    let all = network.services();
    let is_hooked = !flags.contains(&NO_HOOK);
    let flags = [&["--drain-period=1s", "--drain-max=3s"], flags].concat();
    network.start(&Manifest::of(all.clone()), &flags).unwrap();
    let (mut ending, mut staying): (Vec<_>, Vec<_>) =
        connections(&network, is_hooked).into_iter().partition(|(cell, _)| cell.policy == Policy::Cluster);
    network.agents.iter().for_each(shift_numbers);
    let mut left = all;
    for service in left.iter_mut().filter(|service| !service.external.local) {
        service.endpoints.clear();
    }
    let left = Manifest::of(left);
    network.agents.iter().for_each(|agent| agent.apply(&left).unwrap());
    for (cell, stream) in &mut ending {
        let error = eventually("the client's connection ends", 3 * SOON, || {
            stream.read_line().err().filter(|error| error.kind() != ErrorKind::WouldBlock)
        });
        // The agent destroys the sockets that the hook has translated.
        let is_destroyed = cell.client.is_process() && error.kind() == ErrorKind::ConnectionAborted;
        assert!(error.kind() == ErrorKind::ConnectionReset || is_destroyed && is_hooked, "{cell:?}: {error}");
    }
    eventually("the backends' connections end", SOON, || {
        (network.broken() == u32::try_from(ending.len()).unwrap()).then_some(())
    });
    for (cell, stream) in &mut staying {
        stream.ask("still").unwrap_or_else(|error| panic!("{cell:?} has a backend: {error}"));
    }
}

/// In the short form one of these, by turns.
#[test]
fn both_ends_of_an_idle_connection_get_a_rst_at_the_deadline() {
    let scenes: [(&str, Mode, &[&str]); 3] = [
        ("idle-fast", Mode::Snat, &[]),
        ("idle-host", Mode::Snat, &["--fast-path=off", NO_HOOK]),
        ("idle-dsr", Mode::Dsr, &[]),
    ];
    let first = usize::try_from(lb_seed::of_run() % 3).unwrap();
    for (subject, mode, flags) in scenes.into_iter().cycle().skip(first).take(lb_seed::short_or_long(1, 3)) {
        end_at_the_deadline(subject, mode, flags);
    }
}
