//! Processes of the host (and of pods, if told so) are translated at connect and per datagram, and see the service throughout.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Endpoint, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods, serve_at};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{NetNs, NodeOptions};

#[test]
fn a_host_process_sees_the_service_and_its_packets_are_not_translated() {
    let fixture = Fixture::new("hostproc", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for to in service.frontends(Protocol::Tcp) {
        let mut stream = Stream::connect(fixture.node.netns(), to).unwrap();
        assert_eq!(stream.peer().unwrap(), to);
        let answer = stream.ask("hello").unwrap();
        assert_ne!(answer.local, to, "the backend is addressed itself");
        assert_eq!(answer.peer, stream.local().unwrap());
    }
    for to in service.frontends(Protocol::Udp) {
        let socket = Datagrams::connected(fixture.node.netns(), 0, to).unwrap();
        assert_eq!(socket.peer().unwrap(), to);
        socket.ask("hello").unwrap();
        // An unconnected socket hears from the service, whichever backend answers.
        let socket = Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap();
        socket.ask_at(to, "hello").unwrap();
    }
    let connections = agent.json(&["get", "connections", "-A"]).unwrap();
    assert_eq!(connections["items"].as_array().map(Vec::len), Some(0), "no packet was translated: {connections}");
}

#[test]
fn only_the_hosts_own_processes_are_translated_unless_told_otherwise() {
    for (mode, host, pods) in [("host", true, false), ("all", true, true), ("off", false, false)] {
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let fixture = Fixture::new("mode", Pods::Routed, 2, options);
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &["--socket-lb", mode]);
        // A process in a pod's namespace, in the cgroup that the programs are attached to.
        let pod = fixture.client.netns().clone().in_cgroup(fixture.node.cgroup());
        for (netns, at_connect) in [(fixture.node.netns(), host), (&pod, pods)] {
            for to in service.frontends(Protocol::Tcp) {
                let before = agent.counted(Outcome::SocketConnected).unwrap();
                let mut stream = Stream::connect(netns, to).unwrap();
                stream.ask("hello").unwrap();
                assert_eq!(stream.peer().unwrap(), to);
                let translated = agent.counted(Outcome::SocketConnected).unwrap() - before;
                assert_eq!(translated, u64::from(at_connect), "{mode} in {}", netns.name());
            }
        }
    }
}

