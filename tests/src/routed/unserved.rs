//! What clients find at addresses of a service CIDR that no service has, and at ports of a cluster IP that no service has.

use std::io::Result;
use std::net::SocketAddr;
use std::time::Duration;

use super::table::{fresh_port, side_by_side};
use super::{AddressKind, Backend, Cell, Client, Found, Network, Policy};
use crate::agent::Protocol;
use crate::peers::{Datagrams, Stream};
use crate::strays::Gateway;
use crate::topology::Addresses;

/// In the service CIDRs of the tests, and no service's.
const NOBODYS: Addresses = Addresses {
    v4: std::net::Ipv4Addr::new(10, 96, 200, 99),
    v6: std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0xc863),
};
/// No service of the tests has it.
const PORT: u16 = 81;
/// How long an answer is waited for that must not come, and one that must.
const LIMITS: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(15)];

/// What no service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    Address,
    /// Of an address that has a service.
    Port,
}

impl Unserved {
    /// What a client of Ballast is to find.
    pub fn with_ballast(self, _client: Client, _protocol: Protocol) -> Found {
        match self {
            Self::Address => Found::Silence,
            Self::Port => Found::Refused,
        }
    }

    /// What a client of kube-proxy is to find: the same, but that the kernel tells a process whose datagram is dropped.
    pub fn with_kube_proxy(self, client: Client, protocol: Protocol) -> Found {
        let is_told = client.is_process() && protocol == Protocol::Udp;
        if is_told { Found::NotPermitted } else { self.with_ballast(client, protocol) }
    }
}

/// Asks from every position for what no service has; says in words where a client found anything else than expected, and which of what
/// a client of a node asked for left it.
pub fn wrong_at_unserved(
    network: &Network,
    expected: fn(Unserved, Client, Protocol) -> Found,
) -> anyhow::Result<Vec<String>> {
    let gateway = Gateway::watch(&network.topology)?;
    let (outside, near): (Vec<_>, Vec<_>) = Client::ALL
        .into_iter()
        .filter(|client| *client != Client::Itself)
        .partition(|client| *client == Client::Outside);
    let mut wrong = wrong_for(network, &near, expected);
    let left = gateway.seen().into_iter().filter(|(to, _)| NOBODYS.both().contains(to));
    wrong.extend(left.map(|left| format!("it left the node: {left:?}\n")));
    wrong.extend(wrong_for(network, &outside, expected));
    Ok(wrong)
}

fn wrong_for(network: &Network, clients: &[Client], expected: fn(Unserved, Client, Protocol) -> Found) -> Vec<String> {
    let one_each = |cell: &Cell| {
        (cell.kind, cell.backend, cell.policy) == (AddressKind::ClusterIp, Backend::Pod, Policy::Cluster)
            && clients.contains(&cell.client)
    };
    let cells: Vec<Cell> = Cell::all().into_iter().filter(one_each).collect();
    let both = side_by_side(&cells, |cell| {
        [Unserved::Address, Unserved::Port].map(|what| {
            let expected = expected(what, cell.client, cell.protocol);
            let limit = LIMITS[usize::from(expected != Found::Silence)];
            let found = ask(network, cell, what, limit).map_or_else(Found::from, |()| Found::Other("an answer".into()));
            let Cell { client, protocol, family, .. } = cell;
            (found != expected).then(|| {
                format!("{client:?} {protocol:?} {family:?}, {what:?}: found {found:?}, expected {expected:?}\n")
            })
        })
    });
    both.into_iter().flatten().flatten().collect()
}

fn ask(network: &Network, cell: Cell, what: Unserved, limit: Duration) -> Result<()> {
    let served = cell.frontend(network.nodes[0].addresses());
    let to = match what {
        Unserved::Address => SocketAddr::new(NOBODYS.of(cell.family), served.port()),
        Unserved::Port => SocketAddr::new(served.ip(), PORT),
    };
    let netns = network.client(cell);
    if cell.protocol == Protocol::Tcp {
        return Stream::connect_from(netns, 0, to, limit).map(drop);
    }
    let socket = Datagrams::connected(netns, fresh_port(), to)?;
    socket.set_patience(limit)?;
    socket.ask_at(to, "anybody?").map(drop)
}
