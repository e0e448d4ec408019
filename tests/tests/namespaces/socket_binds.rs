//! Processes of the node cannot bind a port that the node serves for a service: it would never hear from its clients.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, External, Manifest, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions};

const HTTP: u16 = 30_080;
const DNS: u16 = 30_053;

fn fixture(subject: &str) -> (Fixture, Service) {
    let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions::default());
    let web = fixture.web().with(External { node_ports: vec![HTTP, DNS], ..External::default() });
    (fixture, web)
}

/// What comes of taking the port: held until dropped, or why not.
fn take(netns: &NetNs, protocol: &str, at: SocketAddr) -> Result<Box<dyn std::any::Any + Send>, ErrorKind> {
    netns
        .run(|| match protocol {
            "tcp" => TcpListener::bind(at).map(|socket| Box::new(socket) as _),
            _ => UdpSocket::bind(at).map(|socket| Box::new(socket) as _),
        })
        .map_err(|error| error.kind())
}

fn ports() -> [(&'static str, u16); 2] {
    [("tcp", HTTP), ("udp", DNS)]
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// All that a process may bind where node ports are served at every address.
fn every(fixture: &Fixture) -> Vec<IpAddr> {
    let own = fixture.node.addresses();
    let plain = ips(&["0.0.0.0", "::", "127.0.0.1", "127.1.2.3", "::1", "::ffff:0.0.0.0", "::ffff:127.0.0.1"]);
    [plain, own.both().to_vec(), vec![own.v4.to_ipv6_mapped().into()]].concat()
}

fn refused(agent: &Agent) -> u64 {
    agent.counted(Outcome::RefusedBind).unwrap()
}

#[test]
fn a_node_port_is_in_use_for_every_process_of_the_node() {
    let (fixture, web) = fixture("binds");
    let agent = fixture.agent(&Manifest::of([web.clone()]), &[]);
    let host = fixture.node.netns();
    let mut asked = 0;
    for at in every(&fixture) {
        for (protocol, port) in ports() {
            let error = take(host, protocol, SocketAddr::new(at, port)).err();
            assert_eq!(error, Some(ErrorKind::AddrInUse), "{protocol} {at}:{port}");
            asked += 1;
            assert_eq!(refused(&agent), asked);
        }
        // The other protocol's port, and any other, are free.
        for (protocol, port) in [("tcp", DNS), ("udp", HTTP), ("tcp", HTTP + 1), ("tcp", 0), ("udp", 0)] {
            take(host, protocol, SocketAddr::new(at, port)).unwrap_or_else(|e| panic!("{protocol} {at}:{port}: {e}"));
        }
    }
    // A pod has ports of its own, and so has an address that is not of the node.
    let pod = fixture.client.netns().clone().in_cgroup(fixture.node.cgroup());
    for (protocol, port) in ports() {
        for at in ips(&["0.0.0.0", "::", "127.0.0.1"]) {
            take(&pod, protocol, SocketAddr::new(at, port)).unwrap();
        }
    }
    assert_eq!(refused(&agent), asked);
    // Free with the service.
    agent.apply(&Manifest::of([fixture.web()])).unwrap();
    for at in every(&fixture) {
        for (protocol, port) in ports() {
            let what = format!("{protocol} {at}:{port} is free");
            eventually(&what, SOON, || take(host, protocol, SocketAddr::new(at, port)).ok());
        }
    }
}

#[test]
fn who_had_the_port_before_the_service_is_named() {
    let (fixture, web) = fixture("bindheld");
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    let held: Vec<_> = [("tcp", "0.0.0.0", HTTP), ("udp", "::", DNS), ("tcp", "127.0.0.1", 81)]
        .map(|(protocol, at, port)| (protocol, SocketAddr::new(at.parse().unwrap(), port)))
        .map(|(protocol, at)| take(fixture.node.netns(), protocol, at).unwrap())
        .into();
    let told = |wanted: usize| {
        eventually("status names the sockets", SOON, || {
            let status = agent.json(&["status"]).unwrap();
            let told = status["agent"]["tables"]["heldPorts"].as_array().cloned().unwrap_or_default();
            (told.len() == wanted).then(|| told.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        })
    };
    told(0);
    agent.apply(&Manifest::of([web])).unwrap();
    let text = told(2);
    for part in ["0.0.0.0:30080/TCP", "[::]:30053/UDP", "test/web:80/TCP", "test/web:53/UDP"] {
        assert!(text.contains(part) && agent.log().contains(part), "{part}: {text}");
    }
    assert!(agent.metrics().unwrap().contains("ballast_held_ports 2"));
    // Clients of the service reach it all the same.
    let to = SocketAddr::new(fixture.node.addresses().v4.into(), HTTP);
    for from in [fixture.client.netns(), fixture.node.netns()] {
        assert_eq!(Stream::connect(from, to).unwrap().ask("hello").unwrap().server, "b0");
    }
    drop(held);
    told(0);
}

#[test]
fn only_what_is_served_is_kept() {
    let (fixture, web) = fixture("bindsome");
    let own = fixture.node.addresses();
    let flag = format!("--nodeport-addresses={}/32", own.v4);
    let _agent = fixture.agent(&Manifest::of([web]), &[&flag]);
    let host = fixture.node.netns();
    for (protocol, port) in ports() {
        for at in [ips(&["0.0.0.0", "::"]), vec![own.v4.into()]].concat() {
            let error = take(host, protocol, SocketAddr::new(at, port)).err();
            assert_eq!(error, Some(ErrorKind::AddrInUse), "{protocol} {at}:{port}");
        }
        for at in [ips(&["127.0.0.1", "::1"]), vec![own.v6.into()]].concat() {
            take(host, protocol, SocketAddr::new(at, port)).unwrap_or_else(|e| panic!("{protocol} {at}:{port}: {e}"));
        }
    }
}

#[test]
fn ports_are_kept_while_no_agent_runs_and_not_where_it_is_turned_off() {
    let (fixture, web) = fixture("bindoff");
    let host = fixture.node.netns();
    let at = SocketAddr::new("0.0.0.0".parse().unwrap(), HTTP);
    {
        let mut agent = fixture.agent(&Manifest::of([web.clone()]), &[]);
        agent.kill();
        assert_eq!(take(host, "tcp", at).err(), Some(ErrorKind::AddrInUse));
    }
    for flag in ["--protect-node-ports=off", "--socket-lb=off"] {
        let _agent = fixture.agent(&Manifest::of([web.clone()]), &[flag]);
        take(host, "tcp", at).unwrap_or_else(|e| panic!("{flag}: {e}"));
    }
}
