//! The stage of most tests: a node, a client pod, and backend pods that answer on TCP 8080 and UDP 5353.

pub mod checked;

use std::net::SocketAddr;

use crate::agent::{Agent, Endpoint, Manifest, Service};
use crate::peers::Server;
use crate::topology::{Addresses, Node, NodeOptions, Place, Pod, Topology};

/// How pods are connected to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    Routed,
    Bridged,
}

/// Fields in the order in which they must end.
pub struct Stage {
    pub servers: Vec<Vec<Server>>,
    pub client: Pod,
    pub backends: Vec<Pod>,
    pub node: Node,
    pub topology: Topology,
    pods: Pods,
}

impl Stage {
    pub fn new(subject: &str, pods: Pods, backends: usize, options: NodeOptions) -> Self {
        let topology = Topology::new(subject).expect("a topology: needs root");
        let node = topology.node_with(options).expect("a node");
        let client = pod(&node, pods, "client");
        let backends: Vec<Pod> = (0..backends).map(|index| pod(&node, pods, &format!("b{index}"))).collect();
        let servers = backends.iter().enumerate().map(|(index, pod)| serve(pod, &format!("b{index}"))).collect();
        Self { servers, client, backends, node, topology, pods }
    }

    /// Another pod, made now.
    pub fn pod(&self, name: &str) -> Pod {
        pod(&self.node, self.pods, name)
    }

    /// The service `web` with all backends ready on this node.
    pub fn web(&self) -> Service {
        Service::web(self.endpoints())
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        let node = self.node.node_name();
        self.backends.iter().map(|pod| Endpoint::ready(pod.addresses()).on(&node)).collect()
    }

    pub fn agent(&self, manifest: &Manifest, flags: &[&str]) -> Agent {
        Agent::start_with(&self.node, manifest, flags).expect("an agent")
    }
}

fn pod(node: &Node, pods: Pods, name: &str) -> Pod {
    match pods {
        Pods::Routed => node.pod(name),
        Pods::Bridged => node.bridged_pod(name),
    }
    .expect("a pod")
}

/// Servers of both protocols and families in a pod.
pub fn serve(pod: &Pod, name: &str) -> Vec<Server> {
    serve_at(pod.place(), pod.addresses(), name)
}

/// The same anywhere.
pub fn serve_at(place: &Place, addresses: Addresses, name: &str) -> Vec<Server> {
    let mut servers = Vec::new();
    for address in addresses.both() {
        servers.push(Server::tcp(place, name, SocketAddr::new(address, 8080)).expect("a TCP server"));
        servers.push(Server::udp(place, name, SocketAddr::new(address, 5353)).expect("a UDP server"));
    }
    servers
}
