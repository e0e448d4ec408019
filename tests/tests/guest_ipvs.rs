//! A node goes from IPVS, as kube-proxy uses it, to Ballast, and none of its connections is lost. Needs a kernel with IPVS.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::outcome::Outcome;
use lb_takeover::conntrack::{Conntrack, Family, status};
use lb_tests::agent::{Agent, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions, Outside};

const NODE_PORT: u16 = 30_080;
/// Connections from each place to each frontend: one of each is idle.
const EACH: usize = 3;
/// As `kube-proxy --proxy-mode=ipvs` sets them.
const SYSCTLS: [(&str, &str); 3] = [("conntrack", "1"), ("expire_nodest_conn", "1"), ("conn_reuse_mode", "0")];
/// Pause of the busy connections between two rounds of questions: a guest has one processor, and the agent needs it, too.
const PACE: Duration = Duration::from_millis(100);
/// IPVS forgets a connection of which it has seen no packet for so long.
const FORGETS: Duration = Duration::from_secs(20);
/// A guest is slow.
const PATIENCE: Duration = Duration::from_mins(1);

struct Node {
    service: Service,
    client: Outside,
    fixture: Fixture,
}

/// A connected socket, and the server that answered first.
struct Connection {
    name: String,
    socket: Socket,
    server: String,
    /// A datagram stayed unanswered.
    has_lost: bool,
}

enum Socket {
    Tcp(Stream),
    Udp(Datagrams),
}

impl Connection {
    fn ask(&mut self, text: &str) -> Result<()> {
        let answer = match &mut self.socket {
            Socket::Tcp(stream) => stream.ask(text)?,
            // While the connection is held, a datagram is lost: one of each, which the client sends again.
            Socket::Udp(socket) => match socket.ask(text) {
                Err(_) if !self.has_lost => {
                    self.has_lost = true;
                    socket.ask(text)?
                }
                answer => answer?,
            },
        };
        ensure!(self.server.is_empty() || answer.server == self.server, "{} moved to {}", self.server, answer.server);
        self.server = answer.server;
        Ok(())
    }
}

fn ask_all(connections: &mut [Connection], when: &str) -> Result<()> {
    connections.iter_mut().try_for_each(|one| one.ask(when).with_context(|| format!("{when}: {}", one.name)))
}

/// Those that may be silent: a client of UDP is forgotten within 30 s, and its next datagram may go to another backend.
fn of_tcp(connections: Vec<Connection>) -> Vec<Connection> {
    connections.into_iter().filter(|one| matches!(one.socket, Socket::Tcp(_))).collect()
}

impl Node {
    fn new() -> Result<Self> {
        let fixture = Fixture::new("ipvs", Pods::Routed, 2, NodeOptions::default());
        let client = fixture.topology.outside("client", &fixture.node)?;
        let mut service = fixture.web();
        service.external.node_ports = vec![NODE_PORT];
        let node = Self { service, client, fixture };
        node.serve_by_ipvs()?;
        Ok(node)
    }

    fn run(&self, program: &str, arguments: &str) -> Result<String> {
        let mut command = Command::new(program);
        let output = self.netns().run(|| command.args(arguments.split_whitespace()).output())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "{program} {arguments}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    fn netns(&self) -> &NetNs {
        self.fixture.node.netns()
    }

    fn node_ports(&self) -> Vec<SocketAddr> {
        self.fixture.node.ips().into_iter().map(|address| SocketAddr::new(address, NODE_PORT)).collect()
    }

    /// Virtual services, the link with their addresses, and masquerade, as kube-proxy makes them.
    fn serve_by_ipvs(&self) -> Result<()> {
        for (name, value) in SYSCTLS {
            let path = format!("/proc/sys/net/ipv4/vs/{name}");
            self.netns().run(|| std::fs::write(&path, value)).context(path)?;
        }
        self.run("ip", "link add kube-ipvs0 type dummy")?;
        let (tcp, udp) = (self.service.frontends(Protocol::Tcp), self.service.frontends(Protocol::Udp));
        for to in &tcp {
            let length = if to.is_ipv4() { 32 } else { 128 };
            self.run("ip", &format!("address add {}/{length} dev kube-ipvs0 nodad", to.ip()))?;
        }
        let all = tcp.into_iter().chain(self.node_ports()).map(|to| (to, "-t", 8080));
        for (to, protocol, port) in all.chain(udp.into_iter().map(|to| (to, "-u", 5353))) {
            self.run("ipvsadm", &format!("-A {protocol} {to} -s rr"))?;
            for pod in &self.fixture.backends {
                let backend = SocketAddr::new(pod.addresses().like(to.ip()), port);
                self.run("ipvsadm", &format!("-a {protocol} {to} -r {backend} -m"))?;
            }
        }
        let pod_nets = |v4: bool| {
            let nets = self.fixture.node.pod_nets();
            nets.into_iter().filter(|net| net.contains(':') != v4).collect::<Vec<_>>().join(", ")
        };
        let rules = ["ip", "ip6"].map(|family| {
            let nets = pod_nets(family == "ip");
            format!("{family} saddr != {{ {nets} }} {family} daddr {{ {nets} }} masquerade fully-random;")
        });
        let rules = rules.join("\n");
        let file = self.fixture.node.run_dir().join("masquerade.nft");
        let table = "table inet proxy { chain postrouting { type nat hook postrouting priority 100;";
        std::fs::write(&file, format!("{table}\n{rules}\n}}\n}}\n"))?;
        self.run("nft", &format!("-f {}", file.display()))?;
        Ok(())
    }

