//! A drain ends by its deadline: flows stay until then, both sides are told after it, UDP moves at once.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod stage;

use std::io::ErrorKind;
use std::time::Duration;

use lb_tests::agent::{Endpoint, Manifest, Protocol, SOON, Service};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::NodeOptions;
use stage::{Pods, Stage};

const DRAIN: &str = "4s";

fn broken(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe)
}

#[test]
fn a_vanished_backend_keeps_its_connections_until_the_deadline_and_not_longer() {
    let stage = Stage::new("drain", Pods::Routed, 2, NodeOptions::default());
    let service = stage.web();
    let mut agent = stage.agent(&Manifest::of([service.clone()]), &["--drain-period", DRAIN]);
    for (index, agent_dies) in [false, true].into_iter().enumerate() {
        agent.apply(&Manifest::of([service.clone()])).unwrap();
        for to in service.frontends(Protocol::Tcp) {
            // Two connections to the backend that will go: one whose client speaks first after the deadline, one whose backend does.
            let mut held = Vec::new();
            while held.len() < 2 {
                let mut stream = Stream::connect(stage.client.place(), to).unwrap();
                if stream.ask("who").unwrap().server == "b1" {
                    held.push(stream);
                }
            }
            let remaining = Service::web(stage.endpoints()[..1].to_vec());
            agent.apply(&Manifest::of([remaining])).unwrap();
            for _ in 0..30 {
                let answer = Stream::connect(stage.client.place(), to).unwrap().ask("new").unwrap();
                assert_eq!(answer.server, "b0", "no new flow goes to a backend that drains");
            }
            assert_eq!(held[0].ask("still").unwrap().server, "b1");
            if agent_dies {
                agent.kill();
            }
            let server =
                stage.servers[1].iter().find(|server| server.address().ip().is_ipv4() == to.is_ipv4()).unwrap();
            let before = server.broken();
            let mut by_client = held.remove(0);
            let error = eventually("the client is told", SOON, || {
                std::thread::sleep(Duration::from_millis(200));
                by_client.ask("still").err()
            });
            assert!(broken(&error), "round {index} {to}: {error}");
            // The backend's own next segment is answered, too: its connections end.
            eventually("the backend is told", SOON, || {
                server.push("anybody?");
                (server.broken() >= before + 2).then_some(())
            });
            if agent_dies {
                agent.restart().unwrap();
            }
            agent.apply(&Manifest::of([service.clone()])).unwrap();
        }
    }
}

#[test]
fn a_backend_that_comes_back_in_time_keeps_its_connections() {
    let stage = Stage::new("back", Pods::Routed, 1, NodeOptions::default());
    let service = stage.web();
    let agent = stage.agent(&Manifest::of([service.clone()]), &["--drain-period", "3s"]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(stage.client.place(), to).unwrap();
    stream.ask("one").unwrap();
    agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
    agent.apply(&Manifest::of([service])).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(stream.ask("two").unwrap().server, "b0");
}

#[test]
fn an_address_that_comes_back_as_another_pod_gets_none_of_the_old_flows() {
    let stage = Stage::new("reborn", Pods::Routed, 1, NodeOptions::default());
    let endpoint = stage.endpoints().remove(0);
    let first = Service::web(vec![endpoint.clone().pod("aaaa")]);
    let agent = stage.agent(&Manifest::of([first.clone()]), &[]);
    let to = first.frontends(Protocol::Tcp)[0];
    let mut old = Stream::connect(stage.client.place(), to).unwrap();
    old.ask("one").unwrap();
    let second = Service::web(vec![endpoint.pod("bbbb")]);
    agent.write(&Manifest::of([second])).unwrap();
    let error = eventually("the old flow is told", SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        old.ask("two").err()
    });
    assert!(broken(&error), "{error}");
    let mut new = Stream::connect(stage.client.place(), to).unwrap();
    assert_eq!(new.ask("three").unwrap().server, "b0");
}

#[test]
fn udp_moves_at_its_next_packet() {
    let stage = Stage::new("udp", Pods::Routed, 2, NodeOptions::default());
    let service = stage.web();
    let agent = stage.agent(&Manifest::of([service.clone()]), &[]);
    for to in service.frontends(Protocol::Udp) {
        for place in [stage.client.place(), stage.node.place()] {
            agent.apply(&Manifest::of([service.clone()])).unwrap();
            let socket = Datagrams::unconnected(place, 0, to).unwrap();
            let first = socket.ask_at(to, "one").unwrap().server;
            let (gone, left) = if first == "b0" { (0, 1) } else { (1, 0) };
            let endpoints = stage.endpoints();
            let remaining =
                Service::web(vec![endpoints[left].clone(), Endpoint::unready(stage.backends[gone].addresses())]);
            agent.apply(&Manifest::of([remaining])).unwrap();
            assert_eq!(socket.ask_at(to, "two").unwrap().server, format!("b{left}"));
            // To zero and back.
            agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
            socket.ask_at(to, "three").unwrap_err();
            agent.apply(&Manifest::of([service.clone()])).unwrap();
            eventually("it is served again", SOON, || socket.ask_at(to, "four").ok());
        }
    }
}

#[test]
fn a_deleted_service_drains_its_connections() {
    let stage = Stage::new("deleted", Pods::Routed, 1, NodeOptions::default());
    let service = stage.web();
    let agent = stage.agent(&Manifest::of([service.clone()]), &["--drain-period", DRAIN]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(stage.client.place(), to).unwrap();
    stream.ask("one").unwrap();
    agent.apply(&Manifest::default()).unwrap();
    assert_eq!(stream.ask("two").unwrap().server, "b0", "established flows drain");
    let error = eventually("it is told", SOON, || {
        std::thread::sleep(Duration::from_millis(200));
        stream.ask("three").err()
    });
    assert!(broken(&error), "{error}");
}
