//! SCTP of external clients and of pods, between two real ends, in every cell of the table that one agent serves. The cells are node ports, load
//! balancers' and external addresses, with backends on this and on other nodes. And a drain: the association with a backend that answers outlives its
//! period, and the kernels of both ends take the ABORT that ends an association.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Port, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Association, Server, eventually};
use lb_tests::routed::{Cell, Due, Network, Row, eventually_empty, run};
use lb_tests::topology::NodeOptions;

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

/// Ports of the service that drains, and of its backends.
const PORTS: (u16, u16) = (3_868, 13_868);
const MAX: Duration = Duration::from_secs(55);
/// A client's packet may stay unanswered for so long.
const ANSWER: Duration = Duration::from_secs(15);
/// SCTP sends again after 1 s, 3 s, 7 s, 15 s and 31 s: the end comes with the last one of these at the latest.
const LAST_PACKET: Duration = Duration::from_secs(36);

fn associate(fixture: &Fixture, to: SocketAddr, server: &str) -> Association {
    let own = fixture.client.addresses().like(to.ip());
    eventually("an association with the server", SOON, || {
        let mut association = Association::connect(fixture.client.netns(), own, to).ok()?;
        (association.ask("who").ok()?.server == server).then_some(association)
    })
}

fn is_aborted(association: &mut Association) {
    let error = association.ask("anybody").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// The Service is deleted: `b0` still answers, `b1` is dead.
#[test]
fn an_association_outlives_the_drain_period_while_its_backend_answers() {
    let fixture = Fixture::new("sctpdrain", Pods::Routed, 2, NodeOptions::default());
    let mut servers = Vec::new();
    for (index, pod) in fixture.backends.iter().enumerate() {
        for ip in pod.ips() {
            servers.push(Server::sctp(pod.netns(), &format!("b{index}"), SocketAddr::new(ip, PORTS.1)).unwrap());
        }
    }
    let ports = vec![Port { name: "sctp", protocol: Protocol::Sctp, port: PORTS.0, target: PORTS.1 }];
    let service = Service { ports, ..Service::standard("diameter", 20, fixture.endpoints()) };
    let flags = ["--drain-period=2s", &format!("--drain-max={}s", MAX.as_secs())];
    let agent = fixture.agent(&Manifest::of([service.clone()]), &flags);
    let frontends = service.frontends(Protocol::Sctp);
    let [mut answered, mut dead] = ["b0", "b1"]
        .map(|server| -> Vec<Association> { frontends.iter().map(|to| associate(&fixture, *to, server)).collect() });
    let began = Instant::now();
    agent.apply(&Manifest::default()).unwrap();
    fixture.backends[1].namespace().ip("link set eth0 down").unwrap();
    let asked = Instant::now();
    std::thread::scope(|scope| {
        let end = |association| {
            is_aborted(association);
            asked.elapsed()
        };
        let ends: Vec<_> = dead.iter_mut().map(|association| scope.spawn(move || end(association))).collect();
        while !ends.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            for association in &mut answered {
                assert_eq!(association.ask("still").unwrap().server, "b0", "its backend answers");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        for end in ends {
            let after = end.join().unwrap();
            assert!((ANSWER..LAST_PACKET).contains(&after), "the unanswered one ended after {after:?}");
        }
    });
    std::thread::sleep((MAX + Duration::from_secs(1)).saturating_sub(began.elapsed()));
    answered.iter_mut().for_each(is_aborted);
}
