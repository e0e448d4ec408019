//! The fast path fails safe: it ends soon after the agent, and a packet from a forged address takes the stack, whose filters stop it. When it closes,
//! connection tracking knows its connections.

mod talks;

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::incident::forger::{Forger, datagram};
use lb_tests::incident::raw_tcp::{ACK, RawTcp, Segment};
use lb_tests::peers::{Datagrams, Server, Stream, eventually};
use lb_tests::scene::Scene;
use lb_tests::topology::NodeOptions;

use talks::Talks;

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);
/// So soon after the agent's death a new rule of the host is obeyed.
const OBEYED: Duration = Duration::from_secs(10);
/// The length of a segment that no connection here has.
const MARK: usize = 77;

struct Scenario {
    agent: Agent,
    service: Service,
    fixture: Fixture,
}

impl Scenario {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions::default());
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        Self { agent, service, fixture }
    }

    fn handed_over(&self) -> u64 {
        Counters::read(self.agent.bpffs()).unwrap().get(Outcome::FastPath)
    }

    /// A connection of each family whose packets take the fast path.
    fn fast(&self) -> Vec<Stream> {
        let fast = |to: SocketAddr| {
            eventually("a connection takes the fast path", LIMIT, || {
                let before = self.handed_over();
                let mut stream = Stream::connect(self.fixture.client.netns(), to).unwrap();
                stream.ask("hello").unwrap();
                (self.handed_over() >= before + 4).then_some(stream)
            })
        };
        self.service.frontends(Protocol::Tcp).into_iter().map(fast).collect()
    }

    fn at_node(&self, line: &str) {
        at_node(&self.fixture, line);
    }
}

