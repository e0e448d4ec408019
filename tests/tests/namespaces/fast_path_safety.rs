//! The fast path fails safe: it ends soon after the agent, and a packet from a forged address takes the stack, whose filters stop it. When it closes,
//! connection tracking knows its connections.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, Manifest, Port, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods, serve_at};
use lb_tests::incident::Counters;
use lb_tests::incident::forger::{Forger, datagram};
use lb_tests::incident::raw_tcp::{ACK, RawTcp, Segment};
use lb_tests::peers::{Answer, Datagrams, Pusher, Server, Stream, eventually, pushed_now};
use lb_tests::scene::Scene;
use lb_tests::topology::{NetNs, NodeOptions, Outside};

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

/// A conversation in which the backend speaks by itself.
enum Talk {
    Tcp(Stream),
    Udp(Datagrams),
}

impl Talk {
    fn receive(&mut self) -> std::io::Result<Answer> {
        match self {
            Self::Tcp(stream) => stream.receive(),
            Self::Udp(socket) => socket.receive().map(|(_, answer)| answer),
        }
    }

    /// Whether something arrives that is sent from now on.
    fn goes_on(&mut self) -> bool {
        let now = pushed_now();
        loop {
            match self.receive() {
                Ok(answer) if answer.text.parse::<u128>().unwrap() >= now => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Where pushers are, and where those are that answer.
const PUSHED: [Port; 3] = [
    Port { name: "http", protocol: Protocol::Tcp, port: 80, target: 8080 },
    Port { name: "lines", protocol: Protocol::Tcp, port: 90, target: 9090 },
    Port { name: "datagrams", protocol: Protocol::Udp, port: 90, target: 9090 },
];

/// A client with conversations on the fast path: with a pod of its node, and with a host beyond it. Fields in the order in which they must end.
struct Talks {
    agent: Agent,
    /// What each is, and itself.
    pushed: Vec<(String, Talk)>,
    asking: Vec<Stream>,
    /// Of no service, by the stack.
    direct: Talk,
    _servers: Vec<Server>,
    _pushers: Vec<Pusher>,
    _far: Outside,
    fixture: Fixture,
}

impl Talks {
    fn new(subject: &str, scene: Scene) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions { scene, ..NodeOptions::default() });
        let far = fixture.topology.outside("far", &fixture.node).unwrap();
        let (mut pushers, near) = (Vec::new(), fixture.backends[0].netns());
        for (netns, ips) in [(near, fixture.backends[0].ips()), (far.netns(), far.ips())] {
            for at in ips.into_iter().map(|ip| SocketAddr::new(ip, 9090)) {
                pushers.push(Pusher::tcp(netns, at).unwrap());
                pushers.push(Pusher::udp(netns, at).unwrap());
            }
        }
        let service = |name, last, endpoints| {
            let ports = PUSHED.to_vec();
            Service { ports, ..Service::standard(name, last, endpoints) }
        };
        let services = [
            service("near", 20, fixture.endpoints()),
            service("far", 21, vec![Endpoint::ready(far.addresses()).on("elsewhere")]),
        ];
        let agent = fixture.agent(&Manifest::of(services.clone()), &[]);
        let servers = serve_at(far.netns(), far.ips(), "far");
        let client = fixture.client.netns();
        let (mut asking, mut pushed) = (Vec::new(), Vec::new());
        for to in services.iter().flat_map(|service| service.frontends(Protocol::Tcp)[..2].to_vec()) {
            // Once one is on the fast path, all are that begin later.
            asking.push(eventually("a connection takes the fast path", LIMIT, || {
                let before = agent.counted(Outcome::FastPath).unwrap();
                let mut stream = Stream::connect(client, to).unwrap();
                stream.ask("hello").unwrap();
                (agent.counted(Outcome::FastPath).unwrap() >= before + 4).then_some(stream)
            }));
        }
        for service in &services {
            for to in &service.frontends(Protocol::Tcp)[2..] {
                for half_closed in [false, true] {
                    let mut stream = Stream::connect(client, *to).unwrap();
                    stream.receive().unwrap();
                    if half_closed {
                        stream.half_close().unwrap();
                    }
                    pushed.push((format!("{to} half closed: {half_closed}"), Talk::Tcp(stream)));
                }
            }
            pushed.extend(
                service
                    .frontends(Protocol::Udp)
                    .into_iter()
                    .map(|to| (format!("udp {to}"), Talk::Udp(begun(client, to)))),
            );
        }
        let direct = begun(client, SocketAddr::new(fixture.backends[0].ips()[0], 9090));
        direct.set_patience(Duration::from_secs(1)).unwrap();
        let direct = Talk::Udp(direct);
        Self { agent, pushed, asking, direct, _servers: servers, _pushers: pushers, _far: far, fixture }
    }

    /// Which stand still.
    fn stopped(&mut self) -> Vec<String> {
        let stopped = self.pushed.iter_mut().filter_map(|(what, talk)| (!talk.goes_on()).then(|| what.clone()));
        stopped.collect()
    }

    fn handed_over(&self) -> u64 {
        Counters::read(self.agent.bpffs()).unwrap().get(Outcome::FastPath)
    }

    fn ask(&mut self, what: &str) {
        for stream in &mut self.asking {
            let answer = stream.ask("on?").unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(answer.peer, stream.local().unwrap(), "{what}: the client's own address");
        }
    }

    fn until(&self, open: bool) {
        eventually("the fast path is switched", LIMIT, || {
            (self.agent.json(&["status"]).unwrap()["agent"]["datapath"]["fastPath"]["open"] == open).then_some(())
        });
    }
}

/// A conversation over UDP that its client has begun, and the backend goes on with.
fn begun(client: &NetNs, to: SocketAddr) -> Datagrams {
    let socket = Datagrams::connected(client, 0, to).unwrap();
    socket.send_at(to, "begin").unwrap();
    socket.receive().unwrap();
    socket
}

/// Only what is known goes on.
const STATEFUL: &str = "add table inet wall; \
    add chain inet wall forward { type filter hook forward priority 0; policy drop; }; \
    add rule inet wall forward ct state established,related accept";
/// All that leaves this node gets another source port.
const MASQUERADE: &str = "add table inet wall; \
    add chain inet wall after { type nat hook postrouting priority 100; }; \
    add rule inet wall after oifname eth0 masquerade fully-random";

#[test]
fn connections_live_when_a_rule_closes_the_fast_path() {
    std::thread::scope(|scope| {
        for (scene, rule) in [(Scene::Bare, STATEFUL), (Scene::Kubelet, STATEFUL), (Scene::Bare, MASQUERADE)] {
            scope.spawn(move || live_when_it_closes(scene, rule));
        }
    });
}

fn live_when_it_closes(scene: Scene, rule: &str) {
    let mut talks = Talks::new("fastclose", scene);
    let what = format!("{}: {rule}", scene.name());
    talks.until(true);
    assert_eq!(talks.stopped(), [""; 0], "{what}: before");
    at_node(&talks.fixture, rule);
    talks.until(false);
    let before = talks.handed_over();
    assert_eq!(talks.stopped(), [""; 0], "{what}");
    talks.ask(&what);
    assert_eq!(talks.handed_over(), before, "{what}: nothing passes the rule by");
    if (scene, rule) == (Scene::Bare, STATEFUL) {
        assert!(!talks.direct.goes_on(), "{what}: the rule stops what is not known");
    }
}

/// Without an agent nobody makes the connections known: their streams stand still until the next agent does.
#[test]
fn connections_go_on_when_an_agent_starts_after_a_rule_came_without_one() {
    let mut talks = Talks::new("fastdead", Scene::Bare);
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
