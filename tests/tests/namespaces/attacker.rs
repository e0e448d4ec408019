//! A pod that may send any packet (`NET_RAW`), a host outside and another node forge packets of others' connections: none ends, moves or is
//! misdelivered. Needs root.

mod everywhere;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::incident::raw_tcp::{ACK, FIN, RST, RawTcp, SYN, Segment};
use lb_tests::peers::{Answer, Stream};
use lb_tests::random::Random;
use lb_tests::topology::{NetNs, NodeOptions, Pod};

/// What is forged; data is an ACK with a body.
const KINDS: [(u8, usize); 6] = [(SYN, 0), (RST, 0), (RST | ACK, 0), (FIN | ACK, 0), (ACK, 0), (ACK, 100)];
/// Connections of each kind and family.
const CONNECTIONS: usize = 4;
/// A second and a bit: SYNs that no client would repeat sooner.
const A_SECOND: Duration = Duration::from_millis(1_100);

/// A connection of the victim, and the backend that answers it.
struct Held {
    stream: Stream,
    answer: Answer,
    /// Its ends as the client sees them, and the backend's address and port.
    ends: [SocketAddr; 3],
    /// It is asked all the time; others are idle.
    is_busy: bool,
}

impl Held {
    fn new(netns: &NetNs, to: SocketAddr, is_busy: bool) -> Self {
        let mut stream = Stream::connect(netns, to).unwrap();
        let answer = stream.ask("before").unwrap();
        let ends = [stream.local().unwrap(), to, answer.local];
        Self { stream, answer, ends, is_busy }
    }

    fn check(&mut self, when: &str) {
        let answer = self.stream.ask(when).unwrap_or_else(|error| panic!("{when}: {:?}: {error}", self.ends));
        assert_eq!((&answer.server, answer.peer), (&self.answer.server, self.answer.peer), "{when}: {:?}", self.ends);
    }

    /// A forged segment from either end.
    fn forged(&self, from_client: bool, (flags, length): (u8, usize), seq: u32, ack: u32) -> Segment {
        let [client, service, backend] = self.ends;
        let (from, to) = if from_client { (client, service) } else { (backend, client) };
        Segment { from, to, flags, seq, ack, length }
    }
}

/// Fields in the order in which they must end.
struct Scene {
    raw: RawTcp,
    agent: Agent,
    services: [Service; 2],
    _attacker: Pod,
    fixture: Fixture,
}

impl Scene {
    fn new(subject: &str, options: NodeOptions) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 3, options);
        let attacker = fixture.pod("attacker");
        let sticky = Service::standard("sticky", 12, fixture.endpoints()).remembering(600);
        let services = [fixture.web(), Service { families: options.families, ..sticky }];
        let agent = fixture.agent(&Manifest::of(services.clone()), &[]);
        let raw = RawTcp::new(attacker.netns()).unwrap();
        Self { raw, agent, services, _attacker: attacker, fixture }
    }

    /// Connections of a pod, idle and busy, with client affinity and without.
    fn hold(&self) -> Vec<Held> {
        let to = self.services.iter().flat_map(|service| service.frontends(Protocol::Tcp));
        let pods = to.flat_map(|to| (0..CONNECTIONS).map(move |index| (to, index % 2 == 0)));
        pods.map(|(to, is_busy)| Held::new(self.fixture.client.netns(), to, is_busy)).collect()
    }

    fn counted(&self, outcome: Outcome) -> u64 {
        Counters::read(self.agent.bpffs()).unwrap().get(outcome)
    }

    /// The backends that a new connection with client affinity reaches.
    fn remembered(&self) -> BTreeSet<String> {
        let ask = |to| Stream::connect(self.fixture.client.netns(), to).unwrap().ask("whom?").unwrap().server;
        self.services[1].frontends(Protocol::Tcp).into_iter().map(ask).collect()
    }
}

fn busy(held: &mut [Held], when: &str) {
    held.iter_mut().filter(|held| held.is_busy).for_each(|held| held.check(when));
}

#[test]
fn forged_segments_end_no_connection_of_others_in_any_order() {
    let mut random = Random::new(lb_seed::of_run());
    // Nothing but the programs stands between the attacker and the others.
    let scene = Scene::new("attacker", NodeOptions { rp_filter: 0, ..NodeOptions::default() });
    let mut held = scene.hold();
    let remembered = scene.remembered();
    let number = |random: &mut Random| u32::from_le_bytes(random.bytes(4).try_into().unwrap());
    // All orders of three, from either end, with the same numbers and with others.
    for first in KINDS {
        for second in KINDS {
            for third in KINDS {
                let (same, is_same) = (number(&mut random), random.one_in(2));
                for connection in &held {
                    for kind in [first, second, third] {
                        let seq = if is_same { same } else { number(&mut random) };
                        let ack = if is_same { same } else { number(&mut random) };
                        scene.raw.send(&connection.forged(!random.one_in(3), kind, seq, ack));
                    }
                }
            }
        }
        busy(&mut held, "under attack");
    }
    // Whatever was forged before.
    repeated_syns_end_nothing(&scene, &mut held, &remembered);
}

/// On a node with these options.
pub fn forged_syns_end_no_connection(subject: &str, options: NodeOptions) {
    let scene = Scene::new(subject, options);
    let (mut held, remembered) = (scene.hold(), scene.remembered());
    repeated_syns_end_nothing(&scene, &mut held, &remembered);
}

/// SYNs as a client would repeat them.
fn repeated_syns_end_nothing(scene: &Scene, held: &mut [Held], remembered: &BTreeSet<String>) {
    for second in 0..6_u32 {
        for connection in held.iter() {
            scene.raw.send(&connection.forged(true, (SYN, 0), 77_000 + second / 3, 0));
        }
        std::thread::sleep(A_SECOND);
        busy(held, "between SYNs");
    }
    for connection in held {
        connection.check("after the attack");
    }
    assert_eq!(scene.remembered(), *remembered, "client affinity");
    let lost = [Outcome::Ejected, Outcome::Evicted, Outcome::Retried, Outcome::DroppedTableFull];
    assert_eq!(lost.map(|outcome| scene.counted(outcome)), [0; 4], "{lost:?}");
}
