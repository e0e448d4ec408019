//! Two nodes with a pod that serves and a client pod on each, an external client, and connections through all of it that must outlive the change of
//! the proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::agent::{Endpoint, External, Manifest, Protocol, Service};
use crate::cluster::Hosted;
use crate::fixture::serve;
use crate::peers::{Datagrams, Server, Stream};
use crate::topology::{NetNs, Node, NodeOptions, Outside, Pod, Topology};

const NODE_PORTS: [u16; 2] = [30_080, 30_053];
/// Pause between two questions of a client on all its connections.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a datagram is sent until its flow counts as lost.
const UDP_ATTEMPTS: u32 = 3;
const UDP_PATIENCE: Duration = Duration::from_secs(1);

/// Fields in the order in which they must end.
pub struct Crossing {
    _servers: Vec<Vec<Server>>,
    clients: [Pod; 2],
    backends: [Pod; 2],
    outside: Outside,
    pub cluster: Hosted,
    pub api: Outside,
    pub nodes: [Node; 2],
    pub topology: Topology,
}

impl Crossing {
    /// The network, and an API with the nodes and the service.
    pub fn new(subject: &str) -> Result<Self> {
        let topology = Topology::new(subject)?;
        let nodes = [topology.node_with(NodeOptions::default())?, topology.node_with(NodeOptions::default())?];
        nodes[0].route_to(&nodes[1])?;
        nodes[1].route_to(&nodes[0])?;
        let clients = [nodes[0].pod("client")?, nodes[1].pod("client")?];
        let backends = [nodes[0].pod("backend")?, nodes[1].pod("backend")?];
        let servers = vec![serve(&backends[0], "b0"), serve(&backends[1], "b1")];
        let (outside, api) = (topology.outside("client", &nodes[0])?, topology.outside("api", &nodes[0])?);
        let cluster = Hosted::start(&api)?;
        let this = Self { _servers: servers, clients, backends, outside, cluster, api, nodes, topology };
        this.cluster.create(&Manifest::of([this.service()]))?;
        this.nodes.iter().try_for_each(|node| this.cluster.create_node(node))?;
        Ok(this)
    }

    /// A cluster IP and node ports, an endpoint on each node.
    pub fn service(&self) -> Service {
        let endpoint = |at: usize| Endpoint::ready(self.backends[at].addresses()).on(&self.nodes[at].node_name());
        let external = External { node_ports: NODE_PORTS.to_vec(), ..External::default() };
        Service::web(vec![endpoint(0), endpoint(1)]).with(external)
    }

    /// Who asks where: pods of both nodes and a process of each, cluster IPs; an external client, node ports of both nodes.
    fn ways(&self, protocol: Protocol) -> Vec<(String, NetNs, SocketAddr)> {
        let service = self.service();
        let mut ways = Vec::new();
        for (at, (client, node)) in self.clients.iter().zip(&self.nodes).enumerate() {
            for to in service.frontends(protocol) {
                ways.push((format!("pod {at}"), client.netns().clone(), to));
                ways.push((format!("process {at}"), node.netns().clone(), to));
            }
            let port = NODE_PORTS[usize::from(protocol == Protocol::Udp)];
            for address in node.ips() {
                ways.push((
                    format!("external client by node {at}"),
                    self.outside.netns().clone(),
                    (address, port).into(),
                ));
            }
        }
        ways
    }

    /// New connections, `each` of TCP on every way, and one UDP flow. All of them answer.
    pub fn connect(&self, each: usize) -> Result<Connections> {
        let mut all = Connections { tcp: Vec::new(), udp: Vec::new() };
        for (name, netns, to) in self.ways(Protocol::Tcp) {
            for _ in 0..each {
                let mut stream = Stream::connect(&netns, to).with_context(|| format!("{name} to {to}"))?;
                let server = stream.ask("first").with_context(|| format!("{name} to {to}"))?.server;
                all.tcp.push((format!("{name} to {to}"), server, stream));
            }
        }
        // A host process is translated at its connect, once for all.
        for (name, netns, to) in self.ways(Protocol::Udp).into_iter().filter(|(name, ..)| !name.starts_with("process"))
        {
            let socket = Datagrams::connected(&netns, 0, to)?;
            socket.set_patience(UDP_PATIENCE)?;
            let server = ask(&socket, "first").with_context(|| format!("{name} to {to} by UDP"))?.server;
            all.udp.push((format!("{name} to {to} by UDP"), server, socket));
        }
        Ok(all)
    }
}

fn ask(socket: &Datagrams, text: &str) -> std::io::Result<crate::peers::Answer> {
    let mut answer = socket.ask(text);
    for _ in 1..UDP_ATTEMPTS {
        if answer.is_ok() {
            break;
        }
        answer = socket.ask(text);
    }
    answer
}

/// Connections, each with the server that it has.
pub struct Connections {
    tcp: Vec<(String, String, Stream)>,
    udp: Vec<(String, String, Datagrams)>,
}

impl Connections {
    pub fn count(&self) -> usize {
        self.tcp.len() + self.udp.len()
    }

    /// Asks on all of them again and again. Returns what became of those that were lost, and how long the longest answer took.
    pub fn ask_until(&mut self, stop: &AtomicBool) -> (Vec<String>, Duration) {
        let (mut lost, mut longest, mut rounds) = (Vec::new(), Duration::ZERO, 0_u64);
        while !stop.load(Ordering::Relaxed) {
            rounds += 1;
            let round = self.ask_once(&format!("round {rounds}"));
            lost.extend(round.0);
            longest = longest.max(round.1);
            std::thread::sleep(PAUSE);
        }
        (lost, longest)
    }

    /// Asks once on all of them. Those that are lost are not asked again.
    pub fn ask_once(&mut self, text: &str) -> (Vec<String>, Duration) {
        let (mut lost, mut longest) = (Vec::new(), Duration::ZERO);
        let mut judge = |name: &str, server: &str, asked: Instant, answer: std::io::Result<crate::peers::Answer>| {
            longest = longest.max(asked.elapsed());
            let what = match answer {
                Ok(answer) if answer.server == server => return true,
                Ok(answer) => format!("{name}: {} answers and not {server}", answer.server),
                Err(error) => format!("{name}, {server}: {error}"),
            };
            lost.push(what);
            false
        };
        self.tcp.retain_mut(|(name, server, stream)| {
            let asked = Instant::now();
            let answer = stream.ask(text);
            judge(name, server, asked, answer)
        });
        self.udp.retain_mut(|(name, server, socket)| {
            let asked = Instant::now();
            let answer = ask(socket, text);
            judge(name, server, asked, answer)
        });
        (lost, longest)
    }
}
