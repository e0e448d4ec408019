//! Direct server return: one of three nodes and one of ten backends are lost at once. How many connections of the others break?

use std::net::{IpAddr, SocketAddr};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Service, peers_flag};
use lb_tests::fixture::serve;
use lb_tests::peers::{Server, Stream};
use lb_tests::topology::{Node, NodeOptions, Outside, Pod, Topology};

const VIPS: [&str; 2] = ["203.0.113.80", "2001:db8:113::80"];
/// Of each family.
const CONNECTIONS: usize = 600;
const BACKENDS: usize = 10;

/// Fields in the order in which they must end.
struct Scenario {
    servers: Vec<Vec<Server>>,
    backends: Vec<Pod>,
    client: Outside,
    nodes: Vec<Node>,
    _topology: Topology,
}

impl Scenario {
    fn new() -> Self {
        let topology = Topology::new("dsr-lost").unwrap();
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes: Vec<Node> = (0..3).map(|_| topology.node_with(options).unwrap()).collect();
        for (own, other) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            nodes[own].route_to(&nodes[other]).unwrap();
        }
        let backends: Vec<Pod> =
            (0..BACKENDS).map(|index| nodes[index % 3].pod(&format!("b{index}")).unwrap()).collect();
        let servers = backends.iter().enumerate().map(|(index, pod)| serve(pod, &format!("b{index}"))).collect();
        let client = topology.outside("client", &nodes[0]).unwrap();
        for family in ["ipv4", "ipv6"] {
            // By the whole tuple, as routers do.
            client.namespace().sysctl(&format!("net/{family}/fib_multipath_hash_policy"), "1").unwrap();
        }
        let scenario = Self { servers, backends, client, nodes, _topology: topology };
        scenario.ask_by(&[0, 1, 2]);
        scenario
    }

    /// The router's set: what it spreads the client's connections over.
    fn ask_by(&self, nodes: &[usize]) {
        for vip in VIPS {
            let to: IpAddr = vip.parse().unwrap();
            let hops: Vec<String> =
                nodes.iter().map(|node| format!("nexthop via {}", self.nodes[*node].addresses().like(to))).collect();
            self.client.namespace().ip(&format!("route replace {vip} {}", hops.join(" "))).unwrap();
        }
    }

    /// The service with all backends but one.
    fn manifest(&self, lost: Option<usize>) -> Manifest {
        let left = self.backends.iter().enumerate().filter(|(index, _)| Some(*index) != lost);
        let endpoints =
            left.map(|(index, pod)| Endpoint::ready(pod.addresses()).on(&self.nodes[index % 3].node_name()));
        let external =
            External { load_balancer_ips: VIPS.map(|vip| vip.parse().unwrap()).to_vec(), ..External::default() };
        Manifest::of([Service::web(endpoints.collect()).with(external)])
    }
}

#[test]
fn a_lost_node_and_a_lost_backend_break_few_connections_of_the_others() {
    const LOST_NODE: usize = 1;
    const LOST_BACKEND: usize = 3;
    let mut scenario = Scenario::new();
    let whole = scenario.manifest(None);
    let flags = ["--mode=dsr", &peers_flag(&scenario.nodes)];
    let agents: Vec<Agent> =
        scenario.nodes.iter().map(|node| Agent::start_with(node, &whole, &flags).unwrap()).collect();
    let connect = |index: usize| {
        let to = SocketAddr::new(VIPS[index % 2].parse().unwrap(), 80);
        let mut stream = Stream::connect(scenario.client.netns(), to).unwrap();
        let answer = stream.ask("before").unwrap();
        assert_eq!(answer.peer, stream.local().unwrap(), "the backend sees the client");
        (stream, answer.server)
    };
    let mut streams: Vec<(Stream, String)> = (0..2 * CONNECTIONS).map(connect).collect();
    for (node, agent) in agents.iter().enumerate() {
        assert!(agent.counted(Outcome::Tunnelled).unwrap() > CONNECTIONS as u64 / 4, "node {node} has its share");
    }

    let lost = format!("b{LOST_BACKEND}");
    scenario.servers.remove(LOST_BACKEND).clear();
    let left = scenario.manifest(Some(LOST_BACKEND));
    for agent in &agents {
        agent.apply(&left).unwrap();
    }
    scenario.ask_by(&[0, 2]);
    let others: Vec<&mut (Stream, String)> = streams.iter_mut().filter(|(_, server)| *server != lost).collect();
    let all = others.len();
    assert!(all > CONNECTIONS, "{all}");
    let broken = others.into_iter().filter_map(|(stream, server)| match stream.ask("after") {
        Ok(answer) => {
            assert_eq!(answer.server, *server, "a connection has one backend");
            None
        }
        Err(error) => Some(format!("{server}: {error}")),
    });
    let broken: Vec<String> = broken.collect();
    let moved = agents[0].counted(Outcome::Tunnelled).unwrap() + agents[2].counted(Outcome::Tunnelled).unwrap();
    assert!(moved > 0, "no packet of node {LOST_NODE} was led by Maglev alone");
    assert!(100 * broken.len() <= all, "{} of {all}: {broken:?}", broken.len());
}
