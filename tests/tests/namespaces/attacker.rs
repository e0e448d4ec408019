//! A pod that may send any packet (`NET_RAW`), a host outside and another node forge packets of others' connections: none ends, moves or is
//! misdelivered. Needs root.

mod everywhere;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use lb_common::limits::ANSWER_TIMEOUT_S;
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Port, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::incident::forger::{Flaw, Forger, datagram};
use lb_tests::incident::raw_tcp::{ACK, FIN, RST, RawTcp, SYN, Segment};
use lb_tests::peers::{Answer, Datagrams, PATIENCE, Stream};
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
    attacker: Pod,
    fixture: Fixture,
}

impl Scene {
    /// On a node with this `rp_filter`: where it is not 0, what the attacker forges goes no further than the programs.
    fn filtered(subject: &str, rp_filter: u8) -> Self {
        Self::new(subject, NodeOptions { rp_filter, ..NodeOptions::default() })
    }

    fn new(subject: &str, options: NodeOptions) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 3, options);
        let attacker = fixture.pod("attacker");
        let sticky = Service::standard("sticky", 12, fixture.endpoints()).remembering(600);
        let services = [fixture.web(), Service { families: options.families, ..sticky }];
        let agent = fixture.agent(&Manifest::of(services.clone()), &["--drain-period=0s"]);
        let raw = RawTcp::new(attacker.netns()).unwrap();
        Self { raw, agent, services, attacker, fixture }
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

/// Settings of `rp_filter` that a scene is played with.
fn rp_filters() -> &'static [u8] {
    lb_seed::short_or_long(&[0, 1], &[0, 1, 2])
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

/// Nobody answers these SYNs: the backend sees none of them, or sees them alone.
#[test]
fn silence_after_forged_syns_ends_no_idle_connection() {
    for rp_filter in rp_filters() {
        let scene = Scene::filtered("forgedsyn", *rp_filter);
        let forger = Forger::new(scene.attacker.netns()).unwrap();
        let mut held = scene.hold();
        for _ in 0..5 {
            for (connection, flaw) in held.iter().zip(Flaw::ALL.into_iter().cycle()) {
                let syn = connection.forged(true, (SYN, 0), 77_000, 0);
                forger.send(&flaw.put(syn.bytes(), false), syn.to.ip());
            }
            std::thread::sleep(A_SECOND);
        }
        for connection in &mut held {
            connection.check(&format!("rp_filter {rp_filter}, after forged SYNs"));
        }
        assert!(scene.counted(Outcome::SecondHandshake) > 0, "the SYNs begin what nobody completes");
        let lost = [Outcome::Ejected, Outcome::Evicted, Outcome::DroppedTableFull];
        assert_eq!(lost.map(|outcome| scene.counted(outcome)), [0; 3], "{lost:?}");
    }
}

/// Past the drain period, a connection ends with a segment that its backend has left unanswered for so long. These fit no connection.
#[test]
fn silence_after_forged_segments_ends_no_connection_that_drains() {
    let mut random = Random::new(lb_seed::of_run());
    for rp_filter in lb_seed::short_or_long(&[0][..], &[0, 1, 2]) {
        let scene = Scene::filtered("forgeddrain", *rp_filter);
        let forger = Forger::new(scene.attacker.netns()).unwrap();
        let mut held = scene.hold();
        scene.agent.apply(&Manifest::default()).unwrap();
        // What the backend has sent in the same second answers them.
        std::thread::sleep(A_SECOND);
        for seconds in [ANSWER_TIMEOUT_S + 2, 0] {
            // Each is put on what is forged of a busy connection, and of an idle one.
            let flaws = Flaw::ALL.into_iter().flat_map(|flaw| [flaw; 2]).cycle();
            for (connection, flaw) in held.iter().zip(flaws) {
                for kind in KINDS {
                    let number = |random: &mut Random| u32::from_le_bytes(random.bytes(4).try_into().unwrap());
                    let segment = connection.forged(true, kind, number(&mut random), number(&mut random));
                    forger.send(&flaw.put(segment.bytes(), false), segment.to.ip());
                }
            }
            busy(&mut held, "between forged segments");
            std::thread::sleep(Duration::from_secs(seconds.into()));
        }
        for connection in &mut held {
            connection.check(&format!("rp_filter {rp_filter}, after forged segments"));
        }
        assert_eq!(scene.counted(Outcome::Evicted), 0, "rp_filter {rp_filter}");
    }
}

/// Handshakes that are under way while their backends' first answers are lost.
const OPENING: u16 = 20;
/// A kernel sends a lost SYN+ACK again after a second.
const ANSWERS_LOST: Duration = Duration::from_millis(800);

