//! What others do evicts no established connection: each test sends ten times what the table holds. Needs root.

use std::net::SocketAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::{Clients, Counters};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions, Pod};

/// Entries of each table of established connections: a connection takes two.
const FLOWS: u16 = 512;
/// Ten times as many as the table holds.
const TEN_TABLES: u16 = 10 * FLOWS / 2;

/// A client with an idle connection of each family, and another pod.
struct Scene {
    idle: Vec<Stream>,
    other: Pod,
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
    /// Of a service of the other pod.
    own: Vec<SocketAddr>,
    agent: Agent,
    fixture: Fixture,
}

impl Scene {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions::default());
        let other = fixture.pod("other");
        let web = fixture.web();
        let sizes = format!("--map-sizes=flows4={FLOWS},flows6={FLOWS}");
        let own = Service::standard("own", 12, fixture.endpoints());
        let agent = fixture.agent(&Manifest::of([web.clone(), own.clone()]), &[&sizes]);
        let (tcp, udp) = (web.frontends(Protocol::Tcp), web.frontends(Protocol::Udp));
        let idle = tcp.iter().map(|to| connected(fixture.client.netns(), *to)).collect();
        Self { idle, other, tcp, udp, own: own.frontends(Protocol::Tcp), agent, fixture }
    }

    /// The idle connections go on.
    fn check(&mut self) {
        for idle in &mut self.idle {
            idle.ask("still there?").unwrap();
        }
    }
}

fn connected(netns: &NetNs, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect(netns, to).unwrap();
    stream.ask("before").unwrap();
    stream
}

#[test]
fn short_connections_evict_no_idle_one_and_are_all_made() {
    let mut scene = Scene::new("flowstcp");
    let clients =
        Clients { connections: TEN_TABLES, at_a_time: 4, patience: Duration::from_secs(10), first_port: None };
    for to in scene.tcp.clone() {
        let round = clients.run(scene.other.netns(), to);
        assert!(
            round.failed() * 1000 <= round.attempts.len(),
            "{}; the first: {:?}",
            round.line(),
            round.first_error()
        );
    }
    scene.check();
}

#[test]
fn udp_queries_evict_no_idle_connection() {
    let mut scene = Scene::new("flowsudp");
    for to in scene.udp.clone() {
        let ask = |port| {
            let socket = Datagrams::unconnected(scene.other.netns(), port, to)?;
            // An LRU map protects what was in use more than once.
            ["A?", "AAAA?", "AAAA?"].into_iter().try_for_each(|question| socket.ask_at(to, question).map(drop))
        };
        let failed = (10_000..10_000 + TEN_TABLES).filter(|port| ask(*port).is_err()).count();
        assert!(failed * 1000 <= usize::from(TEN_TABLES), "{failed} queries to {to} failed");
    }
    scene.check();
}

/// How long a connect of a client that is refused may take: the answers to a flood of refusals are limited.
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
/// A round of the sweep, and then some.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_client_that_keeps_ten_tables_of_connections_open_is_refused_by_name_and_nobody_else_suffers() {
    let mut scene = Scene::new("flowsgreedy");
    let mut held = Vec::new();
    for (to, own) in scene.tcp.clone().into_iter().zip(scene.own.clone()) {
        for attempt in 0..TEN_TABLES {
            held.extend(Stream::connect_from(scene.other.netns(), 0, own, REFUSED_WITHIN).ok());
            if attempt % 64 == 0 {
                connected(scene.fixture.client.netns(), to).end().unwrap();
                scene.check();
            }
        }
    }
    let most = usize::from(FLOWS / 2);
    assert!(held.len() > most && held.len() < 2 * most, "{} connections of two tables of {most}", held.len());
    // Those that are counted as made are whole: the backend has them, too.
    for stream in &mut held {
        stream.ask("is anybody there?").unwrap();
    }
    // New ones of others, many of which stay open.
    let mut others: Vec<Stream> = Vec::new();
    for to in scene.tcp.clone() {
        others.extend((0..20).map(|_| connected(scene.fixture.client.netns(), to)));
    }
    scene.check();
    let counters = Counters::read(scene.agent.bpffs()).unwrap();
    assert_eq!(counters.get(Outcome::DroppedTableFull), 0, "the table is never full");
    assert!(counters.get(Outcome::RefusedClientShare) > u64::from(TEN_TABLES), "refusals are counted");
    let status = eventually("the agent names the client", SOON, || {
        let status = String::from_utf8(scene.agent.cli(&["status"]).ok()?.stdout).ok()?;
        let is_named = |ip| status.contains(&format!("client {ip} has more"));
        let is_said = |ip| status.contains(&format!("new connections of {ip} are refused"));
        let is_degraded = status.contains("degraded") && scene.other.ips().iter().any(is_said);
        (is_degraded && scene.other.ips().iter().all(is_named)).then_some(status)
    });
    assert!(!scene.fixture.client.ips().iter().any(|ip| status.contains(&format!("client {ip} "))), "{status}");
    for family in ["ipv4", "ipv6"] {
        let largest = scene.agent.metric("ballast_largest_client_connections", &format!("family=\"{family}\""));
        assert!(largest.is_some_and(|largest| largest > 100.0), "{largest:?}");
    }
    // A client that closes connections may open new ones.
    drop(held);
    for own in scene.own.clone() {
        eventually("a place is free", SOON, || Stream::connect(scene.other.netns(), own).ok());
    }
}
