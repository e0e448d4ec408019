//! The first start on a node that another proxy serves: its connections live on, also without its rules. Needs root, BPF and `nft`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use lb_common::outcome::Outcome;
use lb_takeover::conntrack::nat_hooks;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NodeOptions, Outside};

const NODE_PORT: u16 = 30_080;
const PROCESS: &str = "process";

/// A node whose services another proxy has served so far, by NAT alone.
struct Node {
    outside: Outside,
    fixture: Fixture,
    service: Service,
}

impl Node {
    fn new(subject: &str, pods: Pods) -> Self {
        Self::with_backends(subject, pods, 1)
    }

    fn with_backends(subject: &str, pods: Pods, backends: usize) -> Self {
        let fixture = Fixture::new(subject, pods, backends, NodeOptions::default());
        let outside = fixture.topology.outside("client", &fixture.node).unwrap();
        let mut service = fixture.web();
        service.external.node_ports = vec![NODE_PORT];
        let node = Self { outside, fixture, service };
        node.proxy();
        node
    }

    /// DNAT of packets from pods, processes and external clients, as kube-proxy has it.
    fn proxy(&self) {
        let node_ports = self.fixture.node.addresses().both().map(|address| SocketAddr::new(address, NODE_PORT));
        let frontends = self.service.frontends(Protocol::Tcp).into_iter().chain(node_ports);
        let dnat = |to: SocketAddr| {
            let (address, port, family) = (to.ip(), to.port(), if to.is_ipv4() { "ip" } else { "ip6" });
            let backend = SocketAddr::new(self.fixture.backends[0].addresses().like(address), 8080);
            format!("{family} daddr {address} tcp dport {port} dnat {family} to {backend};\n")
        };
        let dns = |to: SocketAddr| dnat(to).replace("tcp dport", "udp dport").replace(":8080", ":5353");
        let of_udp = self.service.frontends(Protocol::Udp).into_iter().map(dns);
        let rules: String = frontends.map(dnat).chain(of_udp).collect();
        let chains = ["prerouting", "output"]
            .map(|hook| format!("chain {hook} {{ type nat hook {hook} priority -100;\n{rules}}}\n"));
        let rules = format!("table inet proxy {{\n{}}}\n", chains.concat());
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = self.fixture.node.netns().start(&mut command).expect("`nft`: install nftables");
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// Connections of a pod, of a process and of an external client, in both families.
    fn connect(&self) -> Vec<(String, Stream)> {
        let near = [("pod", self.fixture.client.netns()), (PROCESS, self.fixture.node.netns())];
        let frontends = self.service.frontends(Protocol::Tcp);
        let near = near.iter().flat_map(|(name, from)| frontends.iter().map(|to| (*name, *from, *to)));
        let addresses = self.fixture.node.addresses().both();
        let far = addresses.map(|address| ("client", self.outside.netns(), SocketAddr::new(address, NODE_PORT)));
        let connect = |(name, from, to)| {
            let stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("{name} to {to}: {error}"));
            (format!("{name} to {to}"), stream)
        };
        near.chain(far).map(connect).collect()
    }

    /// Removes the rules of the proxy, as an operator does.
    fn remove_proxy(&self) {
        let mut command = Command::new("nft");
        command.args(["delete", "table", "inet", "proxy"]);
        assert!(self.fixture.node.netns().run(|| command.status()).unwrap().success());
    }

    fn manifest(&self) -> Manifest {
        Manifest::of([self.service.clone()])
    }

    fn first_start(&self, flags: &[&str]) -> Agent {
        self.fixture.agent(&self.manifest(), flags)
    }
}

/// How many connections are adopted, and how many seconds more the adoption window is open, by `ballast status`; `None`: it is closed.
fn adoption(agent: &Agent) -> (u64, Option<f64>) {
    let status = agent.json(&["status"]).unwrap();
    let shown = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
    let count = status["tables"]["adopted"].as_u64().unwrap();
    assert_eq!(shown.contains("Adopted:"), count > 0, "{status} {shown}");
    (count, status["adoption"]["seconds"].as_f64())
}

fn all_answer(connections: &mut [(String, Stream)], when: &str) {
    for (name, stream) in connections {
        let answer = stream.ask(when).unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
        assert_eq!(answer.server, "b0", "{when}: {name}");
    }
}

