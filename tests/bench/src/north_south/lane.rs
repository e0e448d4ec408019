//! A lane: a node between a client's link and a link to backends elsewhere, both ends of which are one host's.
//!
//! ```text
//!   far host: in0 ───── lan0 :node: far0 ───── out0 :far host
//!   198.18.0.7          198.18.0.1  198.19.0.1       198.19.0.2, and behind it the backend 10.200.0.5
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use lb_tests::topology::{Checksums, Namespace, Node, NodeOptions, Pod, Topology, set_checksums};

use super::frames::{FIRST_PORT, Segment};
use crate::packet::frames::ACK;

/// Link-layer addresses: of the client's end and the node's, of the node's other link and the end beyond.
const CLIENT_LINK: [u8; 6] = [2, 0, 0, 0, 1, 2];
const NODE_LINK: [u8; 6] = [2, 0, 0, 0, 1, 1];
const FAR_LINK: [u8; 6] = [2, 0, 0, 0, 2, 1];
const BEYOND_LINK: [u8; 6] = [2, 0, 0, 0, 2, 2];
/// The node's addresses on the client's link.
pub const NODE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 1))];
const CLIENT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 7)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 7))];
/// Another node, which sends packets of clients in an outer header.
const PEER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 9)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 9))];
/// Networks of such nodes.
pub const PEERS: &str = "198.18.0.9/32,2001:db8:18::9/128";
/// The backend elsewhere.
pub const BACKEND4: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 5);
pub const BACKEND6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, 5);
/// Port of the backends.
pub const TARGET: u16 = 8080;
/// Node ports: of the service with masquerade, with direct server return, and of the one whose backend is here.
pub const SNAT: u16 = 30_080;
pub const DSR: u16 = 30_081;
pub const HERE: u16 = 30_082;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePath {
    /// To the backend elsewhere, by its own address.
    Plain,
    /// To a node port of the node, and from there to the backend elsewhere.
    NodePort(u16),
    /// In an outer header to the pod here.
    Arrival,
}

/// A node, the host around it, and a pod here. Fields in the order in which they must end.
pub struct Lane {
    pod: Pod,
    pub node: Node,
    _far: Namespace,
}

impl Lane {
    /// Nothing at the ends of its links ever answers.
    pub fn new(topology: &Topology, name: &str) -> Result<Self> {
        let node = topology.node_with(NodeOptions { rp_filter: 0, ..NodeOptions::default() })?;
        let far = Namespace::new(&format!("{}-{name}", topology.name()))?;
        let here = node.namespace();
        for (link, own, end, other) in
            [("lan0", NODE_LINK, "in0", CLIENT_LINK), ("far0", FAR_LINK, "out0", BEYOND_LINK)]
        {
            let (own, other) = (text(own), text(other));
            here.ip(&format!(
                "link add {link} address {own} type veth peer name {end} address {other} netns {}",
                far.name()
            ))?;
            // As on a wire; and so both ends poll: XDP can send by them.
            set_checksums(here, link, Checksums::Complete)?;
            set_checksums(&far, end, Checksums::Complete)?;
            far.ip(&format!("link set {end} up"))?;
            here.ip(&format!("link set {link} up"))?;
            here.sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "0")?;
        }
        let ([node4, node6], [client4, client6]) = (NODE, CLIENT);
        let (client, beyond) = (text(CLIENT_LINK), text(BEYOND_LINK));
        here.ip(&format!(
            "address add {node4}/24 dev lan0\n\
             address add {node6}/64 dev lan0 nodad\n\
             address add 198.19.0.1/24 dev far0\n\
             address add 2001:db8:19::1/64 dev far0 nodad\n\
             neighbour add {client4} lladdr {client} dev lan0 nud permanent\n\
             neighbour add {client6} lladdr {client} dev lan0 nud permanent\n\
             neighbour add 198.19.0.2 lladdr {beyond} dev far0 nud permanent\n\
             neighbour add 2001:db8:19::2 lladdr {beyond} dev far0 nud permanent\n\
             route add {BACKEND4}/32 via 198.19.0.2\n\
             route add {BACKEND6}/128 via 2001:db8:19::2"
        ))?;
        let pod = node.pod("backend")?;
        // The pod never answers a request for its link-layer address: the address is set.
        let mac = address_of(&pod)?;
        for address in pod.addresses().both() {
            here.ip(&format!("neighbour add {address} lladdr {mac} dev {} nud permanent", pod.link()))?;
        }
        Ok(Self { pod, node, _far: far })
    }

    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// A client's segment on this way.
    pub fn segment(&self, path: FramePath, family: usize) -> Segment {
        let pod = self.pod.addresses().both()[family];
        let elsewhere = [IpAddr::V4(BACKEND4), IpAddr::V6(BACKEND6)][family];
        let to = match path {
            FramePath::Plain => SocketAddr::new(elsewhere, TARGET),
            FramePath::NodePort(port) => SocketAddr::new(NODE[family], port),
            FramePath::Arrival => SocketAddr::new(PEER[family], HERE),
        };
        let outer = (path == FramePath::Arrival).then_some((PEER[family], pod));
        Segment {
            from: SocketAddr::new(CLIENT[family], FIRST_PORT),
            to,
            flags: ACK,
            outer,
            links: [CLIENT_LINK, NODE_LINK],
        }
    }

    /// What the segment's backend answers to, if it came from there: the pod's own, or by the other link.
    pub fn answer(&self, path: FramePath, family: usize, to: SocketAddr) -> Segment {
        let from = match path {
            FramePath::Arrival => SocketAddr::new(self.pod.addresses().both()[family], TARGET),
            _ => self.segment(FramePath::Plain, family).to,
        };
        Segment { from, to, flags: ACK, outer: None, links: [BEYOND_LINK, FAR_LINK] }
    }
}

fn text(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

fn address_of(pod: &Pod) -> Result<String> {
    let shown = pod.namespace().ip_show(&["-o", "link", "show", "eth0"])?;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    words.next().map(str::to_owned).ok_or_else(|| anyhow::anyhow!("eth0 of a pod has no address: {shown}"))
}
