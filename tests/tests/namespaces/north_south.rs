//! Every kind of frontend, from everywhere, to backends everywhere: each cell of the table with real traffic on a routed network.

use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Protocol};
use lb_tests::incident::Counters;
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Due, Family, Network, Policy, Row, eventually_empty, run};
use lb_tests::topology::NodeOptions;

/// So short that the tables are empty soon after the traffic.
const TIMEOUTS: &str = "--flow-timeouts=half-open=4s,closing=1s,udp-unreplied=3s,udp-replied=3s,udp-stream=3s";

/// All cells in the long form. In the short form one family of each, by turns; the seed of the run says which is the first.
pub fn chosen() -> Vec<Cell> {
    let is_chosen = |cell: &Cell| {
        let Cell { kind, protocol, family, policy, client, backend } = *cell;
        let turn = kind as u64 + policy as u64 + client as u64 + backend as u64 + u64::from(protocol == Protocol::Udp);
        lb_seed::short_or_long((turn + lb_seed::of_run()) % 2 == family as u64, true)
    };
    Cell::all().into_iter().filter(is_chosen).collect()
}

/// How XDP is attached to the external link of node 1.
fn xdp(network: &Network) -> Option<String> {
    let status = network.agents[0].json(&["status"]).unwrap();
    let links = status["links"].as_array().unwrap().clone();
    let link = links.into_iter().find(|link| link["name"] == network.nodes[0].uplink()).unwrap();
    let programs = link["programs"].as_array().unwrap();
    let xdp = programs.iter().find(|program| program["point"] == "xdp")?;
    Some(xdp["how"].as_str().unwrap().to_owned())
}

/// A new flow counts as what it begins as, once, whichever program sends it: what goes into the tunnel XDP leaves to tc.
fn a_flow_begins_once(network: &Network) {
    let (protocol, policy, client) = (Protocol::Tcp, Policy::Cluster, Client::Outside);
    for backend in [Backend::PodByRoute, Backend::PodByTunnel] {
        for family in Family::ALL {
            let cell = Cell { kind: AddressKind::NodePort, protocol, family, policy, client, backend };
            let masqueraded = || Counters::read(network.nodes[0].bpffs()).unwrap().get(Outcome::Masqueraded);
            let before = masqueraded();
            let wrong = run(network, &[cell]).into_iter().find_map(|row| row.wrong);
            assert_eq!(wrong, None, "{cell:?}");
            assert_eq!(masqueraded() - before, 1, "{cell:?}");
        }
    }
}

fn whole_table(mode: &str, outer: Family) {
    let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
    right_cells(&format!("ns-{mode}"), mode, outer, options, &chosen());
}

/// These cells, on nodes with these options.
pub fn right_cells(subject: &str, mode: &str, outer: Family, options: NodeOptions, cells: &[Cell]) {
    let mut network = Network::of(subject, outer, options).unwrap();
    let manifest = Manifest::of(network.services());
    network.start(&manifest, &[TIMEOUTS, &format!("--xdp-mode={mode}")]).unwrap();
    a_flow_begins_once(&network);
    let rows = run(&network, cells);
    assert_eq!(rows.len(), cells.len(), "cells that nobody asked for");
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|Row { cell, wrong }| Some(format!("{cell:?}: due {:?}: {}\n", cell.due(), wrong.as_ref()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cells are wrong:\n{}", wrong.len(), cells.len(), wrong.concat());
    let dropped = Counters::read(network.nodes[0].bpffs()).unwrap().get(Outcome::DroppedNoLocalEndpoint);
    let silent = cells.iter().filter(|cell| cell.due() == Due::Dropped).count();
    assert!(dropped >= silent as u64, "{silent} cells were silent, {dropped} packets were dropped");
    assert_eq!(xdp(&network).as_deref(), (mode != "off").then_some(mode));
    eventually_empty(&network);
}

#[test]
fn by_tc() {
    whole_table("off", Family::V4);
}

#[test]
fn by_native_xdp() {
    whole_table("native", Family::V6);
}

#[test]
fn by_generic_xdp() {
    whole_table("generic", Family::V6);
}
