//! Load balancers' addresses and external IPs serve pods, processes of the node and external clients, within the source ranges.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, External, Manifest, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, eventually, fresh_port};
use lb_tests::topology::{Addresses, NetNs, NodeOptions};

const HTTP: u16 = 80;
const DNS: u16 = 53;
/// How long a packet is waited for that must not come.
const SILENCE: Duration = Duration::from_millis(700);

fn addresses(texts: [&str; 2]) -> Vec<IpAddr> {
    texts.map(|text| text.parse().unwrap()).to_vec()
}

fn load_balancer() -> Vec<IpAddr> {
    addresses(["198.51.100.10", "2001:db8:5::10"])
}

fn external() -> Vec<IpAddr> {
    addresses(["203.0.113.7", "2001:db8:7::7"])
}

/// TCP and UDP at these addresses reach a backend, which sees the client as it is.
fn reaches(from: &NetNs, addresses: &[IpAddr]) {
    for &address in addresses {
        let to = SocketAddr::new(address, HTTP);
        // The kernel may choose the port of a connection to another of these addresses: to the backend, both are one tuple.
        let connected = Stream::connect_from(from, fresh_port(), to, PATIENCE);
        let mut stream = connected.unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        let answer = stream.ask("hello").unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
        assert_eq!(stream.peer().unwrap(), to, "the client believes it talks to the service");
        assert_eq!(answer.peer, stream.local().unwrap(), "the backend sees the client's own address");
        let to = SocketAddr::new(address, DNS);
        let socket = Datagrams::connected(from, 0, to).unwrap();
        socket.ask("hello").unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
    }
}

#[test]
fn pods_and_host_processes_reach_every_kind() {
    let fixture = Fixture::new("kinds", Pods::Routed, 2, NodeOptions::default());
    let both = External { external_ips: external(), load_balancer_ips: load_balancer(), ..External::default() };
    let manifest = Manifest::of([fixture.web().with(both)]);
    let mut agent = fixture.agent(&manifest, &["--external-ips", "on"]);
    for from in [fixture.client.netns(), fixture.node.netns()] {
        reaches(from, &load_balancer());
        reaches(from, &external());
    }
    agent.restart_with(&fixture.node, &[]).unwrap();
    external_ips_are_not_served_unless_asked_for(&fixture);
    clients_outside_the_source_ranges_are_dropped_and_counted(&fixture, &mut agent);
    a_service_without_endpoints_is_refused_at_every_kind(&fixture, &agent);
}

fn external_ips_are_not_served_unless_asked_for(fixture: &Fixture) {
    for from in [fixture.client.netns(), fixture.node.netns()] {
        reaches(from, &load_balancer());
        for address in external() {
            Stream::connect_from(from, 0, SocketAddr::new(address, HTTP), SILENCE)
                .expect_err("nobody has this address");
        }
    }
}

fn a_service_without_endpoints_is_refused_at_every_kind(fixture: &Fixture, agent: &Agent) {
    let ingress = External { load_balancer_ips: load_balancer(), ..External::default() };
    agent.apply(&Manifest::of([fixture.web_of(vec![]).with(ingress)])).unwrap();
    for to in load_balancer().into_iter().map(|address| SocketAddr::new(address, HTTP)) {
        for from in [fixture.client.netns(), fixture.node.netns()] {
            let error = Stream::connect(from, to).expect_err("nobody serves");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}: {to}", from.name());
        }
    }
}

/// The ranges that hold just this client.
fn only(client: Addresses) -> Vec<String> {
    client.both().map(|address| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })).to_vec()
}

fn dropped(agent: &Agent) -> u64 {
    agent.counted(Outcome::DroppedSourceRange).unwrap()
}

/// Dropped without a word, and counted.
fn is_dropped(agent: &Agent, from: &NetNs, to: SocketAddr) -> bool {
    let before = dropped(agent);
    match Stream::connect_from(from, 0, to, SILENCE) {
        Ok(_) => false,
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::ConnectionRefused, "{to}: it is not told");
            assert!(dropped(agent) > before, "{to}: dropped, but not counted");
            true
        }
    }
}

fn clients_outside_the_source_ranges_are_dropped_and_counted(fixture: &Fixture, agent: &mut Agent) {
    let unadmitted = fixture.pod("other");
    let guarded = |source_ranges| {
        let external = External { load_balancer_ips: load_balancer(), source_ranges, ..External::default() };
        Manifest::of([fixture.web().with(external)])
    };
    agent.write(&guarded(only(fixture.client.addresses()))).unwrap();
    agent.restart().unwrap();
    // A pod whose link has no programs yet would be dropped as well, but not counted.
    reaches(unadmitted.netns(), &fixture.web().cluster_ips.both());
    let ingress: Vec<SocketAddr> = load_balancer().into_iter().map(|ip| SocketAddr::new(ip, HTTP)).collect();
    reaches(fixture.client.netns(), &load_balancer());
    for &to in &ingress {
        assert!(is_dropped(agent, unadmitted.netns(), to), "{to}: a client that is not admitted got through");
        // The node's own address is in no range.
        let before = dropped(agent);
        let error = Stream::connect(fixture.node.netns(), to).expect_err("the node got through");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(dropped(agent), before + 1);
    }

    // Established connections outlive the range that admitted them; new ones find it gone.
    let mut held: Vec<Stream> =
        ingress.iter().map(|to| Stream::connect(fixture.client.netns(), *to).unwrap()).collect();
    agent.write(&guarded(only(unadmitted.addresses()))).unwrap();
    for (to, held) in ingress.iter().zip(&mut held) {
        eventually("the range is gone", SOON, || is_dropped(agent, fixture.client.netns(), *to).then_some(()));
        held.ask("still").unwrap();
    }
    reaches(unadmitted.netns(), &load_balancer());
}

#[test]
fn clients_outside_reach_every_kind_within_the_source_ranges() {
    const NODE_PORT: u16 = 30_080;
    let fixture = Fixture::new("kindsoutside", Pods::Routed, 2, NodeOptions::default());
    let [customer, unadmitted] =
        ["customer", "other"].map(|name| fixture.topology.outside(name, &fixture.node).unwrap());
    let node = fixture.node.addresses();
    let guarded = [load_balancer(), external()].concat();
    for (host, address) in
        [&customer, &unadmitted].into_iter().flat_map(|host| guarded.iter().map(move |ip| (host, ip)))
    {
        host.namespace().ip(&format!("route add {address} via {}", node.like(*address))).unwrap();
    }
    let own = External {
        external_ips: external(),
        load_balancer_ips: load_balancer(),
        node_ports: vec![NODE_PORT],
        source_ranges: only(customer.addresses()),
        ..External::default()
    };
    let agent = fixture.agent(&Manifest::of([fixture.web().with(own)]), &["--external-ips", "on"]);
    reaches(customer.netns(), &guarded);
    for to in guarded.into_iter().map(|address| SocketAddr::new(address, HTTP)) {
        assert!(is_dropped(&agent, unadmitted.netns(), to), "{to}: a client that is not admitted got through");
    }
    for to in node.both().map(|address| SocketAddr::new(address, NODE_PORT)) {
        let mut stream = Stream::connect(unadmitted.netns(), to).unwrap();
        let answer = stream.ask("hello").unwrap();
        assert_eq!(answer.peer, stream.local().unwrap(), "node ports are not guarded, and the backend is of this node");
    }
}
