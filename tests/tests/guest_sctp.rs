//! SCTP of clients outside and of pods, between two real ends, in every cell of the table that one agent serves: node ports, load
//! balancers' and external addresses, backends on this and on other nodes.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use lb_common::outcome::Outcome;
use lb_tests::agent::Manifest;
use lb_tests::incident::Counters;
use lb_tests::routed::{Cell, Due, Network, Row, eventually_empty, run};

/// So short that the tables are empty soon after the traffic.
const TIMEOUTS: &str = "--flow-timeouts=half-open=4s,closing=1s";

#[test]
fn sctp_is_served_as_the_table_says() {
    let mut network = Network::new("sctp").unwrap();
    network.serve_sctp().unwrap();
    let manifest = Manifest::of(network.sctp_services());
    // One agent: in an emulated machine its programs take a minute to be verified. XDP hands SCTP to tc.
    network.start_first(1, &manifest, &[TIMEOUTS, "--xdp-mode=off"]).unwrap();
    let cells = Cell::all_of_sctp();
    let rows = run(&network, &cells);
    assert_eq!(rows.len(), cells.len(), "cells that nobody asked for");
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|Row { cell, wrong }| Some(format!("{cell:?}: due {:?}: {}\n", cell.due(), wrong.as_ref()?)))
        .collect();
    let of = |due: Due| cells.iter().filter(|cell| cell.due() == due).count();
    assert!(wrong.is_empty(), "{} of {} cells are wrong:\n{}", wrong.len(), cells.len(), wrong.concat());
    let dropped = Counters::read(network.nodes[0].bpffs()).unwrap().get(Outcome::DroppedNoLocalEndpoint);
    assert!(dropped >= of(Due::Dropped) as u64, "{dropped} packets were dropped");
    eventually_empty(&network);
}