#[test]
fn a_host_process_is_refused_at_once_where_nobody_serves() {
    let fixture = Fixture::new("hostempty", Pods::Routed, 1, NodeOptions::default());
    let service = Service::web(vec![]);
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let before = agent.counted(Outcome::SocketRefused).unwrap();
    let frontends = [service.frontends(Protocol::Tcp), service.frontends(Protocol::Udp)].concat();
    for to in service.frontends(Protocol::Tcp) {
        assert_eq!(Stream::connect(fixture.node.netns(), to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    for to in service.frontends(Protocol::Udp) {
        let error = Datagrams::connected(fixture.node.netns(), 0, to).expect_err("connect fails itself");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let socket = Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap();
        assert_eq!(socket.send_at(to, "hello").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(agent.counted(Outcome::SocketRefused).unwrap() - before, frontends.len() as u64 + 2);
}

#[test]
fn a_host_process_is_refused_at_once_at_a_port_that_the_service_does_not_have() {
    let fixture = Fixture::new("hostport", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let before = agent.counted(Outcome::RefusedUnserved).unwrap();
    for address in service.cluster_ips.both() {
        let to = SocketAddr::new(address, 81);
        let mapped = lb_tests::peers::mapped(to);
        for to in [to, mapped] {
            assert_eq!(Stream::connect(fixture.node.netns(), to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let error = Datagrams::connected(fixture.node.netns(), 0, to).expect_err("connect fails itself");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        let socket = Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap();
        assert_eq!(socket.send_at(to, "hello").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(agent.counted(Outcome::RefusedUnserved).unwrap() - before, 2 * 5);
    // Only the node's own kernel refuses a port of the node itself.
    let own = SocketAddr::new(fixture.node.addresses().v4.into(), 81);
    assert_eq!(Stream::connect(fixture.node.netns(), own).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(agent.counted(Outcome::RefusedUnserved).unwrap() - before, 2 * 5);
}

#[test]
fn an_unconnected_socket_leaves_a_backend_that_is_gone_and_no_other() {
    let fixture = Fixture::new("hostudp", Pods::Routed, 3, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    // `BALLAST_TEST_ROUNDS=500` asks so often, of one agent.
    let rounds = std::env::var("BALLAST_TEST_ROUNDS").map_or(1, |rounds| rounds.parse::<usize>().unwrap());
    for to in (0..rounds).flat_map(|_| service.frontends(Protocol::Udp)) {
        let endpoints = fixture.endpoints();
        agent.apply(&Manifest::of([service.clone()])).unwrap();
        let sockets: Vec<Datagrams> =
            (0..48).map(|_| Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap()).collect();
        let ask = |sockets: &[Datagrams], text: &str| -> Vec<String> {
            sockets.iter().map(|socket| socket.ask_at(to, text).unwrap().server).collect()
        };
        let first = ask(&sockets, "one");
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3, "48 sockets use all backends: {first:?}");
        agent.apply(&Manifest::of([Service::web(endpoints[1..].to_vec())])).unwrap();
        let moved = agent.counted(Outcome::SocketMoved).unwrap();
        for (before, now) in first.iter().zip(ask(&sockets, "two")) {
            assert!(now != "b0", "b0 is gone");
            assert!(before == "b0" || *before == now, "{before} stayed, but its socket went to {now}");
        }
        let left = first.iter().filter(|server| *server == "b0").count();
        assert_eq!(agent.counted(Outcome::SocketMoved).unwrap() - moved, left as u64);
    }
}

#[test]
fn a_connected_socket_may_name_its_peer_and_an_unconnected_one_may_ask_the_backend_itself() {
    let fixture = Fixture::new("hostnamed", Pods::Routed, 3, NodeOptions::default());
    let service = fixture.web();
    let _agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for to in service.frontends(Protocol::Udp) {
        for _ in 0..8 {
            // connect(), then sendto() with the same address: the datagram goes where the answers are taken from.
            let socket = Datagrams::connected(fixture.node.netns(), 0, to).unwrap();
            socket.ask_by_name(to, "hello").unwrap();
        }
        let socket = Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap();
        let server = socket.ask_at(to, "which").unwrap().server;
        let index: usize = server.trim_start_matches('b').parse().unwrap();
        let direct = SocketAddr::new(fixture.backends[index].addresses().like(to.ip()), 5353);
        for round in 0..6 {
            // The last one asked owns the answers.
            let asked = if round % 2 == 0 { direct } else { to };
            let answer = socket.ask_at(asked, "in turn").unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(answer.server, server);
        }
    }
}

#[test]
fn host_processes_are_served_while_no_agent_runs() {
    let fixture = Fixture::new("hostdead", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let mut held = Stream::connect(fixture.node.netns(), service.frontends(Protocol::Tcp)[0]).unwrap();
    agent.kill();
    let serve = |netns: &NetNs| {
        for to in service.frontends(Protocol::Tcp) {
            Stream::connect(netns, to).unwrap().ask("hello").unwrap();
        }
        for to in service.frontends(Protocol::Udp) {
            Datagrams::connected(netns, 0, to).unwrap().ask("hello").unwrap();
        }
    };
    serve(fixture.node.netns());
    held.ask("still").unwrap();
    agent.restart().unwrap();
    serve(fixture.node.netns());
    held.ask("still").unwrap();
}

#[test]
fn an_endpoint_on_the_host_itself_is_reached_from_everywhere() {
    let fixture = Fixture::new("hostnet", Pods::Routed, 0, NodeOptions::default());
    let _servers = serve_at(fixture.node.netns(), fixture.node.ips(), "host");
    let endpoint = Endpoint::ready(fixture.node.addresses()).on(&fixture.node.node_name());
    let service = Service::web(vec![endpoint]);
    let _agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for netns in [fixture.client.netns(), fixture.node.netns()] {
        for to in service.frontends(Protocol::Tcp) {
            let mut stream =
                Stream::connect(netns, to).unwrap_or_else(|error| panic!("{}: {to}: {error}", netns.name()));
            assert_eq!(stream.ask("hello").unwrap().server, "host");
        }
        for to in service.frontends(Protocol::Udp) {
            let socket = Datagrams::connected(netns, 0, to).unwrap();
            assert_eq!(socket.ask("hello").unwrap().server, "host", "{}", netns.name());
        }
    }
}
