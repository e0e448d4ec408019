//! The first start on a node that another proxy serves: its connections live on while its NAT does. Needs root, BPF and `nft`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Stream, eventually};
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
        let fixture = Fixture::new(subject, pods, 1, NodeOptions::default());
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
        let rules: String = frontends.map(dnat).collect();
        let chains = ["prerouting", "output"]
            .map(|hook| format!("chain {hook} {{ type nat hook {hook} priority -100;\n{rules}}}\n"));
        let rules = format!("table inet proxy {{\n{}}}\n", chains.concat());
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = self.fixture.node.place().start(&mut command).expect("`nft`: install nftables");
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// Connections of a pod, of a process and of an external client, in both families.
    fn connect(&self) -> Vec<(String, Stream)> {
        let near = [("pod", self.fixture.client.place()), (PROCESS, self.fixture.node.place())];
        let frontends = self.service.frontends(Protocol::Tcp);
        let near = near.iter().flat_map(|(name, from)| frontends.iter().map(|to| (*name, *from, *to)));
        let addresses = self.fixture.node.addresses().both();
        let far = addresses.map(|address| ("client", self.outside.place(), SocketAddr::new(address, NODE_PORT)));
        let connect = |(name, from, to)| {
            let stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("{name} to {to}: {error}"));
            (format!("{name} to {to}"), stream)
        };
        near.chain(far).map(connect).collect()
    }

    fn manifest(&self) -> Manifest {
        Manifest::of([self.service.clone()])
    }

    fn first_start(&self, flags: &[&str]) -> Agent {
        self.fixture.agent(&self.manifest(), flags)
    }
}

/// How many seconds more the window is open, by `ballast status`; `None`: it is not.
fn window(agent: &Agent) -> Option<f64> {
    let status = agent.json(&["status"]).unwrap();
    let shown = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
    let (until, left) = (status["adoption"]["until"].as_str(), status["adoption"]["seconds"].as_f64());
    assert_eq!((until.is_some(), shown.contains("Adoption:")), (left.is_some(), left.is_some()), "{status} {shown}");
    left
}

fn all_answer(connections: &mut [(String, Stream)], when: &str) {
    for (name, stream) in connections {
        let answer = stream.ask(when).unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
        assert_eq!(answer.server, "b0", "{when}: {name}");
    }
}

/// With the default flags, with the agent alive, dead and started again, and while connections of Ballast itself are evicted.
#[test]
fn connections_of_the_proxy_before_live_on_to_their_end() {
    for pods in [Pods::Routed, Pods::Bridged] {
        let node = Node::new("adopt", pods);
        let mut before = node.connect();
        all_answer(&mut before, "before the first start");
        let mut agent = node.first_start(&["--drain-period=1s", "--drain-max=0s"]);
        all_answer(&mut before, "after the first start");
        let counted = Counters::read(agent.bpffs()).unwrap();
        assert!(counted.get(Outcome::PassedAdoption) >= 4, "{pods:?}");
        assert_eq!(counted.get(Outcome::RefusedNoFlow), 0, "{pods:?}");
        let left = window(&agent).expect("the window is open");
        assert!((1.0..=600.0).contains(&left), "{left}");
        let mut new = node.connect();
        all_answer(&mut new, "new connections");
        let shown = agent.json(&["get", "connections", "-A"]).unwrap();
        assert!(shown["items"].as_array().is_some_and(|items| items.len() >= 4), "Ballast serves them: {shown}");
        agent.kill();
        assert!(window(&agent).is_some_and(|later| later < left), "it runs on without an agent");
        all_answer(&mut before, "while no agent runs");
        agent.restart().unwrap();
        all_answer(&mut before, "after the second start");
        agent.apply(&Manifest::of([Service { endpoints: vec![], ..node.service.clone() }])).unwrap();
        for (name, stream) in &mut new {
            eventually(&format!("{name} is told that its backend is gone"), SOON, || stream.ask("still").err());
        }
        all_answer(&mut before, "beside connections that are evicted");
        for (name, stream) in before {
            stream.end().unwrap_or_else(|error| panic!("{name} does not end in order: {error}"));
        }
    }
}

#[test]
fn a_window_ends_and_no_later_start_opens_it_again() {
    let node = Node::new("window", Pods::Routed);
    let (mut before, mut idle) = (node.connect(), node.connect());
    all_answer(&mut idle, "before the first start");
    // The NAT of what a process sends comes before all programs.
    before.retain(|(name, _)| !name.starts_with(PROCESS));
    idle.retain(|(name, _)| !name.starts_with(PROCESS));
    let mut agent = node.first_start(&["--adoption-window", "3s"]);
    for (name, stream) in &mut before {
        let error = eventually(&format!("{name} is refused"), SOON, || {
            std::thread::sleep(Duration::from_millis(50));
            stream.ask("still there").err()
        });
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{name}: {error}");
    }
    assert_eq!(window(&agent), None, "it is over");
    agent.kill();
    let mut next = Agent::prepare(&node.fixture.node, &["--adoption-window", "24h"]).unwrap();
    next.write(&node.manifest()).unwrap();
    next.restart().unwrap();
    for (name, stream) in &mut idle {
        let error = stream.ask("after the second start").expect_err("the window is over");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{name}: {error}");
    }
    next.kill();
    std::mem::forget(next); // The first one cleans up.
}
