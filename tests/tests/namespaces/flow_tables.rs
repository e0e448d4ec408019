//! What others do evicts no established connection: each test sends ten times what the table holds. Needs root.

use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{Agent, Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Clients;
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{NodeOptions, Place, Pod};

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
    _agent: Agent,
    _fixture: Fixture,
}

impl Scene {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions::default());
        let other = fixture.pod("other");
        let web = fixture.web();
        let sizes = format!("--map-sizes=flows4={FLOWS},flows6={FLOWS}");
        let agent = fixture.agent(&Manifest::of([web.clone()]), &[&sizes]);
        let (tcp, udp) = (web.frontends(Protocol::Tcp), web.frontends(Protocol::Udp));
        let idle = tcp.iter().map(|to| connected(fixture.client.place(), *to)).collect();
        Self { idle, other, tcp, udp, _agent: agent, _fixture: fixture }
    }

    /// The idle connections go on.
    fn check(&mut self) {
        for idle in &mut self.idle {
            idle.ask("still there?").unwrap();
        }
    }
}

fn connected(place: &Place, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect(place, to).unwrap();
    stream.ask("before").unwrap();
    stream
}

#[test]
fn short_connections_evict_no_idle_one_and_are_all_made() {
    let mut scene = Scene::new("flowstcp");
    let clients =
        Clients { connections: TEN_TABLES, at_a_time: 4, patience: Duration::from_secs(10), first_port: None };
    for to in scene.tcp.clone() {
        let round = clients.run(scene.other.place(), to);
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
            let socket = Datagrams::unconnected(scene.other.place(), port, to)?;
            // An LRU map protects what was in use more than once.
            ["A?", "AAAA?", "AAAA?"].into_iter().try_for_each(|question| socket.ask_at(to, question).map(drop))
        };
        let failed = (10_000..10_000 + TEN_TABLES).filter(|port| ask(*port).is_err()).count();
        assert!(failed * 1000 <= usize::from(TEN_TABLES), "{failed} queries to {to} failed");
    }
    scene.check();
}
