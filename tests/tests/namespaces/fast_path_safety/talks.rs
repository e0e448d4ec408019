//! Conversations of a client, on the fast path or by the stack: pushes of servers, half-closed streams, requests, datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, Manifest, Port, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods, serve_at};
use lb_tests::incident::Counters;
use lb_tests::peers::{Answer, Datagrams, Pusher, Server, Stream, eventually, pushed_now};
use lb_tests::topology::{NetNs, NodeOptions, Outside};

use super::{LIMIT, Node, at_node};

/// A conversation in which the backend speaks by itself.
pub enum Talk {
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
    pub fn goes_on(&mut self) -> bool {
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

/// A client with conversations: with a pod of its node, and with a host beyond it. They take the fast path, unless it is off. Fields in the order in which they must end.
pub struct Talks {
    pub agent: Agent,
    /// What each is, and itself.
    pushed: Vec<(String, Talk)>,
    asking: Vec<Stream>,
    /// Of no service, always by the stack.
    pub direct: Talk,
    _servers: Vec<Server>,
    _pushers: Vec<Pusher>,
    _far: Outside,
    pub fixture: Fixture,
}

impl Talks {
    pub fn new(subject: &str, node: Node) -> Self {
        let options = NodeOptions { scene: node.scene, ..NodeOptions::default() };
        let fixture = Fixture::new(subject, Pods::Routed, 1, options);
        at_node(&fixture, node.rule);
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
        let agent = fixture.agent(&Manifest::of(services.clone()), node.flags);
        let servers = serve_at(far.netns(), far.ips(), "far");
        let client = fixture.client.netns();
        let (mut asking, mut pushed) = (Vec::new(), Vec::new());
        for to in services.iter().flat_map(|service| service.frontends(Protocol::Tcp)[..2].to_vec()) {
            // Once one is on the fast path, all are that begin later.
            asking.push(eventually("a connection takes the fast path", LIMIT, || {
                let before = agent.counted(Outcome::FastPath).unwrap();
                let mut stream = Stream::connect(client, to).unwrap();
                stream.ask("hello").unwrap();
                let is_fast = agent.counted(Outcome::FastPath).unwrap() >= before + 4;
                (is_fast || !node.is_fast()).then_some(stream)
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

    pub fn count(&self) -> usize {
        self.pushed.len()
    }

    /// Which stand still.
    pub fn stopped(&mut self) -> Vec<String> {
        std::thread::scope(|scope| {
            let all =
                self.pushed.iter_mut().map(|(what, talk)| scope.spawn(|| (!talk.goes_on()).then(|| what.clone())));
            let all: Vec<_> = all.collect();
            all.into_iter().filter_map(|talk| talk.join().unwrap()).collect()
        })
    }

    pub fn handed_over(&self) -> u64 {
        Counters::read(self.agent.bpffs()).unwrap().get(Outcome::FastPath)
    }

    pub fn ask(&mut self, what: &str) {
        for stream in &mut self.asking {
            let answer = stream.ask("on?").unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(answer.peer, stream.local().unwrap(), "{what}: the client's own address");
        }
    }

    pub fn until(&self, open: bool) {
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