#[test]
fn forged_syns_reset_no_handshake() {
    for rp_filter in rp_filters() {
        let scene = Scene::filtered("forgedopen", *rp_filter);
        let forger = Forger::new(scene.attacker.netns()).unwrap();
        let (client, to) = (scene.fixture.client.netns(), scene.services[0].frontends(Protocol::Tcp));
        lose_answers(&scene.fixture.backends, true);
        let clients: Vec<_> = (0..OPENING)
            .map(|number| {
                let (netns, to, port) = (client.clone(), to[usize::from(number) % to.len()], 42_000 + number);
                let from = SocketAddr::new(scene.fixture.client.addresses().like(to.ip()), port);
                let connect = client.spawn(move || Stream::connect_from(&netns, port, to, PATIENCE)?.ask("who"));
                (from, to, connect)
            })
            .collect();
        let start = std::time::Instant::now();
        let mut isn = 1_u32;
        while start.elapsed() < ANSWERS_LOST {
            for ((from, to, _), flaw) in clients.iter().zip(Flaw::ALL.into_iter().cycle()) {
                // One that arrives is a client's own to the backend.
                let flaw = if flaw == Flaw::None { Flaw::Checksum } else { flaw };
                forger.send(&flaw.put(Segment::syn(*from, *to, isn).bytes(), false), to.ip());
                isn = isn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        lose_answers(&scene.fixture.backends, false);
        let answers: Vec<_> = clients.into_iter().map(|(from, _, client)| (from, client.join().unwrap())).collect();
        let lost: Vec<_> = answers.iter().filter(|(_, answer)| answer.is_err()).collect();
        assert!(lost.is_empty(), "rp_filter {rp_filter}: {} of {OPENING} lost: {lost:?}", lost.len());
        assert!(scene.counted(Outcome::SecondHandshake) > 0, "the SYNs arrived while the handshakes were under way");
    }
}

/// SYN+ACKs of the backends are lost on their way.
fn lose_answers(backends: &[Pod], are_lost: bool) {
    let rule = if are_lost { "tcp flags & (syn | ack) == syn | ack fwd to \"lo\"" } else { "" };
    let text = format!(
        "table netdev forged\ndelete table netdev forged\ntable netdev forged {{\n\
         chain egress {{\ntype filter hook egress device \"eth0\" priority 0;\n{rule}\n}}\n}}\n"
    );
    for pod in backends {
        let output =
            pod.netns().start(std::process::Command::new("nft").arg(&text)).unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "nft refuses {text}");
    }
}

/// Datagrams that a server pushes without being asked again.
const PUSHED: u16 = 40;

#[test]
fn a_forged_direct_datagram_moves_no_replies() {
    let options = NodeOptions { rp_filter: 0, ..NodeOptions::default() };
    let fixture = Fixture::new("forgedudp", Pods::Routed, 1, options);
    let attacker = fixture.pod("attacker");
    let service = Service {
        ports: vec![Port { name: "push", protocol: Protocol::Udp, port: 53, target: 7_070 }],
        ..Service::standard("push", 12, fixture.endpoints())
    };
    let all = Manifest::of([service.clone()]);
    let agent = fixture.agent(&all, &[]);
    let forger = Forger::new(attacker.netns()).unwrap();
    let frontends = service.frontends(Protocol::Udp);
    for (to, drains) in frontends.iter().flat_map(|to| [(*to, false), (*to, true)]) {
        agent.apply(&all).unwrap();
        let backend = SocketAddr::new(fixture.backends[0].addresses().like(to.ip()), 7_070);
        let server = fixture.backends[0].netns().run(|| UdpSocket::bind(backend)).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let client = Datagrams::connected(fixture.client.netns(), 0, to).unwrap();
        client.send_at(to, "subscribe").unwrap();
        let (_, from) = server.recv_from(&mut [0; 64]).unwrap();
        if drains {
            // Answers still pass until the drain period ends.
            agent.apply(&Manifest::default()).unwrap();
        }
        for number in 0..PUSHED {
            for flaw in Flaw::ALL {
                let forged = datagram(client.local().unwrap(), backend, b"forged");
                forger.send(&flaw.put(forged, true), backend.ip());
            }
            server.send_to(format!("push {from} {backend} {number}").as_bytes(), from).unwrap();
            // A connected socket takes nothing from another address.
            let pushed =
                client.receive().unwrap_or_else(|error| panic!("{number} from {to}, drains: {drains}: {error}"));
            assert_eq!((pushed.0, pushed.1.text), (to, number.to_string()));
        }
    }
}