fn at_node(fixture: &Fixture, line: &str) {
    let mut command = Command::new("nft");
    command.arg(line).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = fixture.node.netns().start(&mut command).unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nothing_passes_the_hosts_filters_by() {
    let mut scenario = Scenario::new("fastsafe");
    a_pod_gets_nothing_through_in_the_name_of_another_one(&scenario);
    a_pod_begins_nothing_in_the_name_of_others(&scenario);
    a_connection_leaves_the_fast_path_with_the_route_to_its_backend(&scenario);
    a_rule_that_comes_after_the_agents_death_is_obeyed(&mut scenario);
}

/// Though the client goes on sending: nothing of it passes by what the routing table says.
fn a_connection_leaves_the_fast_path_with_the_route_to_its_backend(scenario: &Scenario) {
    let (fixture, backend) = (&scenario.fixture, &scenario.fixture.backends[0]);
    for (index, ip) in backend.ips().into_iter().enumerate() {
        let (whole, to) = (if ip.is_ipv4() { 32 } else { 128 }, |protocol| scenario.service.frontends(protocol)[index]);
        let route = |change: &str| fixture.node.namespace().ip(&format!("route {change}")).unwrap();
        for lost in ["blackhole", "unreachable", "prohibit", "missing"] {
            let mut stream = scenario.fast().remove(index);
            let socket = Datagrams::connected(fixture.client.netns(), 0, to(Protocol::Udp)).unwrap();
            socket.ask("fast").unwrap();
            route(&format!("delete {ip}/{whole} dev {}", backend.link()));
            if lost != "missing" {
                route(&format!("add {lost} {ip}/{whole}"));
            }
            let mut before = scenario.handed_over();
            eventually(&format!("{lost} counts for {ip}"), LIMIT, || {
                for _ in 0..10 {
                    stream.say("on?").unwrap();
                    // It may learn that nobody is there.
                    socket.send_at(to(Protocol::Udp), "on?").ok();
                    std::thread::sleep(Duration::from_millis(50));
                }
                let now = scenario.handed_over();
                (std::mem::replace(&mut before, now) == now).then_some(())
            });
            if lost != "missing" {
                route(&format!("delete {lost} {ip}/{whole}"));
            }
            route(&format!("add {ip}/{whole} dev {}", backend.link()));
        }
    }
}

fn a_rule_that_comes_after_the_agents_death_is_obeyed(scenario: &mut Scenario) {
    let mut streams = scenario.fast();
    scenario.agent.kill();
    scenario.at_node(
        "add table inet wall; add chain inet wall forward { type filter hook forward priority 0; policy drop; }",
    );
    let start = Instant::now();
    // One connection may be asked in vain for seconds: whether packets pass the rule by is counted.
    let mut before = scenario.handed_over();
    loop {
        let (mut stream, asked) = (streams.remove(0), start.elapsed());
        let answer = stream.ask("still past the rule?");
        streams.push(stream);
        if answer.is_err() {
            break;
        }
        assert!(asked < OBEYED, "the rule is not obeyed after {asked:.1?}");
        before = scenario.handed_over();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(scenario.handed_over(), before, "no packet passes the rule by");
    scenario.at_node("delete table inet wall");
    // Without the rule the host's stack forwards them, agent or none.
    for to in scenario.service.frontends(Protocol::Tcp) {
        Stream::connect(scenario.fixture.client.netns(), to).unwrap().ask("by the stack").unwrap();
    }
    assert_eq!(scenario.handed_over(), before);
}

/// Sends a segment from an address that is not the attacker's; whether the receiver gets one of the mark's length within a second.
fn gets(attacker: &RawTcp, receiver: &RawTcp, from: SocketAddr, to: SocketAddr) -> bool {
    receiver.drain();
    attacker.send(&Segment { from, to, flags: ACK, seq: 1, ack: 1, length: MARK });
    receiver.receive(Duration::from_secs(1), |segment| segment.length == MARK).is_some()
}

fn a_pod_gets_nothing_through_in_the_name_of_another_one(scenario: &Scenario) {
    let receives = |netns| RawTcp::new(netns).unwrap();
    let pod = scenario.fixture.pod("attacker");
    let attacker = receives(pod.netns());
    let (client, backend) = (receives(scenario.fixture.client.netns()), receives(scenario.fixture.backends[0].netns()));
    let streams = scenario.fast();
    let own = receives(scenario.fixture.client.netns());
    for (stream, to) in streams.iter().zip(scenario.service.frontends(Protocol::Tcp)) {
        let from = stream.local().unwrap();
        let server = SocketAddr::new(scenario.fixture.backends[0].addresses().like(to.ip()), 8080);
        let before = scenario.handed_over();
        let got = [gets(&attacker, &backend, from, to), gets(&attacker, &client, server, from)];
        // Linux filters by the reverse path for IPv4 alone.
        if to.is_ipv4() {
            assert_eq!(got, [false; 2], "{to}: requests, replies");
            assert_eq!(scenario.handed_over(), before, "{to}: none passes the host's filters by");
        }
        let before = scenario.handed_over();
        assert!(gets(&own, &backend, from, to), "{to}: the client's own");
        assert!(scenario.handed_over() > before, "{to}: the client's own take the fast path");
    }
}

/// Nor does it begin a connection or ask a question in the name of another pod, or of nobody.
fn a_pod_begins_nothing_in_the_name_of_others(scenario: &Scenario) {
    let fixture = &scenario.fixture;
    drop(scenario.fast());
    let pod = fixture.pod("beginner");
    let (attacker, own) = (Forger::new(pod.netns()).unwrap(), Forger::new(fixture.client.netns()).unwrap());
    let backend = RawTcp::new(fixture.backends[0].netns()).unwrap();
    let answers = || fixture.servers[0].iter().map(Server::answers).sum::<u32>();
    // Linux filters by the reverse path for IPv4 alone.
    let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| scenario.service.frontends(protocol)[0]);
    let client: IpAddr = fixture.client.addresses().v4.into();
    let nobody: IpAddr = [198, 18, 0, 9].into();
    let (handed_over, answered) = (scenario.handed_over(), answers());
    backend.drain();
    for (number, from) in [client, nobody].into_iter().enumerate() {
        let from = SocketAddr::new(from, 40_000 + u16::try_from(number).unwrap());
        assert!(attacker.send(&Segment::syn(from, tcp, 7).with_data(MARK).bytes(), tcp.ip()));
        assert!(attacker.send(&datagram(from, udp, b"forged"), udp.ip()));
    }
    assert_eq!(backend.receive(Duration::from_secs(1), |segment| segment.length == MARK), None, "forged");
    assert_eq!(scenario.handed_over(), handed_over, "none passes the host's filters by");
    // The client's own, by the same means.
    let from = SocketAddr::new(client, 40_002);
    assert!(own.send(&Segment::syn(from, tcp, 7).with_data(MARK).bytes(), tcp.ip()));
    assert!(backend.receive(Duration::from_secs(1), |segment| segment.length == MARK).is_some());
    assert!(own.send(&datagram(from, udp, b"own"), udp.ip()));
    eventually("the client's own question is answered", LIMIT, || (answers() > answered).then_some(()));
    assert_eq!(answers(), answered + 1, "no forged question is answered");
    assert!(scenario.handed_over() > handed_over);
}

/// Only what is known goes on.
const STATEFUL: &str = "add table inet wall; \
    add chain inet wall forward { type filter hook forward priority 0; policy drop; }; \
    add rule inet wall forward ct state established,related accept";
/// All that leaves this node gets another source port.
const MASQUERADE: &str = "add table inet wall; \
    add chain inet wall after { type nat hook postrouting priority 100; }; \
    add rule inet wall after oifname eth0 masquerade fully-random";

/// Connection tracking follows all that is forwarded.
const ASKS: &str = "add table inet asks; \
    add chain inet asks forward { type filter hook forward priority 0; }; \
    add rule inet asks forward ct state new accept";
/// The same, but that it is kept away from everything.
const NOTRACK: &str = "add table inet asks; \
    add chain inet asks forward { type filter hook forward priority 0; }; \
    add rule inet asks forward ct state new accept; \
    add chain inet asks raw { type filter hook prerouting priority raw; }; \
    add rule inet asks raw notrack";

/// A node, its agent, and a rule that is there before any connection.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    scene: Scene,
    flags: &'static [&'static str],
    rule: &'static str,
}