/// With the default flags, with the agent alive, dead and started again, without the rules of the proxy before, and while connections of Ballast
/// itself are evicted.
#[test]
fn connections_of_the_proxy_before_live_on_to_their_end() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let node = Node::new("adopt", pods);
        let mut before = node.connect();
        all_answer(&mut before, "before the first start");
        let mut agent = node.first_start(&["--drain-period=1s", "--drain-max=0s"]);
        all_answer(&mut before, "after the first start");
        let count = before.len() as u64;
        eventually("all are adopted, and the window is closed", SOON, || {
            (adoption(&agent) == (count, None)).then_some(())
        });
        let mut new = node.connect();
        all_answer(&mut new, "new connections");
        let shown = agent.json(&["get", "connections", "-A"]).unwrap();
        let states = shown["items"].as_array().unwrap().iter().map(|item| item["state"].as_str().unwrap());
        let adopted = states.filter(|state| *state == "adopted").count();
        assert_eq!(adopted, before.len(), "{shown}");
        node.remove_proxy();
        all_answer(&mut before, "without the rules of the proxy");
        agent.kill();
        all_answer(&mut before, "while no agent runs");
        agent.restart().unwrap();
        all_answer(&mut before, "after the second start");
        assert_eq!(adoption(&agent), (count, None));
        agent.apply(&Manifest::of([Service { endpoints: vec![], ..node.service.clone() }])).unwrap();
        for (name, stream) in &mut new {
            eventually(&format!("{name} is told that its backend is gone"), SOON, || stream.ask("still").err());
        }
        all_answer(&mut before, "beside connections that are evicted");
        let counted = Counters::read(agent.bpffs()).unwrap();
        assert!(counted.get(Outcome::Adopted) >= count, "{pods:?}");
        assert_eq!(counted.get(Outcome::RefusedNoFlow), 0, "{pods:?}");
        for (name, stream) in before {
            stream.end().unwrap_or_else(|error| panic!("{name} does not end in order: {error}"));
        }
    }
}

/// A client uses the ports of connections that have ended for new ones at once, and again while conntrack remembers them.
#[test]
fn the_ports_of_an_ended_connection_serve_a_new_one() {
    const PORT: u16 = 41_000;
    let node = Node::new("again", Pods::Routed);
    let client = node.fixture.client.netns();
    let frontends = node.service.frontends(Protocol::Tcp);
    let connect = |at: &SocketAddr| Stream::connect_from(client, PORT, *at, SOON);
    let before: Vec<Stream> = frontends.iter().map(|at| connect(at).unwrap()).collect();
    let agent = node.first_start(&[]);
    eventually("all are adopted", SOON, || (adoption(&agent) == (before.len() as u64, None)).then_some(()));
    node.remove_proxy();
    // A reset leaves no TIME-WAIT behind in the client, which would keep the port.
    for stream in before {
        stream.reset().unwrap();
    }
    for _ in 0..2 {
        for at in &frontends {
            let mut stream = connect(at).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(stream.ask("anew").unwrap().server, "b0", "{at}");
            stream.reset().unwrap();
        }
    }
    eventually("conntrack forgets them", SOON, || (adoption(&agent).0 == 0).then_some(()));
    let is_kept = || node.fixture.node.netns().run(nat_hooks::is_kept).unwrap();
    eventually("NAT is not kept any more", SOON, || (!is_kept()).then_some(()));
}

/// A client of UDP that sends on from one port is not kept at a backend that has left the service.
#[test]
fn udp_leaves_a_backend_that_is_gone() {
    let node = Node::with_backends("udp", Pods::Routed, 2);
    let client = node.fixture.client.netns();
    let connect = |to: &SocketAddr| Datagrams::connected(client, 0, *to).unwrap();
    let sockets: Vec<Datagrams> = node.service.frontends(Protocol::Udp).iter().map(connect).collect();
    let servers =
        |text: &str| sockets.iter().map(|socket| Some(socket.ask(text).ok()?.server)).collect::<Option<Vec<_>>>();
    assert_eq!(servers("before").unwrap(), ["b0", "b0"]);
    let agent = node.first_start(&[]);
    eventually("all are adopted", SOON, || (adoption(&agent) == (sockets.len() as u64, None)).then_some(()));
    node.remove_proxy();
    assert_eq!(servers("adopted").unwrap(), ["b0", "b0"]);
    let mut left = node.service.clone();
    left.endpoints.remove(0);
    agent.apply(&Manifest::of([left])).unwrap();
    eventually("both go to the other backend", SOON, || (servers("after")? == ["b1", "b1"]).then_some(()));
    assert_eq!(adoption(&agent), (0, None));
}

#[test]
fn without_a_window_nothing_is_adopted_and_no_later_start_opens_it() {
    let node = Node::new("window", Pods::Routed);
    let (mut before, mut idle) = (node.connect(), node.connect());
    all_answer(&mut idle, "before the first start");
    // The NAT of what a process sends comes before all programs, and what comes to an address of the node is left to the node's NAT.
    before.retain(|(name, _)| name.starts_with("pod"));
    let (mut kept, mut idle): (Vec<_>, Vec<_>) = idle.into_iter().partition(|(name, _)| !name.starts_with("pod"));
    let mut agent = node.first_start(&["--adoption-window", "0s"]);
    for (name, stream) in &mut before {
        let error = stream.ask("still there").expect_err("nothing is adopted");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{name}: {error}");
    }
    all_answer(&mut kept, "without a window");
    assert_eq!(adoption(&agent), (0, None));
    agent.kill();
    let mut next = Agent::prepare(&node.fixture.node, &["--adoption-window", "24h"]).unwrap();
    next.write(&node.manifest()).unwrap();
    next.restart().unwrap();
    for (name, stream) in &mut idle {
        let error = stream.ask("after the second start").expect_err("it is not the first start");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{name}: {error}");
    }
    all_answer(&mut kept, "after the second start");
    next.kill();
    std::mem::forget(next); // The first one cleans up.
}
