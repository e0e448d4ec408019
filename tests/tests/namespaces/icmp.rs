//! ICMP around services: errors find their way through the translation, both ways; ping is answered, unserved ports are refused.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Port, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::ping::pings;
use lb_tests::topology::NodeOptions;

/// Nobody listens there but where a test does.
const TARGET: u16 = 5999;
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);

/// UDP 53 and TCP 81, at a port of the backends that the fixture's servers leave free.
fn odd_service(fixture: &Fixture) -> Service {
    let ports = vec![
        Port { name: "odd", protocol: Protocol::Udp, port: 53, target: TARGET },
        Port { name: "sink", protocol: Protocol::Tcp, port: 81, target: TARGET },
    ];
    Service { ports, ..fixture.web() }
}

#[test]
fn a_client_is_told_that_nobody_is_at_the_backends_port() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("closed", pods, 1, NodeOptions::default());
        let agent = fixture.agent(&Manifest::default(), &[]);
        closed_ports_are_told(&fixture, &agent);
    }
}

/// Nobody is at the backends' port, and clients get to know it.
pub fn closed_ports_are_told(fixture: &Fixture, agent: &Agent) {
    let service = odd_service(fixture);
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    let before = Counters::read(agent.bpffs()).unwrap();
    let frontends = service.frontends(Protocol::Udp);
    for to in &frontends {
        let socket = Datagrams::connected(fixture.client.netns(), 0, *to).unwrap();
        let error = socket.ask("hello").expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
    }
    let after = Counters::read(agent.bpffs()).unwrap();
    let translated = after.since(&before, Outcome::IcmpTranslated);
    assert_eq!(translated, frontends.len() as u64, "{}", after.line_since(&before));
    let ejected = after.since(&before, Outcome::Ejected);
    assert_eq!(ejected, 0, "anybody can forge an error: {}", after.line_since(&before));
}

#[test]
fn a_backend_is_told_that_the_client_has_gone() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("gone", pods, 1, NodeOptions::default());
        let agent = fixture.agent(&Manifest::default(), &[]);
        gone_clients_are_told(&fixture, &agent);
    }
}

/// A client has gone, and its backend gets to know it.
pub fn gone_clients_are_told(fixture: &Fixture, agent: &Agent) {
    let service = Service { endpoints: fixture.endpoints()[..1].to_vec(), ..odd_service(fixture) };
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    for to in service.frontends(Protocol::Udp) {
        let own = SocketAddr::new(fixture.backends[0].addresses().like(to.ip()), TARGET);
        let server = fixture.backends[0].netns().run(|| UdpSocket::bind(own)).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let client = Datagrams::unconnected(fixture.client.netns(), 0, to).unwrap();
        client.send_at(to, "hello").unwrap();
        let (_, peer) = server.recv_from(&mut [0; 64]).unwrap();
        drop(client);
        server.connect(peer).unwrap();
        // The error arrives behind the datagram that it is about, and a later call returns it.
        let error = eventually("the backend is told", LIMIT, || server.send(b"answer").err());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
    }
}

#[test]
fn a_sender_learns_the_mtu_of_the_way_to_the_backend() {
    let fixture = Fixture::new("pmtu", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::default(), &[]);
    narrow_links_are_told(&fixture, &agent);
}