impl Node {
    const BARE: Self = Self { scene: Scene::Bare, flags: &[], rule: "" };
    const KUBELET: Self = Self { scene: Scene::Kubelet, ..Self::BARE };

    const fn without_fast_path(rule: &'static str) -> Self {
        Self { flags: &["--fast-path=off"], rule, ..Self::BARE }
    }

    const fn is_fast(self) -> bool {
        self.flags.is_empty()
    }
}

#[test]
fn connections_live_when_a_rule_closes_the_fast_path() {
    std::thread::scope(|scope| {
        for (node, rule) in [(Node::BARE, STATEFUL), (Node::KUBELET, STATEFUL), (Node::BARE, MASQUERADE)] {
            scope.spawn(move || live_when_it_closes(node, rule));
        }
    });
}

fn live_when_it_closes(node: Node, rule: &str) {
    let mut talks = Talks::new("fastclose", node);
    let what = format!("{node:?}: {rule}");
    talks.until(true);
    assert_eq!(talks.stopped(), [""; 0], "{what}: before");
    at_node(&talks.fixture, rule);
    talks.until(false);
    let before = talks.handed_over();
    assert_eq!(talks.stopped(), [""; 0], "{what}");
    talks.ask(&what);
    assert_eq!(talks.handed_over(), before, "{what}: nothing passes the rule by");
    if (node.scene, rule) == (Scene::Bare, STATEFUL) {
        assert!(!talks.direct.goes_on(), "{what}: the rule stops what is not known");
    }
}

/// A rule that asks connection tracking does to connections by the stack what it does to those of no service, and its end heals all.
#[test]
fn a_stateful_rule_stops_by_the_stack_what_connection_tracking_does_not_know_and_no_more() {
    std::thread::scope(|scope| {
        for (rule, is_known) in [(ASKS, true), (NOTRACK, false), ("", false)] {
            scope.spawn(move || stopped_as_others_are(Node::without_fast_path(rule), is_known));
        }
    });
}

fn stopped_as_others_are(node: Node, is_known: bool) {
    let mut talks = Talks::new("stackrule", node);
    assert_eq!(talks.stopped(), [""; 0], "{node:?}: before");
    at_node(&talks.fixture, STATEFUL);
    let stopped = talks.stopped();
    assert_eq!(stopped.len(), if is_known { 0 } else { talks.count() }, "{node:?}: {stopped:?}");
    assert_eq!(talks.direct.goes_on(), is_known, "{node:?}: one of no service");
    at_node(&talks.fixture, "delete table inet wall");
    // A segment is sent again after as long as it has waited, at most.
    eventually("all go on", LIMIT, || talks.stopped().is_empty().then_some(()));
    talks.ask("after the rule");
}

/// Without an agent nobody makes the connections known: their streams stand still until the next agent does.
#[test]
fn connections_go_on_when_an_agent_starts_after_a_rule_came_without_one() {
    let mut talks = Talks::new("fastdead", Node::BARE);
    assert_eq!(talks.stopped(), [""; 0], "before");
    talks.agent.kill();
    at_node(&talks.fixture, STATEFUL);
    let mut before = talks.handed_over();
    eventually("the permission expires", LIMIT, || {
        // Longer than from one line to the next.
        std::thread::sleep(Duration::from_millis(500));
        let now = talks.handed_over();
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
    talks.agent.restart().unwrap();
    // A segment is sent again after as long as it has waited, at most.
    eventually("the streams go on", LIMIT, || talks.stopped().is_empty().then_some(()));
    assert_eq!(talks.handed_over(), before, "nothing passes the rule by");
}