    /// Of a pod, of a process of the node and of an external client, in both families.
    fn connect(&self, each: usize) -> Result<Vec<Connection>> {
        let near = [("pod", self.fixture.client.netns()), ("process", self.netns())];
        let of = |protocol| self.service.frontends(protocol);
        let frontends = of(Protocol::Tcp).into_iter().zip(of(Protocol::Udp));
        let inside = frontends.flat_map(|(tcp, udp)| near.map(|(name, from)| (name, from, tcp, Some(udp))));
        let external = self.node_ports().into_iter().map(|to| ("client", self.client.netns(), to, None));
        let mut connections = Vec::new();
        for (name, from, tcp, udp) in inside.chain(external) {
            for _ in 0..each {
                let name = |to: SocketAddr| format!("{name} to {to}");
                let stream = Stream::connect(from, tcp).with_context(|| name(tcp))?;
                connections.push(Connection {
                    name: name(tcp),
                    socket: Socket::Tcp(stream),
                    server: String::new(),
                    has_lost: false,
                });
                let Some(udp) = udp else { continue };
                let socket = Datagrams::connected(from, 0, udp).with_context(|| name(udp))?;
                connections.push(Connection {
                    name: name(udp),
                    socket: Socket::Udp(socket),
                    server: String::new(),
                    has_lost: false,
                });
            }
        }
        ask_all(&mut connections, "hello")?;
        Ok(connections)
    }

    /// Conntrack forgets all that is translated: sooner than by its timeouts.
    fn forget(&self) -> Result<()> {
        self.netns().run(|| {
            let mut conntrack = Conntrack::open()?;
            for family in Family::ALL {
                for entry in conntrack.list(family, status::DST_NAT)? {
                    conntrack.delete(&entry.original)?;
                }
            }
            Ok(())
        })
    }
}

/// What `ballast cleanup --kube-proxy` says.
fn clean_up(agent: &Agent) -> Result<String> {
    let output = agent.cli(&["cleanup", "--kube-proxy"])?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

/// How many connections are adopted, and whether the adoption window is closed, by `ballast status`.
fn adopted(agent: &Agent) -> Option<(u64, bool)> {
    let status = agent.json(&["status"]).ok()?;
    let problem = &status["agent"]["adoption"]["problem"];
    assert!(problem.is_null(), "{problem}");
    Some((status["tables"]["adopted"].as_u64()?, status["adoption"].is_null()))
}

/// The busy connections ask every [`PACE`], in a thread of their own, while `work` is done.
fn beside<T>(busy: &mut [Connection], work: impl FnOnce(&dyn Fn()) -> Result<T>) -> Result<T> {
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                ask_all(busy, &format!("round {}", rounds.fetch_add(1, Ordering::Relaxed)))?;
                std::thread::sleep(PACE);
            }
            anyhow::Ok(())
        });
        let goes_on = || {
            let before = rounds.load(Ordering::Relaxed);
            eventually("busy connections go on", PATIENCE, || {
                (rounds.load(Ordering::Relaxed) > before + 2 || worker.is_finished()).then_some(())
            });
        };
        let done = work(&goes_on);
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    })
}

#[test]
fn no_connection_of_ipvs_is_lost() -> Result<()> {
    let node = Node::new()?;
    let mut idle = of_tcp(node.connect(1)?);
    // IPVS forgets those made from here on soon, unless it sees their packets.
    node.run("ipvsadm", &format!("--set {0} {0} {0}", FORGETS.as_secs()))?;
    let mut busy = node.connect(EACH)?;
    let expected = idle.len() + busy.len();
    let listed = node.run("ipvsadm", "-Lnc")?;
    ensure!(listed.lines().filter(|line| line.contains(':')).count() >= expected, "IPVS translates none: {listed}");

    let mut agent = Agent::prepare(&node.fixture.node, &[])?;
    agent.write(&Manifest::of([node.service.clone()]))?;
    let mut new = beside(&mut busy, |goes_on| {
        goes_on();
        agent.restart()?;
        eventually("the connections are adopted", PATIENCE, || {
            let (count, is_closed) = adopted(&agent)?;
            (is_closed && count >= expected as u64).then_some(())
        });
        goes_on();
        let new = of_tcp(node.connect(1).context("new connections beside IPVS")?);
        let done = clean_up(&agent)?;
        ensure!(done.contains("kube-ipvs0") && done.contains("connections need it"), "{done}");
        std::thread::sleep(FORGETS * 2);
        goes_on();
        Ok(new)
    })?;
    ask_all(&mut idle, "after the cleanup")?;
    ask_all(&mut new, "after the cleanup")?;
    node.run("ip", "link show kube-ipvs0").context("connections of the host need its addresses")?;

    agent.kill();
    ask_all(&mut idle, "while no agent runs")?;
    agent.restart()?;
    ask_all(&mut busy, "after a restart")?;
    ask_all(&mut idle, "after a restart")?;
    let counters = Counters::read(agent.bpffs())?;
    for outcome in [Outcome::RefusedNoFlow, Outcome::RefusedUnserved, Outcome::Evicted] {
        ensure!(counters.get(outcome) == 0, "{}: {}", outcome.name(), counters.get(outcome));
    }

    for Connection { name, socket, .. } in idle.into_iter().chain(busy) {
        let Socket::Tcp(stream) = socket else { continue };
        if name.starts_with("client") {
            stream.reset().with_context(|| format!("{name} is reset"))?;
        } else {
            stream.end().with_context(|| format!("{name} does not end in order"))?;
        }
    }
    drop(new);
    node.forget()?;
    let done = clean_up(&agent)?;
    ensure!(node.run("ip", "link show kube-ipvs0").is_err(), "no connection needs it any more: {done}");
    ensure!(node.run("ipvsadm", "-Ln")?.lines().count() <= 3, "no connection needs virtual services: {done}");
    ask_all(&mut node.connect(1)?, "without the link")
}
