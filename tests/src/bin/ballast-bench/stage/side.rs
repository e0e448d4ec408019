//! A side: a node with a client and a backend, and the servers of the backend. All sides are alike but for who serves their services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use lb_load::{Server, serve};
use lb_tests::topology::{Node, Place, Pod, Topology};

use crate::control::objects::{ENDPOINTS, TARGET_PORT};
use crate::machine::stay_on_one_cpu;

/// Port of the same backend for direct connections: so the ways never meet in one tuple of addresses and ports, where one of them would
/// have to take another source port.
const DIRECT_PORT: u16 = 8081;
/// Addresses of the backend on every side: so all sides have the same services.
pub const BACKENDS4: [Ipv4Addr; ENDPOINTS] = [
    Ipv4Addr::new(10, 250, 0, 1),
    Ipv4Addr::new(10, 250, 0, 2),
    Ipv4Addr::new(10, 250, 0, 3),
    Ipv4Addr::new(10, 250, 0, 4),
];
pub const BACKEND6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x250, 0, 0, 0, 0, 0, 1);

/// A node with a client and a backend. Fields in the order in which they must end.
pub struct Side {
    _servers: Vec<Running>,
    client: Pod,
    _backend: Pod,
    pub node: Node,
}

impl Side {
    pub fn new(topology: &Topology) -> Result<Self> {
        let node = topology.node()?;
        let (client, backend) = (node.pod("client")?, node.pod("backend")?);
        let addresses: Vec<IpAddr> = BACKENDS4.into_iter().map(IpAddr::V4).chain([IpAddr::V6(BACKEND6)]).collect();
        let lines = |line: &dyn Fn(&IpAddr) -> String| addresses.iter().map(line).collect::<Vec<_>>().join("\n");
        let length = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
        backend.namespace().ip(&lines(&|address| {
            let detection = if address.is_ipv4() { "" } else { " nodad" };
            format!("address add {address}/{} dev eth0{detection}", length(address))
        }))?;
        node.namespace()
            .ip(&lines(&|address| format!("route add {address}/{} dev {}", length(address), backend.link())))?;
        let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let servers = any.into_iter().flat_map(|address| [TARGET_PORT, DIRECT_PORT].map(|port| (address, port)));
        let servers = servers.map(|at| Running::new(backend.place(), at.into())).collect::<Result<_>>()?;
        Ok(Self { _servers: servers, client, _backend: backend, node })
    }

    /// Where the pod's connections come from.
    pub fn client(&self) -> &Place {
        self.client.place()
    }

    /// Where the host's connections come from.
    pub fn host(&self) -> &Place {
        self.node.place()
    }
}

/// Where the backend of any side answers direct connections: IPv4, IPv6.
pub fn direct(family: usize) -> SocketAddr {
    let addresses = [IpAddr::V4(BACKENDS4[0]), IpAddr::V6(BACKEND6)];
    SocketAddr::new(addresses[family], DIRECT_PORT)
}

/// A server and its thread.
struct Running {
    server: Server,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(place: &Place, address: SocketAddr) -> Result<Self> {
        let server = place.run(|| Server::bind(address)).with_context(|| format!("a server on {address}"))?;
        let thread = place.spawn({
            let server = server.clone();
            move || {
                // Where the clients are. If that cannot be had, it serves from anywhere.
                if let Err(error) = stay_on_one_cpu() {
                    eprintln!("a server: {error:#}");
                }
                serve(&server);
            }
        });
        Ok(Self { server, thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
