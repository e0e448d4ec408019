//! A pod with a server at up to 126 addresses. Each address is a backend, and each can fail in its own way.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use crate::peers::Server;
use crate::topology::{Namespace, NetNs, Node, Pod};

/// Port of its server.
const PORT: u16 = 8080;
/// The node's bridged pods would have these addresses: there must be none.
const FIRST: u8 = 128;

/// How a backend goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Packets to it are dropped in silence.
    Silent,
    /// Its address is there, its server is not: RST.
    Refused,
    /// The node has no route to it: ICMP host unreachable.
    NoRoute,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Silent, Self::Refused, Self::NoRoute];

    /// For names of services and lines of a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Refused => "refused",
            Self::NoRoute => "no-route",
        }
    }
}

/// The pod with the server, and one that has all addresses and no server.
#[derive(Debug)]
pub struct BackendPool {
    _server: Option<Server>,
    pod: Pod,
    closed: Pod,
}

impl BackendPool {
    /// That many addresses, all alive, in two pods of the node. At most 126 of them.
    pub fn new(node: &Node, count: u8) -> Result<Self> {
        let this = Self::without_server(node, count)?;
        let server = Server::tcp(this.pod.netns(), "pool", SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT))?;
        Ok(Self { _server: Some(server), ..this })
    }

    /// A pool for a server of the caller's.
    pub fn without_server(node: &Node, count: u8) -> Result<Self> {
        assert!(count <= 126, "the upper half of the pods' network has no {count} addresses");
        let (pod, closed) = (node.pod("pool")?, node.pod("closed")?);
        node.namespace().ip(&format!("route add {}/25 dev {}", Self::address(0), pod.link()))?;
        for of in [&pod, &closed] {
            of.namespace().ip(&lines("address add", "dev eth0", 0..count))?;
            // Without them an address that is taken away would have no neighbour, and the node would tell its clients.
            let mac = mac_of(of.namespace())?;
            let neighbour = |address| format!("neigh replace {address} lladdr {mac} dev {} nud permanent", of.link());
            let neighbours: Vec<String> = (0..count).map(Self::address).map(neighbour).collect();
            node.namespace().ip(&neighbours.join("\n"))?;
        }
        Ok(Self { _server: None, pod, closed })
    }

    /// The address of this number: the same on every node, which only its own pods know.
    pub fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, 1, FIRST + number)
    }

    /// Where the server runs.
    pub fn netns(&self) -> &NetNs {
        self.pod.netns()
    }

    /// These backends go.
    pub fn vanish(&self, node: &Node, numbers: impl IntoIterator<Item = u8>, failure: Failure) -> Result<()> {
        match failure {
            Failure::Silent => self.in_pod("address delete", "dev eth0", numbers),
            Failure::Refused => on_node(node, "route replace", &format!("dev {}", self.closed.link()), numbers),
            Failure::NoRoute => on_node(node, "route replace unreachable", "", numbers),
        }
    }

    /// They come back.
    pub fn return_to(&self, node: &Node, numbers: impl IntoIterator<Item = u8>, failure: Failure) -> Result<()> {
        match failure {
            Failure::Silent => self.in_pod("address add", "dev eth0", numbers),
            Failure::Refused => on_node(node, "route delete", &format!("dev {}", self.closed.link()), numbers),
            Failure::NoRoute => on_node(node, "route delete unreachable", "", numbers),
        }
    }

    fn in_pod(&self, action: &str, rest: &str, numbers: impl IntoIterator<Item = u8>) -> Result<()> {
        self.pod.namespace().ip(&lines(action, rest, numbers))
    }
}

fn on_node(node: &Node, action: &str, rest: &str, numbers: impl IntoIterator<Item = u8>) -> Result<()> {
    node.namespace().ip(&lines(action, rest, numbers))
}

fn lines(action: &str, rest: &str, numbers: impl IntoIterator<Item = u8>) -> String {
    let line = |number| format!("{action} {}/32 {rest}", BackendPool::address(number));
    numbers.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The link-layer address of a pod's `eth0`.
pub(super) fn mac_of(namespace: &Namespace) -> Result<String> {
    let shown = namespace.ip_show(&["-o", "link", "show", "eth0"])?;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).map(str::to_owned).ok_or_else(|| anyhow::anyhow!("no MAC in {shown:?}"))
}
