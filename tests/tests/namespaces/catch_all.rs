//! Clients whose own link has no program: pods born while no agent runs, a pod's first packets, clients from outside.

use lb_tests::agent::{Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{Checksums, NetNs, NodeOptions, set_checksums};

fn served(from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        for _ in 0..10 {
            let mut stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("tcp {to}: {error}"));
            stream.ask("hello").unwrap_or_else(|error| panic!("tcp {to}: {error}"));
            assert_eq!(stream.peer().unwrap(), to);
        }
    }
    for to in service.frontends(Protocol::Udp) {
        for _ in 0..10 {
            Datagrams::connected(from, 0, to).unwrap().ask("hello").unwrap_or_else(|error| panic!("udp {to}: {error}"));
        }
    }
}

fn refused(from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        let error = Stream::connect(from, to).expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "tcp {to}: {error}");
    }
    for to in service.frontends(Protocol::Udp) {
        let error = Datagrams::connected(from, 0, to).unwrap().ask("hello").expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "udp {to}: {error}");
    }
}

#[test]
fn pods_are_served_from_their_first_packet_on_whether_an_agent_runs_or_not() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("catchall", pods, 2, NodeOptions { rp_filter: 0, ..NodeOptions::default() });
        let service = fixture.web();
        let empty = Service::standard("empty", 11, vec![]);
        let mut agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &[]);
        for index in 0..8 {
            // At once, whether the agent has seen the link or not.
            let newborn = fixture.pod(&format!("new{index}"));
            served(newborn.netns(), &service);
        }
        for rp_filter in ["0", "1"] {
            for scope in ["all", "default"] {
                let key = format!("net/ipv4/conf/{scope}/rp_filter");
                fixture.node.namespace().sysctl(&key, rp_filter).unwrap();
            }
            agent.kill();
            let orphan = fixture.pod(&format!("orphan{rp_filter}"));
            served(orphan.netns(), &service);
            refused(orphan.netns(), &empty);
            // A connection made meanwhile goes on when the agent comes and attaches to the pod's link.
            let mut streams: Vec<Stream> = service
                .frontends(Protocol::Tcp)
                .into_iter()
                .map(|to| Stream::connect(orphan.netns(), to).unwrap())
                .collect();
            agent.restart().unwrap();
            for stream in &mut streams {
                for _ in 0..3 {
                    stream.ask("still").unwrap();
                }
            }
            served(orphan.netns(), &service);
        }
    }
}

#[test]
fn clients_from_outside_reach_local_backends_by_xdp_and_by_tc() {
    let options = NodeOptions { pod_checksums: Checksums::Complete, ..NodeOptions::default() };
    let fixture = Fixture::new("outside", Pods::Routed, 2, options);
    let outside = fixture.topology.outside("out", &fixture.node).unwrap();
    // As on a wire: what arrives at XDP carries complete checksums.
    set_checksums(outside.namespace(), "eth0", Checksums::Complete).unwrap();
    let service = fixture.web();
    let empty = Service::standard("empty", 11, vec![]);
    let mut agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &["--xdp-mode", "native"]);
    for mode in ["native", "generic", "off"] {
        if mode != "native" {
            agent.restart_with(&fixture.node, &["--xdp-mode", mode]).unwrap();
        }
        served(outside.netns(), &service);
        refused(outside.netns(), &empty);
        let status = agent.json(&["status"]).unwrap().to_string();
        assert!(mode == "off" || status.contains(mode), "{status}");
    }
}
