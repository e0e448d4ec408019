//! Schedulers by annotation: who gets new connections, that a change of scheduler breaks none, that a bad one costs nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions};

/// Gives the service this scheduler and waits until the tables say so.
fn schedule(agent: &Agent, service: &Service, scheduler: &str) {
    agent.write(&Manifest::of([service.clone().annotated("scheduler", scheduler)])).unwrap();
    eventually("the tables hold the scheduler", SOON, || {
        let list = agent.json(&["get", "services", "-A"]).ok()?;
        let ports = list["items"].as_array()?;
        ports.iter().all(|port| port["scheduler"] == scheduler).then_some(())
    });
}

/// How many of so many connections each backend gets.
fn spread(from: &NetNs, to: SocketAddr, connections: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..connections {
        let mut stream = Stream::connect(from, to).unwrap();
        *counts.entry(stream.ask("hello").unwrap().server).or_insert(0) += 1;
    }
    counts
}

/// Backends by the source port that asks.
fn by_port(from: &NetNs, to: SocketAddr, ports: std::ops::Range<u16>) -> BTreeMap<u16, String> {
    let ask = |port: u16| {
        let mut stream = Stream::connect_from(from, port, to, PATIENCE).unwrap();
        let server = stream.ask("hello").unwrap().server;
        stream.reset().unwrap();
        (port, server)
    };
    ports.map(ask).collect()
}

#[test]
fn schedulers_are_chosen_by_annotation_and_by_flag() {
    let fixture = Fixture::new("spread", Pods::Routed, 4, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::default(), &[]);
    each_scheduler_spreads_connections_as_it_says(&fixture, &agent);
    a_change_of_scheduler_breaks_no_connection(&fixture, &agent);
    agent.restart_with(&fixture.node, &["--scheduler", "maglev"]).unwrap();
    maglev_keeps_tuples_where_they_were_when_others_come_and_go(&fixture, &agent);
    agent.restart_with(&fixture.node, &["--scheduler", "round-robin"]).unwrap();
    a_bad_annotation_is_told_and_everything_else_holds(&fixture, &agent);
}

/// The service `web` with the first endpoints.
fn web_of(fixture: &Fixture, endpoints: usize) -> Service {
    fixture.web_of(fixture.endpoints()[..endpoints].to_vec())
}

fn each_scheduler_spreads_connections_as_it_says(fixture: &Fixture, agent: &Agent) {
    let heavy = fixture.backends[0].addresses();
    let service = web_of(fixture, 3).annotated("weights", &format!("{}=4, {}=4", heavy.v4, heavy.v6));
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    let client = fixture.client.netns();
    // A retransmission in a moment of load may take a turn of its own.
    let near = |count: usize, expected: usize| count.abs_diff(expected) <= 3;
    for to in service.frontends(Protocol::Tcp) {
        schedule(agent, &service, "round-robin");
        for netns in [client, fixture.node.netns()] {
            let counts = spread(netns, to, 30);
            assert!(counts.len() == 3 && counts.values().all(|count| near(*count, 10)), "{to}: {counts:?}");
        }
        schedule(agent, &service, "weighted");
        let counts = spread(client, to, 60);
        assert!(near(counts["b0"], 40) && near(counts["b1"], 10) && near(counts["b2"], 10), "{to}: {counts:?}");
        schedule(agent, &service, "source-hash");
        assert_eq!(spread(client, to, 20).len(), 1, "{to}");
        schedule(agent, &service, "random");
        assert_eq!(spread(client, to, 60).len(), 3, "{to}");
    }
}

fn maglev_keeps_tuples_where_they_were_when_others_come_and_go(fixture: &Fixture, agent: &Agent) {
    let service = fixture.web();
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    let to = service.frontends(Protocol::Tcp)[0];
    let client = fixture.client.netns();
    // Below the ports that the kernel gives to others.
    let ports = 20_000..20_100;
    let before = by_port(client, to, ports.clone());
    assert_eq!(before, by_port(client, to, ports.clone()), "the same tuple, the same backend");
    let mut fewer = service.clone();
    fewer.endpoints.remove(3);
    agent.apply(&Manifest::of([fewer])).unwrap();
    let after = by_port(client, to, ports.clone());
    let stayed = before.iter().filter(|(port, server)| *server != "b3" && after[port] == **server).count();
    let others = before.values().filter(|server| *server != "b3").count();
    assert!(stayed * 10 >= others * 8, "{stayed} of {others} tuples of the others stayed");
    assert!(after.values().all(|server| server != "b3"));
    agent.apply(&Manifest::of([service])).unwrap();
    assert_eq!(before, by_port(client, to, ports), "as if it had never been away");
}

fn a_change_of_scheduler_breaks_no_connection(fixture: &Fixture, agent: &Agent) {
    let service = web_of(fixture, 3);
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    let mut streams = Vec::new();
    for to in service.frontends(Protocol::Tcp) {
        for netns in [fixture.client.netns(), fixture.node.netns()] {
            for _ in 0..6 {
                let mut stream = Stream::connect(netns, to).unwrap();
                let server = stream.ask("first").unwrap().server;
                streams.push((stream, server));
            }
        }
    }
    let sockets: Vec<(Datagrams, SocketAddr, String)> = service
        .frontends(Protocol::Udp)
        .into_iter()
        .map(|to| {
            let socket = Datagrams::unconnected(fixture.client.netns(), 0, to).unwrap();
            let server = socket.ask_at(to, "first").unwrap().server;
            (socket, to, server)
        })
        .collect();
    for scheduler in ["maglev", "weighted", "least-connections", "source-hash", "round-robin", "maglev", "random"] {
        schedule(agent, &service, scheduler);
        for (stream, server) in &mut streams {
            assert_eq!(&stream.ask(scheduler).unwrap().server, server, "{scheduler}");
        }
        for (socket, to, server) in &sockets {
            assert_eq!(&socket.ask_at(*to, scheduler).unwrap().server, server, "{scheduler}");
        }
        for to in service.frontends(Protocol::Tcp) {
            spread(fixture.client.netns(), to, 3);
            spread(fixture.node.netns(), to, 3);
        }
    }
}

fn a_bad_annotation_is_told_and_everything_else_holds(fixture: &Fixture, agent: &Agent) {
    let service =
        web_of(fixture, 2).annotated("scheduler", "fastest").annotated("drain-period", "2s").annotated("retyr", "on");
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    let status = agent.json(&["status"]).unwrap().to_string();
    for refused in ["ballast.dev/scheduler", "ballast.dev/retyr"] {
        assert!(status.contains(refused), "{refused}: {status}");
    }
    assert!(!status.contains("ballast.dev/drain-period"), "{status}");
    let to = service.frontends(Protocol::Tcp)[0];
    let counts = spread(fixture.client.netns(), to, 10);
    assert!(counts.values().all(|count| count.abs_diff(5) <= 2), "by the agent's own scheduler: {counts:?}");
}
