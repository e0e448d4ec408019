//! Direct server return with a real API server: whose outer headers are opened follows the Node objects.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Service};
use lb_tests::cluster::{Hosted, SETTLE_LIMIT};
use lb_tests::fixture::serve;
use lb_tests::peers::{Server, Stream, eventually};
use lb_tests::topology::{Node, NodeOptions, Outside, Pod, Topology};

const VIPS: [&str; 2] = ["203.0.113.80", "2001:db8:113::80"];

/// Two nodes; the client asks by way of the first, the backend is on the second. Fields in the order in which they must end.
struct Scenario {
    agents: Vec<Agent>,
    cluster: Hosted,
    _servers: Vec<Server>,
    backend: Pod,
    client: Outside,
    nodes: [Node; 2],
    _topology: Topology,
}

impl Scenario {
    fn new() -> Self {
        let topology = Topology::new("kube-peers").unwrap();
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        nodes[0].route_to(&nodes[1]).unwrap();
        nodes[1].route_to(&nodes[0]).unwrap();
        let backend = nodes[1].pod("backend").unwrap();
        let client = topology.outside("client", &nodes[0]).unwrap();
        for vip in VIPS {
            let to: IpAddr = vip.parse().unwrap();
            let by = nodes[0].addresses().like(to);
            client.namespace().ip(&format!("route replace {vip} via {by}")).unwrap();
        }
        let cluster = Hosted::start(&topology.outside("api", &nodes[0]).unwrap()).unwrap();
        for node in &nodes {
            cluster.create_node(node).unwrap();
        }
        let agents = nodes.iter().map(|node| {
            let mut agent = cluster.agent(node, &["--allowed-annotations=mode"]).unwrap();
            agent.restart().unwrap();
            agent
        });
        let agents = agents.collect();
        let servers = serve(&backend, "backend");
        Self { agents, cluster, _servers: servers, backend, client, nodes, _topology: topology }
    }

    fn service(&self, mode: &str) -> Manifest {
        let endpoint = Endpoint::ready(self.backend.addresses()).on(&self.nodes[1].node_name());
        let external =
            External { load_balancer_ips: VIPS.map(|vip| vip.parse().unwrap()).to_vec(), ..External::default() };
        Manifest::of([Service::web(vec![endpoint]).with(external).annotated("mode", mode)])
    }

    /// A new connection, and whom the backend sees.
    fn ask(&self, vip: &str) -> std::io::Result<bool> {
        let to = SocketAddr::new(vip.parse().unwrap(), 80);
        let mut stream = Stream::connect_from(self.client.netns(), 0, to, Duration::from_secs(1))?;
        Ok(stream.ask("who")?.peer == stream.local()?)
    }

    /// How many agents ask for all nodes of the cluster.
    fn askers(&self) -> usize {
        let asks = |agent: &&Agent| {
            let status = agent.json(&["status"]).unwrap();
            status["agent"]["source"]["ageSeconds"].get("peers").is_some()
        };
        self.agents.iter().filter(asks).count()
    }

    fn served_whole(&self, what: &str) {
        for vip in VIPS {
            eventually(what, SETTLE_LIMIT, || self.ask(vip).ok().filter(|is_own| *is_own));
        }
    }
}

#[test]
fn outer_headers_are_opened_for_nodes_of_the_cluster() {
    let mut scenario = Scenario::new();
    scenario.cluster.create(&scenario.service("snat")).unwrap();
    for vip in VIPS {
        eventually("masqueraded", SETTLE_LIMIT, || scenario.ask(vip).ok().filter(|is_own| !is_own));
    }
    assert_eq!(scenario.askers(), 0, "nobody asks for all nodes of the cluster without need");

    scenario.cluster.create(&scenario.service("dsr")).unwrap();
    scenario.served_whole("whole, with no --dsr-peers");
    assert_eq!(scenario.askers(), 2);
    assert!(scenario.agents[0].counted(Outcome::Tunnelled).unwrap() > 0);

    scenario.cluster.delete_node(&scenario.nodes[0]).unwrap();
    eventually("who is no node any more is not served", SETTLE_LIMIT, || {
        VIPS.iter().all(|vip| scenario.ask(vip).is_err()).then_some(())
    });
    assert!(scenario.agents[1].counted(Outcome::DroppedNoPeer).unwrap() > 0);
    scenario.cluster.create_node(&scenario.nodes[0]).unwrap();
    scenario.served_whole("a node again");

    // The agent starts anew, and the API tells it nothing.
    scenario.cluster.stop();
    scenario.agents[1].launch().unwrap();
    eventually("it runs", SETTLE_LIMIT, || {
        let status = scenario.agents[1].json(&["status"]).ok()?;
        status["agent"]["source"].is_object().then_some(())
    });
    for vip in VIPS.into_iter().cycle().take(30) {
        assert!(scenario.ask(vip).unwrap(), "{vip}: what was known before stays");
    }
    scenario.cluster.restart().unwrap();

    scenario.cluster.create(&scenario.service("snat")).unwrap();
    eventually("nobody asks for all nodes any more", SETTLE_LIMIT, || (scenario.askers() == 0).then_some(()));
}