/// The way to the backend is narrow at its end, which no end knows of. Pods are routed: a bridge says nothing.
pub fn narrow_links_are_told(fixture: &Fixture, agent: &Agent) {
    const BYTES: usize = 300_000;
    let service = Service { endpoints: fixture.endpoints()[..1].to_vec(), ..odd_service(fixture) };
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    fixture.node.namespace().ip(&format!("link set {} mtu 1300", fixture.backends[0].link())).unwrap();
    let before = Counters::read(agent.bpffs()).unwrap();
    let frontends = service.frontends(Protocol::Tcp);
    for to in &frontends {
        let own = SocketAddr::new(fixture.backends[0].addresses().like(to.ip()), TARGET);
        let listener = fixture.backends[0].netns().run(|| TcpListener::bind(own)).unwrap();
        let sink = std::thread::spawn(move || -> std::io::Result<usize> {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(LIMIT))?;
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received)?;
            stream.write_all(b"!")?;
            Ok(received.len())
        });
        let mut stream = fixture.client.netns().run(|| TcpStream::connect_timeout(to, LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&vec![b'x'; BYTES]).unwrap();
        stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{to}: what is too big is lost: {error}"));
        assert_eq!(sink.join().unwrap().unwrap(), BYTES);
        let learnt = fixture.client.namespace().ip_show(&["route", "get", &to.ip().to_string()]).unwrap();
        assert!(learnt.contains("mtu 1300"), "the sender knows of the narrow link: {learnt}");
    }
    let after = Counters::read(agent.bpffs()).unwrap();
    assert!(after.since(&before, Outcome::IcmpTranslated) >= frontends.len() as u64, "{}", after.line_since(&before));
}

#[test]
fn an_address_of_services_answers_ping() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let fixture = Fixture::new("ping", pods, 1, NodeOptions::default());
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        let outside = fixture.topology.outside("out", &fixture.node).unwrap();
        let before = Counters::read(agent.bpffs()).unwrap();
        for vip in service.cluster_ips.both() {
            for (who, netns) in
                [("pod", fixture.client.netns()), ("outside", outside.netns()), ("node", fixture.node.netns())]
            {
                for payload in [0, 56, 1001] {
                    assert!(pings(netns, vip, payload).unwrap(), "{pods:?}: {vip} from {who}, {payload} bytes");
                }
            }
        }
        let after = Counters::read(agent.bpffs()).unwrap();
        assert_eq!(after.since(&before, Outcome::EchoReplied), 18, "{}", after.line_since(&before));
        // The owner of the address answers by itself, and an address without an owner does not answer.
        assert!(pings(fixture.client.netns(), fixture.backends[0].addresses().v4.into(), 56).unwrap());
        assert!(pings(fixture.client.netns(), fixture.node.addresses().v6.into(), 56).unwrap());
        let nobody = Service::standard("nobody", 99, vec![]).cluster_ips;
        assert!(!matches!(pings(fixture.client.netns(), nobody.v4.into(), 56), Ok(true)));
        assert_eq!(Counters::read(agent.bpffs()).unwrap().since(&after, Outcome::EchoReplied), 0);
    }
}

#[test]
fn a_port_that_nobody_serves_is_refused_at_once() {
    let fixture = Fixture::new("unserved", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let outside = fixture.topology.outside("out", &fixture.node).unwrap();
    for (who, netns) in [("pod", fixture.client.netns()), ("outside", outside.netns()), ("node", fixture.node.netns())]
    {
        let before = Counters::read(agent.bpffs()).unwrap();
        for vip in service.cluster_ips.both() {
            let error = Stream::connect(netns, SocketAddr::new(vip, 8081)).expect_err("nobody serves");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{who}: tcp {vip}: {error}");
            // TCP's port of the service, but UDP.
            let to = SocketAddr::new(vip, 80);
            let asked = Datagrams::connected(netns, 0, to).and_then(|socket| socket.ask("hello"));
            let error = asked.expect_err("nobody serves");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{who}: udp {vip}: {error}");
        }
        let after = Counters::read(agent.bpffs()).unwrap();
        // A process of the node learns it by its own call.
        let refused = after.since(&before, Outcome::RefusedUnserved) + after.since(&before, Outcome::SocketRefused);
        assert_eq!(refused, 4, "{who}: {}", after.line_since(&before));
    }
    // The node's own address is its own: what listens there is reached, though services have ports on it or not.
    for address in fixture.node.addresses().both() {
        let listener = fixture.node.netns().run(|| TcpListener::bind(SocketAddr::new(address, 0))).unwrap();
        let at = listener.local_addr().unwrap();
        outside.netns().run(|| TcpStream::connect_timeout(&at, LIMIT)).unwrap_or_else(|e| panic!("{at}: {e}"));
        fixture.client.netns().run(|| TcpStream::connect_timeout(&at, LIMIT)).unwrap_or_else(|e| panic!("{at}: {e}"));
    }
}
